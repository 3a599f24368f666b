"""Two workers of `embed --ray` beside one on this machine, a thread each, by turns; and the rates of docs/scaling.md.

Tokens/s are those between the arrivals of the first shards, one of each worker, and of the last: a run's start is left
out. The vectors are first compared with those of one process, and have to be the same bits. `rates` in the settings are
those of the reader (tokens/s, to shards) and of a worker's writing (bytes/s, from arrays to the file system), which
`python -m benchmarks.report` takes for the page from the file.
"""

import argparse
import itertools
import pickle
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import common, models

ROUNDS = 3
COUNTS = (1, 2)  # workers
BATCH_SIZE = 64


class Arrivals:
    """In the place of the command's bar: when shards arrived, and the tokens in each."""

    def __init__(self):
        self.found: list[tuple[float, int]] = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def update(self, tokens: int, texts: int) -> None:
        self.found.append((time.perf_counter(), tokens))

    def rate(self, workers: int) -> float:
        """Tokens/s after the first shard of each worker."""
        (begin, _), *rest = self.found[workers - 1 :]
        return sum(tokens for _, tokens in rest) / (rest[-1][0] - begin)


def texts_of(sentences: list[list[str]]):
    """What `embed_on_ray` embeds."""
    from elmo_fast.text.readers import Text

    return (Text(str(number), " ".join(tokens), tokens) for number, tokens in enumerate(sentences))


def run_once(bilm, settings, sentences: list[list[str]], workers: int, shard_tokens: int, folder: Path) -> float:
    """Tokens/s of `embed_on_ray`; the directory stays."""
    from elmo_fast.scale import Cluster
    from elmo_fast.scale.run import embed_on_ray
    from elmo_fast.vectors.spec import Target

    arrivals = Arrivals()
    embed_on_ray(texts_of(sentences), bilm, Target(folder, "parquet", settings.form), settings,
                 Cluster(workers=workers), progress=arrivals, shard_tokens=shard_tokens)
    return arrivals.rate(workers)


def check(elmo, settings, sentences: list[list[str]], shard_tokens: int, folder: Path) -> None:
    """Two workers give the bits of one process, or `ValueError`."""
    import elmo_fast

    run_once(elmo.bilm, settings, sentences, 2, max(1, shard_tokens // 8), folder)  # several shards a worker
    with elmo_fast.open_embeddings(folder) as found:
        for number, (one, other) in enumerate(zip(found, elmo.embed(sentences), strict=True)):
            if not np.array_equal(one, other):
                raise ValueError(f"text {number}: expected the vectors of one process, got others, apart by "
                                 f"{np.abs(one - other).max():.3g}")


def rates(elmo, settings, sentences: list[list[str]], folder: Path) -> dict[str, float]:
    """Of the reader, tokens/s, and of a worker's writing, bytes/s, each of them the median of five."""
    from elmo_fast.files.manifest import StoredFile
    from elmo_fast.scale.run import shards_of
    from elmo_fast.vectors.layouts import segment
    from elmo_fast.vectors.layouts.text_vectors import TextVectors

    some = sentences[:400]
    arrays = elmo.embed(some)
    read, host = [], []
    for turn in range(5):
        begin = time.perf_counter()
        shards = [pickle.dumps(shard) for shard in shards_of(texts_of(sentences))]
        read.append(sum(map(len, sentences)) / (time.perf_counter() - begin))
        assert shards
        path, begin = folder / f"{turn}.parquet", time.perf_counter()
        with segment("parquet", path, path, settings.form) as writer:
            for number, (tokens, vectors) in enumerate(zip(some, arrays)):
                writer.write(TextVectors(str(number), "", tokens, None, vectors))
        StoredFile.of(path)
        host.append(sum(array.nbytes for array in arrays) / (time.perf_counter() - begin))
    return common.rounded({"read": float(np.median(read)), "host": float(np.median(host))})


def measure(arguments: argparse.Namespace) -> dict:
    from elmo_fast import LoadedElmo
    from elmo_fast.scale.workers import Settings
    from elmo_fast.vectors.spec import OutputSpec

    bilm = models.build(arguments.size, backend="auto")
    bilm.state = "warm"
    elmo, settings = LoadedElmo(bilm), Settings(OutputSpec("all"), "warm", BATCH_SIZE, 1)
    found, source = common.running_text(arguments.sentences)
    sentences = list(itertools.islice(itertools.cycle(found), arguments.sentences * arguments.repeats))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        check(elmo, settings, found[:300], arguments.shard_tokens, folder / "check")
        turns = itertools.count()
        speeds = common.take_turns(
            {count: lambda count=count: run_once(bilm, settings, sentences, count, arguments.shard_tokens,
                                                        folder / str(next(turns))) for count in COUNTS},
            arguments.rounds)
        rate = rates(elmo, settings, sentences, folder)
    results = [common.rounded({"workers": count, "unit": "tokens/s", **common.Timing.of(samples).as_dict(samples=True),
                               "times_as_fast": float(np.median(np.divide(samples, speeds[COUNTS[0]])))})
               for count, samples in speeds.items()]
    about = {"size": arguments.size, "state": "warm", "text": source, "threads_of_a_worker": 1,
             "shard_tokens": arguments.shard_tokens, **common.text_facts(sentences, BATCH_SIZE),
             "times_as_fast_as": "1 worker", "agreement": "to the bit, 300 texts", "rates": rate}
    return common.document("scale", about, results)


def report(content: dict) -> str:
    return "\n".join(f"{case['workers']} workers: {case['median']:,.0f} tokens/s, {case['times_as_fast']:.2f} times as "
                     "fast as one" for case in content["results"])


def main() -> int:
    parser = common.make_parser(
        __doc__, "scale.json", ("--sentences", 3200, "sentences of the text"),
        ("--repeats", 2, "times that they are embedded in a run"), ("--rounds", ROUNDS, "runs of each"),
        ("--shard-tokens", 4096, "tokens of a shard"))
    parser.add_argument("--size", default="small", choices=common.SIZES, help="(default: %(default)s)")
    return common.run_and_write(parser.parse_args(), measure, "scale.json", report)


if __name__ == "__main__":
    sys.exit(main())
