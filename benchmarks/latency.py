"""Latency of one sentence, idle and beside busy processes, and the time of the host: `bench_embed --latency`.

`LoadedElmo.embed` of sentences of 1, 5, 25 and 100 tokens, in every call the next ones of running text, in the warm
state, with the default number of threads and with one: seconds of a call, with p50 and p99. `engine_s` is the median of
the seconds inside the native module. Then a stream in slots, with both numbers of threads. Busy means beside as many
processes that compute without end as there are cores. The host's time is CPU microseconds per token of a stream, of
eight times as many sentences, whose token encoder and LSTM are replaced by functions that return at once.
"""

import argparse
import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np
import torch

from benchmarks import common, models, workloads
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.embed.embedder import Embedder
from elmo_fast.engine.backend import native_module
from elmo_fast.engine.native import NativeModel
from elmo_fast.environment import cores

TOKENS = (1, 5, 25, 100)
SECONDS = 0.5  # of calls in a turn
KERNELS = ("encode", "run")  # methods of the native model


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """`processes` processes compute without end during the body."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextlib.contextmanager
def engine_clock() -> Iterator[list[float]]:
    """A list whose only number counts the seconds inside the native module during the body."""
    model, spent = native_module()[0].Model, [0.0]

    def timed(kernel: Callable) -> Callable:
        def run(*given, **named):
            start = time.perf_counter()
            result = kernel(*given, **named)
            spent[0] += time.perf_counter() - start
            return result
        return run

    with contextlib.ExitStack() as stack:
        for name in KERNELS:
            stack.enter_context(mock.patch.object(model, name, timed(getattr(model, name))))
        yield spent


def calls_in_a_turn(call: Callable[[], object], threads: int, samples: list[tuple[float, float]],
                    spent: list[float]) -> Callable[[], None]:
    """A turn: calls for `SECONDS`, at least five; their seconds, and those in the engine, are added to `samples`."""
    def turn() -> None:
        torch.set_num_threads(threads)
        call()
        end = time.perf_counter() + SECONDS
        for number in itertools.count():
            before, start = spent[0], time.perf_counter()
            if number >= 5 and start > end:
                break
            call()
            samples.append((time.perf_counter() - start, spent[0] - before))
    return turn


def host_seconds(elmo: LoadedElmo, sentences: list[list[str]], slots: int, state: str, rounds: int) -> list[float]:
    """CPU seconds per token of streams whose model is replaced, after a first stream."""
    count = len({token for sentence in sentences for token in sentence}) + 2
    vectors = np.zeros((count, elmo.dim // 2), np.float32)
    samples, tokens = [], sum(map(len, sentences))
    with (mock.patch.object(NativeModel, "run", lambda _, vectors, rows, schedule, state, addresses: state),
          mock.patch.object(NativeModel, "encode", lambda _, new: vectors[: len(new)])):
        for _ in range(rounds + 1):
            start = time.process_time()
            for _ in elmo.vectors(sentences, slots, state):
                pass
            samples.append((time.process_time() - start) / tokens)
    return samples[1:]


def sentences_of(text: list[list[str]]) -> dict[int, Iterator[list[str]]]:
    """By length in `TOKENS`: running text in sentences of this length, without end."""
    running = list(itertools.chain.from_iterable(text))
    return {count: itertools.cycle([running[begin : begin + count]
                                    for begin in range(0, max(1, len(running) - count + 1), count)])
            for count in TOKENS}


def latencies(elmo: LoadedElmo, sentences: dict[int, Iterator[list[str]]], threads: list[int],
              rounds: int) -> dict[tuple[int, int], np.ndarray]:
    """Seconds of calls by tokens and threads, by turns: [calls, 2], in all and in the engine."""
    samples = {case: [] for case in itertools.product(sentences, threads)}
    with engine_clock() as spent:
        common.take_turns({(count, number): calls_in_a_turn(lambda count=count: elmo.embed([next(sentences[count])]),
                                                            number, samples[count, number], spent)
                           for count, number in samples}, rounds)
    return {case: np.array(found) for case, found in samples.items()}


def throughputs(elmo: LoadedElmo, text: list[list[str]], slots: int, threads: list[int],
                rounds: int) -> dict[int, list[float]]:
    """Tokens per second of a stream by threads, by turns."""
    def turn(number: int) -> int:
        torch.set_num_threads(number)
        return sum(vectors.shape[1] for vectors in elmo.vectors(text, slots))

    return common.alternate({number: lambda number=number: turn(number) for number in threads}, rounds)


def run(arguments: argparse.Namespace) -> dict:
    """The content of the results file."""
    long_text, source = workloads.read(arguments.workload, 8 * arguments.batches * arguments.batch_size)
    text = long_text[: arguments.batches * arguments.batch_size]
    default = torch.get_num_threads()
    threads, facts = sorted({1, default}), {"workload": arguments.workload, "model": arguments.model}
    bilm = models.build(arguments.model, backend="auto", state="warm")
    elmo = LoadedElmo(Embedder(NativeModel(bilm.options, bilm.weights())))
    sentences, results = sentences_of(long_text), []
    processes = cores()
    for load, others in (("idle", 0), ("busy", processes)):
        with busy(others):
            found = latencies(elmo, sentences, threads, arguments.rounds)
            speeds = throughputs(elmo, text, arguments.batch_size, threads, arguments.rounds)
        for (count, number), samples in found.items():
            (median, engine), (of_one, _) = np.median(samples, axis=0), np.median(found[count, 1], axis=0)
            results.append(common.row(
                common.Timing.of(samples[:, 0]), "s", **facts, way=f"{count} tokens", variant=load, threads=number,
                p99=float(np.percentile(samples[:, 0], 99)), engine_s=float(engine), tokens_per_s=count / median,
                of_one_thread=median / of_one))
        for number, samples in speeds.items():
            results.append(common.row(common.Timing.of(samples), "tokens/s", **facts, variant=load, threads=number,
                                      way=f"slots of {arguments.batch_size}", tokens_per_s=float(np.median(samples)),
                                      of_one_thread=float(np.median(samples) / np.median(speeds[1]))))
    torch.set_num_threads(default)
    for state in ("zero", "carry"):
        samples = host_seconds(elmo, long_text, arguments.batch_size, state, arguments.rounds)
        timing = common.Timing.of([1e6 * seconds for seconds in samples])
        results.append(common.row(timing, "us of CPU per token", **facts, way="host", variant=f"{state} state",
                                  threads=default))
    settings = {"model": arguments.model, "state": "warm", "text": source, "busy_processes": processes,
                "default_threads": default, **common.text_facts(text, arguments.batch_size)}
    return common.document(f"latency {arguments.model}", settings, results)


def table(content: dict) -> str:
    """Rows as Markdown."""
    lines = ["| way | load | threads | p50 | p99 | in the engine | of one thread |", "|---" * 7 + "|"]
    for row in content["results"]:
        p99, engine, ratio = (row.get(name) for name in ("p99", "engine_s", "of_one_thread"))
        cells = [row["way"], row["variant"], str(row["threads"]), f"{row['median']:,.4g} {row['unit']}",
                 f"{p99:.4g}" if p99 else "-", f"{engine:.4g}" if engine else "-", f"{ratio:.2f}" if ratio else "-"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
