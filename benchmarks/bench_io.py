"""A text file to a file of vectors, beside the engine alone: speed, CPU time by stage, and memory by length.

speed   what `elmo-fast embed` does once its model is loaded, by turns with the stream of the same sentences to nowhere
stages  CPU time a token, of all threads, in the same work: where it goes beside the engine
memory  the peak of the command, a process for each length, from 10,000 short sentences on, with a tiny model

Files are compared with the engine's vectors before anything is timed, and those of the command with ours.

    python -m benchmarks.bench_io                              # into results/cpu/io.json
    python -m benchmarks.bench_io --parts memory --most 100000
"""

import argparse
import contextlib
import functools
import importlib.util
import itertools
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np

from benchmarks import agreement, common, models, workloads
from benchmarks.peak_memory import peak_mib
from benchmarks.stopwatch import Stopwatch, helper_threads

PARTS = ("speed", "stages", "memory")
STAGES = ("reading", "token mapping", "engine", "converting", "writing", "other")
HALF = 2.0**-11  # relative error of rounding to float16
CHECKED = 128  # sentences
LEAST = 10_000  # sentences of the first run of `memory`


@dataclass(frozen=True)
class Layout:
    """Flags of the command, and the share of the engine's speed that it should reach."""

    name: str
    dtype: str
    suffix: str
    goal: float | None = None

    @property
    def flags(self) -> list[str]:
        return ["--layout", self.name, "--dtype", self.dtype]

    @property
    def limit(self) -> float:
        """Relative error of a stored value."""
        return HALF if self.dtype == "float16" else 0.0


LAYOUTS = {"HDF5 float16": Layout("allennlp", "float16", ".h5", 0.75),
           "AllenNLP's HDF5": Layout("allennlp", "float32", ".hdf5", 0.75),
           "Parquet": Layout("parquet", "float32", ".parquet")}
ENGINE = "engine alone"


def layouts(names: list[str]) -> tuple[dict[str, Layout], dict[str, str]]:
    """Those that can be written here, and the others with the reason."""
    absent = {} if importlib.util.find_spec("pyarrow") else {"Parquet": "needs elmo-fast[parquet]"}
    absent = {name: why for name, why in absent.items() if name in names}
    return {name: LAYOUTS[name] for name in names if name not in absent}, absent


class Job:
    """A text as a file and in memory, and a model that embeds it."""

    def __init__(self, model: str, sentences: list[list[str]], slots: int, folder: Path):
        self.model, self.sentences, self.slots, self.folder = model, sentences, slots, folder
        self.tokens = sum(map(len, sentences))
        self.embedder = models.Embedder(models.build(model, backend="auto"))
        self.files = models.write_files(folder, model)
        self.text = write_text(folder / "text.txt", sentences)

    def engine(self) -> int:
        """The stream of the sentences to nowhere; the tokens."""
        self.embedder.reset_states()
        for _ in self.embedder.embedder.stream(self.sentences, self.slots):
            pass
        return self.tokens

    def write(self, layout: Layout, text: Path | None = None, watch: Stopwatch | None = None) -> Path:
        """What `elmo-fast embed` does with its model loaded, from the file of the text to a file of vectors."""
        from elmo_fast.embed.progress import Progress
        from elmo_fast.embed.run import write_corpus
        from elmo_fast.files.lock import locked
        from elmo_fast.text.readers import open_texts
        from elmo_fast.vectors.spec import OutputSpec, Target

        self.embedder.reset_states()
        target = Target(self.target(layout), layout.name, OutputSpec("all", dtype=layout.dtype))
        runner = self.embedder.embedder.runner(self.slots)
        with locked(target.path) as part, open_texts(text or self.text) as texts:
            count = watch.calls("reading", texts.count) if watch else texts.count
            write_corpus(texts, staged(watch, runner) if watch else runner, target, progress=Progress(True, count()),
                         lock=part)
        return target.path

    def whole(self, layout: Layout) -> int:
        """As a turn; the tokens."""
        self.write(layout)
        return self.tokens

    def target(self, layout: Layout, name: str = "vectors") -> Path:
        """Where vectors go; what stands there is removed."""
        path = self.folder / f"{name}{layout.suffix}"
        path.unlink(missing_ok=True)
        return path


def write_text(path: Path, sentences: Iterable[list[str]]) -> Path:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{' '.join(tokens)}\n" for tokens in sentences)
    return path


# ---- agreement -----------------------------------------------------------------------------


def check(job: Job, chosen: dict[str, Layout]) -> dict[str, float]:
    """Errors by variant on the first sentences; raises where one is above its limit.

    The engine's is against the reference path, a file's against the engine; the command's file equals ours.
    """
    few = job.sentences[:CHECKED]
    text = write_text(job.folder / "few.txt", few)
    job.embedder.reset_states()
    expected = job.embedder.embed_sentences(few, job.slots)
    reference = models.Embedder(models.build(job.model, backend="reference"))
    errors = {ENGINE: max(agreement.by_layer(expected, reference.embed_sentences(few, job.slots)))}
    agreement.require(f"{job.model}, the engine against reference", errors[ENGINE], agreement.limit("highest"))
    for name, layout in chosen.items():
        ours = vectors_of(job.write(layout, text))
        errors[name] = agreement.relative_error(ours, expected)
        agreement.require(f"{job.model}, {name} against the engine", errors[name], layout.limit)
        theirs = vectors_of(command(job, layout, text))
        agreement.require(f"{job.model}, {name} against the command's", agreement.relative_error(ours, theirs), 0.0)
    return errors


