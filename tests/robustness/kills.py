"""Commands killed at random moments, and commands that run concurrently on one output.

    python -m tests.robustness.kills --kills 1000      # all commands by turns, then the same command until it is done
    python -m tests.robustness.kills --races 200       # two, three and five processes on one output

After every kill, an output at its final name must be complete, the next run must give the output of an uninterrupted
run, and no partial file may remain. Of several processes one wins; the others report the reason, or win later.
"""

import argparse
import hashlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import torch
from tqdm import tqdm

from elmo_fast.embed import run
from elmo_fast.engine import stream as slot_stream
from elmo_fast.train.run_files import read_log
from tests.robustness.world import World
from tests.support.tf_checkpoints import import_values, made_up, write_folder


@dataclass(frozen=True)
class Command:
    """`run(output)` writes `output`, or resumes; `start(output)`, where it differs, only starts."""

    run: Callable[[Path], object]
    name: str = "out.hdf5"
    start: Callable[[Path], object] | None = None

    def digest(self, output: Path) -> str:
        """A digest of the output without speeds and the files that the next run removes."""
        return " ".join(f"{path.relative_to(output.parent)}:{_digest(path)}" for path in sorted(_files(output)))

    def is_absent(self, output: Path) -> bool:
        """Whether nothing can be loaded: an export needs its options."""
        return not output.exists() or (self.name == "exported" and not (output / "options.json").exists())


def _files(output: Path) -> list[Path]:
    names = [output.with_suffix(".json")] if output.suffix == ".npy" else []
    paths = output.rglob("*") if output.is_dir() else [output, *names]
    return [path for path in paths if path.is_file() and ".part" not in str(path.relative_to(output.parent))]


def _digest(path: Path) -> str:
    if path.suffix in (".hdf5", ".h5"):
        with h5py.File(path) as file:
            values: list = []
            file.visititems(lambda name, item: values.append((name, _values(item))) if isinstance(item, h5py.Dataset)
                            else None)
        return _hash(repr(values))
    if path.suffix == ".pt":
        tensors = _tensors(torch.load(path, weights_only=True))
        return _hash(repr([(name, value.numpy().tobytes()) for name, value in tensors]))
    if path.suffix == ".jsonl":
        return _hash(repr([{key: value for key, value in line.items() if key != "tokens_per_second"}
                           for line in read_log(path.parent)]))
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _values(item: h5py.Dataset) -> bytes:
    return repr(item[...]).encode() if item.dtype.kind == "O" else item[...].tobytes()


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _tensors(content, path=""):
    if isinstance(content, torch.Tensor):
        yield path, content
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield from _tensors(value, f"{path}/{key}")


def commands(world: World) -> dict[str, Command]:
    """The commands that write, by name."""
    text, proteins = world.folder / "lines.txt", world.folder / "proteins.fasta"
    rng = random.Random(3)
    text.write_text("".join(" ".join(rng.choice(world.words) for _ in range(rng.randrange(1, 20))) + "\n"
                            for _ in range(300)))
    proteins.write_text("".join(f">p|{k}\n{''.join(rng.choices('ACDEFGHIKLMNPQRSTVWY', k=rng.randrange(1, 80)))}\n"
                                for k in range(120)))
    tf, _, vocabulary = write_folder(world.folder / "tf")
    variables = made_up()
    files, trained = world.files(world.model), world.run  # made here, as every fork of a command would make its own

    def start(output: Path) -> None:
        world.command("train", output, "--train", world.corpus["train"][0], "--vocab", world.corpus["vocab"], "--quiet",
                      "--heldout", world.corpus["heldout"][0], "--options-file", world.corpus["options_file"],
                      "--max-steps", 12, "--checkpoint-every", 2, "--evaluate-every", 4, "--evaluate-batch-size", 5,
                      "--log-every", 3)

    def resume(output: Path) -> None:
        if (output / "run.json").exists():
            world.command("train", output, "--resume", "--quiet")
        else:
            start(output)  # killed before the run had its settings

    def embed(state: str, *flags) -> Callable[[Path], object]:
        return lambda output: world.command("embed", text, output, *files, "--state", state, "--batch-size", 8,
                                            "--quiet", "--resume", *(flags or ("--all",)))

    def seqvec(state: str, *flags) -> Callable[[Path], object]:
        return lambda output: world.command("seqvec", "-i", proteins, "-o", output, "--model", world.model, "--state",
                                            state, "--batchsize", 200, "--silent", "--cpu", "--resume", *flags)

    return {
        "embed": Command(embed("carry")),
        "embed-warm": Command(embed("warm", "--top", "--dtype", "float16"), "out.npz"),
        "embed-npy": Command(embed("carry", "--average", "--pool", "mean"), "out.npy"),
        "seqvec": Command(seqvec("carry"), "out.h5"),
        "seqvec-warm": Command(seqvec("warm"), "out.npz"),
        "seqvec-npy": Command(seqvec("carry", "--protein"), "out.npy"),
        "cache": Command(lambda output: world.command("cache", world.large_vocabulary, output, *files, "--quiet")),
        "train": Command(resume, "run", start),
        "export": Command(lambda output: world.command("export", trained, output, "--softmax"), "exported"),
        "import-tf": Command(lambda output: import_values(variables, tf, output, vocab_file=vocabulary), "imported"),
    }


