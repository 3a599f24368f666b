"""What every benchmark shares: machine facts, standard models, running text, timing, results."""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from elmo_fast.testing import FILTERS, SIZES, standard_options  # noqa: F401 (for every benchmark)

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SCHEMA = 1


# ---- machine -------------------------------------------------------------------------------


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    """What a command prints, or None where it is absent, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, cwd=ROOT)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu() -> dict:
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"model name\s*: (.*)", text)
    flags = set(re.search(r"flags\s*: (.*)", text).group(1).split()) if "flags" in text else set()
    known = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16")
    return {
        "model": model.group(1) if model else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "features": [name for name in known if name in flags],
    }


def gpu_name() -> str | None:
    """Of the first NVIDIA GPU, without torch."""
    names = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return names.splitlines()[0] if names else None


def _gpu() -> dict | None:
    import torch

    if not torch.cuda.is_available():
        return None
    facts = torch.cuda.get_device_properties(0)
    driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {
        "name": facts.name,
        "capability": f"{facts.major}.{facts.minor}",
        "multiprocessors": facts.multi_processor_count,
        "memory_gib": round(facts.total_memory / 2**30, 1),
        "l2_mib": round(getattr(facts, "L2_cache_size", 0) / 2**20, 1),
        "driver": driver.splitlines()[0] if driver else None,
    }


def machine() -> dict:
    """Facts that decide a timing. Neither host names nor paths."""
    import torch

    nvcc = re.search(r"release ([\d.]+)", _output("nvcc", "--version") or "")
    return {
        "cpu": _cpu(),
        "gpu": _gpu(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nvcc": nvcc.group(1) if nvcc else None,
        "triton": _version("triton"),
        "numpy": np.__version__,
    }


def slug(name: str) -> str:
    """A folder name for a chip: 'NVIDIA H200' -> 'h200'."""
    bare = re.sub(r"^NVIDIA\s+", "", name, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9]+", "-", bare.lower()).strip("-")


# ---- text ----------------------------------------------------------------------------------


def shared_folder() -> Path:
    return Path(os.environ.get("ELMO_FAST_SHARED") or ROOT.parent / "shared")


def _split_sentences(tokens: list[str]) -> list[list[str]]:
    """Cuts a tokenized paragraph after each full stop; closing quotes stay with their sentence."""
    sentences, current = [], []
    for token in tokens:
        if token in ('"', "'", ")") and not current and sentences:
            sentences[-1].append(token)
            continue
        current.append(token)
        if token in (".", "!", "?"):
            sentences.append(current)
            current = []
    return [*sentences, current] if current else sentences


def _generated_sentences(count: int) -> list[list[str]]:
    """Made-up words drawn by Zipf's law, with English word and sentence lengths."""
    rng = np.random.default_rng(0)
    ranks = np.arange(20_000)
    # Mandelbrot's offset and this exponent repeat words as English does: 1 in 3 of 64 sentences' is unique
    weights = 1.0 / (ranks + 3.7) ** 1.25
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    sizes = np.clip(rng.poisson(2 + np.log2(ranks + 2) / 3), 1, 16)
    words = ["".join(rng.choice(letters, size)) for size in sizes]
    lengths = np.clip(rng.gamma(4.0, 6.4, count).astype(int), 1, 120)
    drawn = rng.choice(len(words), lengths.sum(), p=weights / weights.sum())
    return [[words[i] for i in part] for part in np.split(drawn, np.cumsum(lengths)[:-1])]


def running_text(count: int) -> tuple[list[list[str]], str]:
    """The first `count` sentences, and where they come from: the file's name or 'generated'."""
    path = shared_folder() / "text" / "wikitext2_valid.txt"
    if not path.exists():
        return _generated_sentences(count), "generated (Zipf)"
    sentences: list[list[str]] = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            tokens = line.split()
            if tokens and tokens[0] != "=":  # headings are not running text
                sentences += _split_sentences(tokens)
            if len(sentences) >= count:
                return sentences[:count], path.name
    raise ValueError(f"count: {path.name} has {len(sentences)} sentences, {count} were asked for")


def batches(sentences: list, size: int) -> list[list]:
    return [sentences[i : i + size] for i in range(0, len(sentences), size)]


def text_facts(sentences: list[list[str]], batch_size: int) -> dict:
    """How much of the work is repeated or padded: the figures depend on it."""
    groups = batches(sentences, batch_size)
    tokens = sum(map(len, sentences))
    steps = sum(max(map(len, group)) + 2 for group in groups)
    padded = sum(len(group) * (max(map(len, group)) + 2) for group in groups)
    real = tokens + 2 * len(sentences)
    unique = sum(len({token for sentence in group for token in sentence}) for group in groups)
    return {
        "sentences": len(sentences),
        "tokens": tokens,
        "batch_size": batch_size,
        "unique_share": round(unique / tokens, 3),
        "padding_share": round(1 - real / padded, 3),
        "live_rows_per_step": round(real / steps, 1),
    }


