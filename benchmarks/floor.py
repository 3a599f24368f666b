"""The least time that a model needs for a text on this machine: its arithmetic, and its weights read once a step.

Counted is what exact computation cannot leave out: the char encoder over windows with a real character and the
first layer's input product, once per unique token; every other product once per position, `<S>` and `</S>`
included. A step takes the larger of its arithmetic and the reading of its weights. The machine's rates are measured, by
the CPU time of benchmarks/native/machine_floor.cpp.

    python -m benchmarks.floor      # the char encoder's counts for one token, and its floor on a GPU, as Markdown
"""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks import common
from benchmarks.work import (  # noqa: F401 (for the benchmarks)
    Work,
    encoder_flop,
    flop,
    flop_outside_steps,
    step_weights,
    work_of_slots,
)
from elmo_fast.engine.backend import native_module

SOURCE = common.ROOT / "benchmarks" / "native" / "machine_floor.cpp"
# precision: bytes of one packed weight
PRECISIONS = {"highest": 4, "high": 4, "medium": 2, "low": 1}
_AVX2 = ["-mavx2", "-mfma"]
_AVX512 = [*_AVX2, "-mavx512f", "-mavx512bw"]
# level of the engine -> the compiler's flags
_FLAGS = {"avx2": _AVX2, "avx-vnni": [*_AVX2, "-mavxvnni"], "avx512": _AVX512,
          "avx512-vnni": [*_AVX512, "-mavx512vnni"], "avx512-bf16": [*_AVX512, "-mavx512vnni", "-mavx512bf16"],
          "amx": [*_AVX512, "-mavx512vnni", "-mamx-tile", "-mamx-bf16", "-mamx-int8"]}


def work_of_batches(groups: list[list[list[str]]]) -> Work:
    """Batches one after the other: a step runs the sentences that are long enough, tokens are unique in a batch."""
    parts = [work_of_slots(group, len(group)) for group in groups]
    return Work(sum(part.tokens for part in parts), np.concatenate([part.characters for part in parts]),
                np.concatenate([part.batch_sizes for part in parts]))


class NoFloor(RuntimeError):
    """The machine's rates cannot be measured, or it has none for this precision."""


@dataclass(frozen=True)
class Rates:
    """FLOP/s in fp32, of bf16 and of bytes (0: none), and bytes/s read from `kib` KiB a thread."""

    threads: int
    kib: int
    fp32: float
    read: float
    bf16: float
    bytes: float = 0.0

    def flops(self, precision: str) -> float:
        """FLOP/s of products in `precision`; where bf16 has no rate, `medium` multiplies in fp32."""
        rate = {"highest": self.fp32, "high": self.bf16 / 3, "medium": self.bf16 or self.fp32,
                "low": self.bytes}[precision]
        if not rate:
            raise NoFloor(f"this machine has no rate of products for {precision}")
        return rate

    def as_dict(self) -> dict:
        return common.rounded(asdict(self))


class Meter:
    """Measures the machine's rates as often as it is called; a context manager that holds the compiled program."""

    def __enter__(self) -> "Meter":
        self._folder = tempfile.TemporaryDirectory()
        return self

    def __exit__(self, *_) -> None:
        self._folder.cleanup()

    def __call__(self, threads: int, kib: int) -> Rates:
        """The rates of all threads together; raises `NoFloor` where the program does not compile or run."""
        program = Path(self._folder.name) / "floor"
        if not program.exists():
            _run(*_compile_command(program))
        fp32, read, *others = (1e9 * float(line) for line in _run(program, str(threads), str(kib)).split())
        return Rates(threads, kib, fp32, read, *others)


class Watch:
    """The machine's rates between the turns, and which turns found it busy; without rates, no turn is marked."""

    def __init__(self, measure: Callable[[], Rates]):
        self._measure, self._rates, self._turns = measure, [], {}
        with contextlib.suppress(NoFloor):
            self._rates.append(measure())

    def __call__(self, case: tuple) -> None:
        """End a turn of (way, variant, precision)."""
        if self._rates:
            self._turns.setdefault(case, []).append(len(self._rates))
            self._rates.append(self._measure())

    def busy(self) -> dict[tuple, list[bool]]:
        """By case and turn: whether the rate before or after it was a third below the best of the run."""
        return {case: self._marks(turns, case[2]) for case, turns in self._turns.items()}

    def _marks(self, turns: list[int], precision: str) -> list[bool]:
        speeds = [rates.flops(precision) for rates in self._rates]
        return [min(speeds[turn - 1 : turn + 1]) < 2 / 3 * max(speeds) for turn in turns]