def vectors_of(path: Path) -> list[np.ndarray]:
    from elmo_fast import open_embeddings

    with open_embeddings(path) as opened:
        return [opened[number] for number in range(len(opened))]


def command(job: Job, layout: Layout, text: Path) -> Path:
    """The file that the command itself writes."""
    from elmo_fast.cli import main

    output = job.target(layout, "commanded")
    arguments = [*command_arguments(text, output, layout, job.files), "--batch-size", str(job.slots)]
    if status := main(arguments):
        raise RuntimeError(f"elmo-fast embed: expected it to write {layout.name}, got status {status}")
    return output


def command_arguments(text: Path, output: Path, layout: Layout, files: tuple[Path, Path]) -> list[str]:
    options_file, weight_file = map(str, files)
    return ["embed", str(text), str(output), "--all", *layout.flags, "--options-file", options_file, "--weight-file",
            weight_file, "--quiet"]


# ---- speed ---------------------------------------------------------------------------------


def speed_rows(job: Job, chosen: dict[str, Layout], errors: dict, arguments: argparse.Namespace) -> list[dict]:
    """A row for the engine and each layout, in tokens per second, with its share of the engine's."""
    turns = {ENGINE: job.engine, **{name: functools.partial(job.whole, layout) for name, layout in chosen.items()}}
    for turn in turns.values():
        turn()
    speeds = common.alternate(turns, arguments.rounds)
    rows = []
    for name, samples in speeds.items():
        layout = chosen.get(name)
        share = float(np.median(np.divide(samples, speeds[ENGINE])))
        rows.append(common.row(common.Timing.of(samples), "tokens/s", workload=arguments.workload, model=job.model,
                               way="text file to file" if layout else f"slots of {job.slots}", variant=name,
                               samples=True, share_of_engine=share if layout else None, goal=layout and layout.goal,
                               error=errors[name], limit=layout.limit if layout else agreement.limit("highest")))
    return rows


# ---- stages --------------------------------------------------------------------------------


def staged(watch: Stopwatch, runner):
    """A `Runner` whose reading and embedding are stages."""
    return replace(runner, group=watch.items("reading", runner.group), run=watch.items("engine", runner.run))


@contextlib.contextmanager
def watched(watch: Stopwatch, job: Job) -> Iterator[None]:
    """Every stage of `Job.write` in the body is measured."""
    from elmo_fast.embed import run as embed_run
    from elmo_fast.engine.tokens import TokenVectors
    from elmo_fast.vectors import spec, writer
    from elmo_fast.vectors.layouts import text_vectors

    places = [(TokenVectors, "number", "token mapping"), (spec.OutputSpec, "apply", "converting"),
              (job.embedder.bilm.token_source, "token_ids", "token mapping"), (text_vectors, "narrow", "converting"),
              (writer.SegmentWriter, "_work", "writing"), (embed_run._Run, "finish", "writing")]
    if importlib.util.find_spec("pyarrow"):
        from elmo_fast.vectors.layouts import columns

        places.append((columns, "narrow", "converting"))
    with contextlib.ExitStack() as stack:
        for owner, name, stage in places:
            stack.enter_context(mock.patch.object(owner, name, watch.calls(stage, getattr(owner, name))))
        yield


def cpu_by_stage(job: Job, layout: Layout) -> dict[str, float]:
    """CPU seconds of a run by stage.

    The engine's helper threads are there before the run; threads that it starts besides its writer convert.
    """
    watch, before = Stopwatch(), helper_threads()
    begin = time.process_time()
    with watched(watch, job), watch.stage("other"):
        job.write(layout, watch=watch)
    seconds = watch.seconds
    rest = time.process_time() - begin - sum(seconds.values())
    after = helper_threads()
    helping = sum(after.get(number, since) - since for number, since in before.items()) if before else rest
    seconds["engine"] += helping
    seconds["converting"] += max(0.0, rest - helping)
    return {name: seconds[name] for name in STAGES}


def stage_rows(job: Job, chosen: dict[str, Layout], errors: dict, arguments: argparse.Namespace) -> list[dict]:
    """A row for each layout and stage: microseconds of CPU time a token, and their share of all stages."""
    for layout in chosen.values():
        job.whole(layout)
    found = common.take_turns({name: functools.partial(cpu_by_stage, job, layout) for name, layout in chosen.items()},
                              arguments.rounds)
    rows = []
    for (name, runs), stage in itertools.product(found.items(), STAGES):
        timing = common.Timing.of([1e6 * run[stage] / job.tokens for run in runs])
        share = float(np.median([run[stage] / sum(run.values()) for run in runs]))
        rows.append(common.row(timing, "us/token", workload=arguments.workload, model=job.model, way="CPU time",
                               variant=name, stage=stage, share_of_time=share, error=errors[name],
                               limit=chosen[name].limit))
    return rows