# ---- timing --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """Seconds per call: median, 20th and 80th percentile over `rounds` samples, and the samples in their order."""

    median: float
    p20: float
    p80: float
    rounds: int
    calls_per_round: int
    samples: tuple[float, ...] = ()

    @classmethod
    def of(cls, samples: list[float], calls_per_round: int = 1) -> "Timing":
        p20, median, p80 = np.percentile(samples, [20, 50, 80])
        return cls(float(median), float(p20), float(p80), len(samples), calls_per_round, tuple(samples))

    def as_dict(self, samples: bool = False) -> dict:
        return rounded({key: value for key, value in asdict(self).items() if samples or key != "samples"})

    def times_as_fast_as(self, other: "Timing") -> float:
        """Median of the ratios within a round: a slow minute then hits both sides of a ratio."""
        return float(np.median(np.divide(other.samples, self.samples)))


def seconds_per_call(fn, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        fn()
    return (time.perf_counter() - start) / calls


def interleave(functions: dict, rounds: int = 5, min_seconds: float = 0.0,
               after: Callable[[object], None] | None = None) -> dict[str, Timing]:
    """Times functions by turns, so that a slow minute of the machine hits all of them alike.

    Every function is called once to warm up, then once a round, or as often as fills
    `min_seconds`; the order moves on by one every round. `after` as in `take_turns`.
    """
    if rounds < 1:
        raise ValueError(f"rounds: expected at least 1, got {rounds}")
    calls = {name: max(1, round(min_seconds / max(seconds_per_call(fn, 1), 1e-9)))
             for name, fn in functions.items()}
    samples = take_turns({name: lambda name=name: seconds_per_call(functions[name], calls[name]) for name in functions},
                         rounds, after)
    return {name: Timing.of(samples[name], calls[name]) for name in functions}


def alternate(turns: dict, rounds: int, after: Callable[[object], None] | None = None) -> dict[object, list[float]]:
    """Tokens per second in every round, of functions that return the tokens of a turn."""
    def speed(turn) -> float:
        start = time.perf_counter()
        tokens = turn()
        return tokens / (time.perf_counter() - start)

    return take_turns({key: lambda turn=turn: speed(turn) for key, turn in turns.items()}, rounds, after)


def take_turns(measure: dict, rounds: int, after: Callable[[object], None] | None = None) -> dict[object, list[float]]:
    """What functions measure in every round; the order moves on by one every round. `after(key)` ends a turn."""
    samples: dict[object, list[float]] = {key: [] for key in measure}
    order = list(measure)
    for _ in range(rounds):
        for key in order:
            samples[key].append(measure[key]())
            if after:
                after(key)
        order = order[1:] + order[:1]
    return samples


# ---- results -------------------------------------------------------------------------------


def rounded(value):
    """The same with five significant digits: more would be noise."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(part) for part in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def revision() -> str | None:
    """The commit measured, '+changes' behind it when the tree differs; None outside git."""
    commit = _output("git", "rev-parse", "HEAD")
    changed = _output("git", "status", "--porcelain", "--", ":!benchmarks/results")
    return commit and commit + ("+changes" if changed else "")


def document(name: str, settings: dict, results) -> dict:
    """The frame every results file has."""
    return {
        "schema": SCHEMA,
        "name": name,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "revision": revision(),
        "machine": machine(),
        "settings": settings,
        "results": results,
    }


def write_json(path: Path, content) -> Path:
    """Writes beside the target and renames, so that a reader never sees a part of a file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)
    return path


# ---- command -------------------------------------------------------------------------------


def positive(text: str) -> int:
    """An argparse type."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {value}")
    return value


def make_parser(description: str, file: str, *counts: tuple[str, int, str]) -> argparse.ArgumentParser:
    """A parser with counts as (flag, default, help), `--threads`, and `--out`, whose default is `file`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, default, what in counts:
        parser.add_argument(flag, type=positive, default=default, metavar="N", help=f"{what} (default: {default})")
    parser.add_argument("--threads", type=positive, metavar="N", help="PyTorch's threads (default: PyTorch's choice)")
    parser.add_argument("--out", type=Path, metavar="FILE",
                        help=f"JSON to write (default: benchmarks/results/cpu/{file})")
    return parser


def run_and_write(arguments: argparse.Namespace, run: Callable[[argparse.Namespace], dict], file: str,
                  report: Callable[[dict], str]) -> int:
    """Write what `run` returns and print a report of it; 1, with the reason on stderr, where it raises."""
    import torch

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    try:
        content = run(arguments)
    except (ValueError, RuntimeError, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    out = arguments.out or RESULTS / "cpu" / file
    write_json(out, content)
    print(f"{report(content)}\nwritten: {out.name}")
    return 0