def measure_rates(threads: int, kib: int) -> Rates:
    """The rates of all threads together, measured once."""
    with Meter() as meter:
        return meter(threads, kib)


def _run(*command) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise NoFloor(f"{SOURCE.name}: {said[0] if said else error}") from error


def _compile_command(program: Path) -> list[str]:
    module = native_module()[0]
    flags = _FLAGS.get(module.cpu_isa(), []) if module else []
    return [os.environ.get("CXX", "c++"), "-O3", "-std=c++17", *flags, str(SOURCE), "-o", str(program), "-lpthread"]


# ---- model ---------------------------------------------------------------------------------


def kib_per_thread(options: dict, precision: str, threads: int) -> int:
    """KiB of a layer's weights that a thread reads in a step, which decide the cache they come from."""
    return max(1, step_weights(options) * PRECISIONS[precision] // threads // 1024)


def seconds(options: dict, work: Work, rates: Rates, precision: str) -> float:
    """The floor; raises `NoFloor` where the machine has no rate for `precision`."""
    speed, weights = rates.flops(precision), step_weights(options)
    steps = np.maximum(2.0 * weights * work.batch_sizes / speed, weights * PRECISIONS[precision] / rates.read)
    return flop_outside_steps(options, work) / speed + options["lstm"]["n_layers"] * float(steps.sum())


# ---- char encoder on a GPU -----------------------------------------------------------------

# bytes of an activation in device memory, by precision
ACTIVATION_BYTES = {"highest": 4, "high": 4, "medium": 2}


@dataclass(frozen=True)
class Chip:
    """What a GPU can do: FLOP/s by precision, and bytes/s of device memory."""

    name: str
    flops: dict
    read: float


# NVIDIA's H200 datasheet, SXM, dense.
H200 = Chip("H200 (datasheet)", {"highest": 67e12, "high": 494.5e12, "medium": 989e12}, 4.8e12)


@dataclass(frozen=True)
class Count:
    """Arithmetic and device-memory traffic of one token in one kernel; weights, read once a call, are left out."""

    flop: float
    bytes: float

    def tokens_per_s(self, chip: Chip, precision: str) -> float:
        """The floor: the larger of the two times."""
        return 1 / max(self.flop / chip.flops[precision], self.bytes / chip.read)


def char_cnn_count(options: dict, characters: np.ndarray, precision: str, id_bytes: int = 8) -> Count:
    """The mean over tokens with that many characters, windows with a real character; ids read, values written."""
    bare = {"char_cnn": {**options["char_cnn"], "n_highway": 0},
            "lstm": {"projection_dim": sum(count for _, count in options["char_cnn"]["filters"])}}
    written = bare["lstm"]["projection_dim"] * ACTIVATION_BYTES[precision]
    read = options["char_cnn"]["max_characters_per_token"] * id_bytes
    return Count(encoder_flop(bare, np.asarray(characters)) / len(characters), read + written)


def highway_count(options: dict, precision: str) -> Count:
    """One layer: two square products, one row read and one written."""
    size = sum(count for _, count in options["char_cnn"]["filters"])
    return Count(4.0 * size**2, 2.0 * size * ACTIVATION_BYTES[precision])


def encoder_table(chip: Chip, characters: np.ndarray) -> str:
    """Markdown: counts and floors of both kernels at the original model's shapes."""
    options = common.standard_options("original")
    lines = ["| kernel | precision | MFLOP a token | bytes a token | M tokens/s |", "|---|---|---|---|---|"]
    for precision in ACTIVATION_BYTES:
        counts = {"char_cnn": char_cnn_count(options, characters, precision),
                  "highway layer": highway_count(options, precision)}
        for name, count in counts.items():
            lines.append(f"| {name} | {precision} | {count.flop / 1e6:.2f} | {count.bytes:,.0f} | "
                         f"{count.tokens_per_s(chip, precision) / 1e6:.1f} |")
    return "\n".join(lines)


def characters_of(tokens) -> np.ndarray:
    """Characters of tokens, begin and end of word included: int [len(tokens)]."""
    return np.array([len(token.encode("utf-8", "replace")) + 2 for token in tokens])


def main() -> int:
    sentences, source = common.running_text(2000)
    characters = characters_of(sorted({token for sentence in sentences for token in sentence}))
    print(f"{H200.name}, unique tokens of {source}, {characters.mean():.1f} characters on average\n")
    print(encoder_table(H200, characters))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