def fork(function: Callable[[], object], quiet: bool = False) -> int:
    """Process id of a fork that calls a function, with exit code 0, or 1 and, unless `quiet`, the error on stderr."""
    child = os.fork()
    if child:
        return child
    if quiet:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    tqdm.set_lock(threading.RLock())  # forks share tqdm's own lock, which a killed fork would keep
    status = 0
    try:
        function()
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        status = 1
    os._exit(status)


def seconds_of(command: Command, output: Path) -> float:
    begin = time.monotonic()
    if os.waitpid(fork(lambda: command.run(output)), 0)[1]:
        raise RuntimeError(f"{output.name}: the uninterrupted run failed")
    return time.monotonic() - begin


class Kills:
    """Kills runs of one command; `faults` has a line for every fault."""

    def __init__(self, name: str, command: Command, folder: Path, rng: random.Random):
        self.name, self.command, self.folder, self.rng = name, command, folder, rng
        uninterrupted = folder / "whole"
        uninterrupted.mkdir(parents=True)
        self.seconds = seconds_of(command, uninterrupted / command.name)
        self.expected = command.digest(uninterrupted / command.name)
        self.expected_names = sorted(path.name for path in uninterrupted.iterdir())
        self.kills, self.faults = 0, []

    def series(self) -> None:
        """Kill runs on one output up to five times, then let one finish."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            output = Path(name) / self.command.name
            for _ in range(self.rng.randrange(1, 6)):
                child = fork(lambda: self.command.run(output), quiet=True)
                time.sleep(self.rng.uniform(0, 1.1 * self.seconds))
                os.kill(child, signal.SIGKILL)
                self.kills += os.WIFSIGNALED(os.waitpid(child, 0)[1])
                self._check_name(output)
            if output.exists() and self.name == "import-tf":  # needs a new directory, and the present one is complete
                return
            if os.waitpid(fork(lambda: self.command.run(output)), 0)[1]:
                self.faults.append(f"{self.name}: the run after a kill failed")
            elif self.command.digest(output) != self.expected:
                self.faults.append(f"{self.name}: another result after a kill")
            elif (leftover := sorted(path.name for path in Path(name).iterdir())) != self.expected_names:
                self.faults.append(f"{self.name}: left behind {leftover}")

    def _check_name(self, output: Path) -> None:
        """An output at its final name is complete; a training run is complete with every checkpoint."""
        if (self.name != "train" and not self.command.is_absent(output)
                and self.command.digest(output) != self.expected):
            self.faults.append(f"{self.name}: an incomplete output at its final name")


def race(name: str, command: Command, folder: Path, processes: int, expected: str, rng: random.Random) -> list[str]:
    """Start processes on one output within a few milliseconds, and return the faults."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        output, errors = Path(place) / "out" / command.name, Path(place) / "errors"
        output.parent.mkdir()
        reader, writer = os.pipe()  # closed when all may start
        children = []
        for number in range(processes):
            wait = rng.choice((0, 0, 0.002, 0.02))

            def run(number=number, wait=wait):
                sys.stderr = open(f"{errors}-{number}", "w")  # noqa: SIM115
                os.close(writer)
                os.read(reader, 1)
                time.sleep(wait)
                (command.start or command.run)(output)

            children.append(fork(run))
        os.close(reader)
        os.close(writer)
        statuses = [os.waitpid(child, 0)[1] for child in children]
        messages = [Path(f"{errors}-{number}").read_text().strip() for number in range(processes)]
        faults = []
        if all(statuses):
            faults.append("no process won")
        if any(status and not _says_why(message) for status, message in zip(statuses, messages)):
            faults.append(f"messages {messages}")
        if not output.exists() or command.digest(output) != expected:
            faults.append("another result")
        expected_names = {output.name, *({f"{output.stem}.json"} if output.suffix == ".npy" else ())}
        if (present := {path.name for path in output.parent.iterdir()}) != expected_names:
            faults.append(f"left behind {sorted(present)}")
        return [f"{name}: {fault}" for fault in faults]


def _says_why(message: str) -> bool:
    """Whether a message is one line: another process writes, or has written to what must be a new directory."""
    reasons = "no other process or thread to write it", "expected a new directory"
    return "\n" not in message and any(reason in message for reason in reasons)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill commands, and run them at once on one output.")
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="kills of all commands together")
    parser.add_argument("--races", type=int, default=0, metavar="N", help="starts of two, three or five processes")
    parser.add_argument("--only", action="append", metavar="COMMAND", help="only this command; repeatable")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run.COMMIT_SECONDS, slot_stream._TOKENS_AHEAD, slot_stream._ROWS_PER_CHUNK = 0.02, 64, 64  # many commits
    rng, faults = random.Random(arguments.seed), []
    with tempfile.TemporaryDirectory() as name:
        world = World(Path(name).resolve())
        killers = [Kills(command, definition, world.folder / "kills" / command, rng)
                   for command, definition in commands(world).items() if command in (arguments.only or [command])]
        while sum(each.kills for each in killers) < arguments.kills and not any(each.faults for each in killers):
            min(killers, key=lambda killer: killer.kills).series()
        for number in range(arguments.races):
            killer = killers[number % len(killers)]
            faults += race(killer.name, killer.command, killer.folder, (2, 3, 5)[number % 3], killer.expected, rng)
        faults += [fault for killer in killers for fault in killer.faults]
    for killer in killers:
        print(f"{killer.name}: {killer.kills} kills of runs of {killer.seconds:.2f} s")
    print("\n".join(faults) or "no fault")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
