"""Two workers of `embed_dataset` beside one on this machine, a thread each, by turns; and rates of a worker.

Tokens/s are those between the arrivals of the first blocks, one of each worker, and of the last: a run's start is left
out. The vectors are first compared with those of one process, and have to be the same bits. `rates` in the settings are
those of the reader (tokens/s, to blocks) and of a worker's writing (bytes/s, from arrays to the file system).
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


class Arrivals:
    """When blocks arrived, and the tokens in each."""

    def __init__(self):
        self.found: list[tuple[float, int]] = []

    def add(self, tokens: int) -> None:
        self.found.append((time.perf_counter(), tokens))

    def rate(self, workers: int) -> float:
        """Tokens/s after the first block of each worker."""
        (begin, _), *rest = self.found[workers - 1 :]
        return sum(tokens for _, tokens in rest) / (rest[-1][0] - begin)


def blocks_of(sentences: list[list[str]], batch_size: int) -> list:
    """Arrow tables of consecutive sentences and their numbers, each for a call of a worker."""
    import pyarrow

    from elmo_fast.scale.dataset import TEXTS_PER_SLOT

    texts = TEXTS_PER_SLOT * batch_size
    return [pyarrow.table({"number": range(begin, begin + len(block)), "tokens": block})
            for begin in range(0, len(sentences), texts) for block in [sentences[begin : begin + texts]]]


def embedded(elmo, sentences: list[list[str]], workers: int, batch_size: int):
    """The blocks with vectors, as tables, when they are there."""
    import ray.data

    from elmo_fast import embed_dataset

    ray.data.DataContext.get_current().enable_progress_bars = False
    ds = embed_dataset(ray.data.from_arrow(blocks_of(sentences, batch_size)), "tokens", model=elmo,
                       concurrency=(workers, workers), batch_size=batch_size)
    return ds.iter_batches(batch_size=None, batch_format="pyarrow")


def run_once(elmo, sentences: list[list[str]], workers: int, batch_size: int) -> float:
    """Tokens/s of `embed_dataset`."""
    arrivals = Arrivals()
    for table in embedded(elmo, sentences, workers, batch_size):
        arrivals.add(sum(len(tokens) for tokens in table.column("tokens").to_pylist()))
    return arrivals.rate(workers)


def check(elmo, sentences: list[list[str]], batch_size: int) -> None:
    """Two workers give the bits of one process, or `ValueError`."""
    expected = elmo.embed(sentences)
    seen = 0
    for table in embedded(elmo, sentences, 2, max(1, batch_size // 8)):  # several blocks a worker
        for number, vectors in zip(table.column("number").to_pylist(), table.column("elmo").to_pylist(), strict=True):
            ours, seen = np.asarray(vectors, np.float32), seen + 1
            if not np.array_equal(ours, expected[number]):
                raise ValueError(f"text {number}: expected the vectors of one process, got others, apart by "
                                 f"{np.abs(ours - expected[number]).max():.3g}")
    if seen != len(sentences):
        raise ValueError(f"expected {len(sentences)} texts, got {seen}")


def rates(elmo, sentences: list[list[str]], batch_size: int, folder: Path) -> dict[str, float]:
    """Of the reader, tokens/s, and of a worker's writing, bytes/s, each of them the median of five."""
    from elmo_fast.vectors.layouts import segment
    from elmo_fast.vectors.layouts.text_vectors import TextVectors
    from elmo_fast.vectors.spec import OutputSpec

    some = sentences[:400]
    arrays = elmo.embed(some)
    read, host = [], []
    for turn in range(5):
        begin = time.perf_counter()
        blocks = [pickle.dumps(block) for block in blocks_of(sentences, batch_size)]
        read.append(sum(map(len, sentences)) / (time.perf_counter() - begin))
        assert blocks
        path, begin = folder / f"{turn}.parquet", time.perf_counter()
        with segment("parquet", path, path, OutputSpec("all")) as writer:
            for number, (tokens, vectors) in enumerate(zip(some, arrays)):
                writer.write(TextVectors(str(number), "", tokens, None, vectors))
        host.append(sum(array.nbytes for array in arrays) / (time.perf_counter() - begin))
    return common.rounded({"read": float(np.median(read)), "host": float(np.median(host))})


def measure(arguments: argparse.Namespace) -> dict:
    from elmo_fast import LoadedElmo

    bilm = models.build(arguments.size, backend="auto")
    bilm.state = "warm"
    elmo = LoadedElmo(bilm)
    found, source = common.running_text(arguments.sentences)
    sentences = list(itertools.islice(itertools.cycle(found), arguments.sentences * arguments.repeats))
    check(elmo, found[:300], arguments.batch_size)
    speeds = common.take_turns({count: lambda count=count: run_once(elmo, sentences, count, arguments.batch_size)
                                for count in COUNTS}, arguments.rounds)
    with tempfile.TemporaryDirectory() as name:
        rate = rates(elmo, sentences, arguments.batch_size, Path(name))
    results = [common.rounded({"workers": count, "unit": "tokens/s", **common.Timing.of(samples).as_dict(samples=True),
                               "times_as_fast": float(np.median(np.divide(samples, speeds[COUNTS[0]])))})
               for count, samples in speeds.items()]
    about = {"size": arguments.size, "state": "warm", "text": source, "threads_of_a_worker": 1,
             "batch_size": arguments.batch_size, **common.text_facts(sentences, arguments.batch_size),
             "times_as_fast_as": "1 worker", "agreement": "to the bit, 300 texts", "rates": rate}
    return common.document("scale", about, results)


def report(content: dict) -> str:
    return "\n".join(f"{case['workers']} workers: {case['median']:,.0f} tokens/s, {case['times_as_fast']:.2f} times as "
                     "fast as one" for case in content["results"])


def main() -> int:
    parser = common.make_parser(
        __doc__, "scale.json", ("--sentences", 3200, "sentences of the text"),
        ("--repeats", 2, "times that they are embedded in a run"), ("--rounds", ROUNDS, "runs of each"),
        ("--batch-size", 16, "texts that a worker runs at a time"))
    parser.add_argument("--size", default="small", choices=common.SIZES, help="(default: %(default)s)")
    return common.run_and_write(parser.parse_args(), measure, "scale.json", report)


if __name__ == "__main__":
    sys.exit(main())