# ---- memory -------------------------------------------------------------------------------


def memory_rows(size: str, chosen: dict[str, Layout], arguments: argparse.Namespace, folder: Path) -> list[dict]:
    """A row for each layout and number of short sentences: the peak of a process in MiB."""
    bilm = models.build(size, backend="auto", state="zero")
    files = models.write_files(folder, size)
    rows = []
    for count in counts(arguments.most):
        sentences, source = workloads.short_sentences(count)
        text = write_text(folder / "short.txt", sentences)
        ends = [sentences[0], sentences[-1]]
        expected = models.Embedder(bilm).embed_sentences(ends, arguments.slots)
        for name, layout in chosen.items():
            output = folder / f"long{layout.suffix}"
            peak = peak_mib([*command_arguments(text, output, layout, files), "--state", "zero"], arguments.threads)
            error = compare_ends(output, len(sentences), expected, f"{name} of {count:,} sentences", layout.limit)
            output.unlink()
            rows.append(common.row(common.Timing.of([peak]), "MiB", workload="short sentences", model=size,
                                   way="memory", variant=name, sentences=count, tokens=sum(map(len, sentences)),
                                   text=source, error=error, limit=layout.limit))
            print(f"memory, {name}, {count:,} sentences: {peak:,.0f} MiB", file=sys.stderr)
    return rows


def counts(most: int) -> list[int]:
    """10,000, 30,000, 100,000 ... up to `most`, which is the last."""
    steps = itertools.takewhile(lambda count: count < most, (LEAST * 10 ** (k // 2) * (1, 3)[k % 2]
                                                             for k in itertools.count()))
    return [*steps, most]


def compare_ends(path: Path, count: int, expected: list[np.ndarray], what: str, limit: float) -> float:
    """The error of the first and the last text; raises where it is above the limit, or a text is missing."""
    from elmo_fast import open_embeddings

    with open_embeddings(path) as opened:
        if len(opened) != count:
            raise ValueError(f"{what}: expected {count:,} texts, found {len(opened):,}")
        error = agreement.relative_error([opened[0], opened[count - 1]], expected)
    agreement.require(what, error, limit)
    return error


# ---- all parts -----------------------------------------------------------------------------


def run(arguments: argparse.Namespace) -> dict:
    """The content of the results file."""
    chosen, absent = layouts(arguments.layouts)
    rows, facts = [], {}
    for model in arguments.models if {"speed", "stages"} & set(arguments.parts) else []:
        sentences, source = workloads.read(arguments.workload, arguments.sentences)
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            job = Job(model, sentences, arguments.slots, Path(folder))
            errors = check(job, chosen)
            for part, measure in (("speed", speed_rows), ("stages", stage_rows)):
                rows += measure(job, chosen, errors, arguments) if part in arguments.parts else []
        facts[model] = {"text": source, **common.text_facts(sentences, arguments.slots)}
    if "memory" in arguments.parts:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            rows += memory_rows(arguments.memory_model, chosen, arguments, Path(folder))
    settings = {"states": "carry", "slots": arguments.slots, "absent": absent, "texts": facts,
                "goals": {name: layout.goal for name, layout in chosen.items() if layout.goal}}
    return common.document("io", settings, rows)


def table(content: dict) -> str:
    """Results as lines."""
    lines = []
    for row in content["results"]:
        about = row.get("stage") or (f"{row['sentences']:,} sentences" if "sentences" in row else row["way"])
        share = row.get("share_of_engine", row.get("share_of_time"))
        lines.append(f"{row['model']}, {row['variant']}, {about}: {row['median']:,.4g} {row['unit']}"
                     + (f", {share:.0%}" if share is not None else ""))
    return "\n".join(lines)


def main() -> int:
    parser = common.make_parser(
        __doc__, "io.json", ("--slots", 64, "sentences at a time"),
        ("--sentences", 4096, "sentences of a turn"), ("--rounds", 5, "turns of each"),
        ("--most", 1_000_000, "short sentences of the longest run of `memory`"))
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help="(default: all)")
    add("--models", nargs="+", choices=workloads.MODELS, default=["bundled", "small"], metavar="MODEL",
        help="of speed and stages (default: bundled small)")
    add("--memory-model", choices=workloads.MODELS, default="tiny", metavar="MODEL", help="(default: tiny)")
    add("--workload", choices=workloads.TEXTS, default="running text", metavar="TEXT", help="(default: running text)")
    add("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS), metavar="LAYOUT", help="(default: all)")
    add("--folder", type=Path, metavar="DIR", help="where files go for the time of the run (default: the system's)")
    return common.run_and_write(parser.parse_args(), run, "io.json", table)


if __name__ == "__main__":
    sys.exit(main())
