"""Complete models on a GPU, by slots and precision, states carried: `python -m benchmarks.gpu.text`; run.sh runs it.

First the time of this process from files to a model on the device, and of its first call. Then, for each number of
slots, by turns: a stream of running text in each precision, from lists of tokens to NumPy arrays that are dropped; with
64 slots also batches of 64, and the peers of bench_embed in such batches (AllenNLP's code, or where no checkout is
named our reference path; our backend `torch`), whose numbers were compared first. Then calls of as many sentences as
slots, with p50 and p99. A row of a stream has CPU microseconds of the host a token (of all threads, waits that spin
too), microseconds a token in which the device computes or copies (a pass under PyTorch's profiler) and its share of the
time, peak memory, and joules per 1,000 tokens. The file is written after each number of slots.
"""

import argparse
import collections
import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import elmo_fast
from benchmarks import bench_embed, common, models, workloads

# Sentences of a stream by slots: what matters most comes first. The first number is that of batches as well.
SENTENCES, DRY = {64: 1536, 1: 64, 1024: 6144, 256: 4096, 8: 256}, {2: 4, 1: 2}
CALLS_SECONDS = 0.4  # of calls with a precision and a number of slots


def energy_counter(device: str) -> Callable[[], float] | str:
    """The joules that the device has used so far, as a function; a reason where nothing counts them."""
    if device == "cpu":
        return "the CPU has no such counter here"
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception as error:  # pynvml's are of many types
        return f"nvidia-ml-py: {type(error).__name__}: {error}"
    return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3


def busy_seconds(work: Callable[[], object], on_gpu: bool) -> float:
    """The seconds of `work` in which the device computes or copies; of PyTorch's operations in a dry run."""
    kind = "CUDA" if on_gpu else "CPU"
    with torch.profiler.profile(activities=[getattr(torch.profiler.ProfilerActivity, kind)]) as recorded:
        work()
        if on_gpu:
            torch.cuda.synchronize()
    spans = sorted((event.time_range.start, event.time_range.end) for event in recorded.events()
                   if event.device_type == getattr(torch.autograd.DeviceType, kind))
    busy = end = 0.0  # microseconds
    for start, stop in spans:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return busy / 1e6


def stream(embedder: models.Embedder, sentences: list, slots: int) -> int:
    """Embed all sentences from zero states and drop the vectors; returns the number of tokens."""
    embedder.reset_states()
    embedder.bilm.precision = embedder.precision
    collections.deque(embedder.embedder.embed_sentences(sentences, slots), maxlen=0)
    return bench_embed.count([sentences])


def metered(turn: Callable[[], int], energy: Callable[[], float] | str, spent: collections.Counter) -> Callable:
    """The turn, which adds its CPU seconds, joules and tokens to `spent`."""
    counter = (lambda: 0.0) if isinstance(energy, str) else energy

    def run() -> int:
        cpu, joules = time.process_time(), counter()
        tokens = turn()
        spent.update(cpu=time.process_time() - cpu, joules=counter() - joules, tokens=tokens)
        return tokens

    return run


def start(arguments: argparse.Namespace) -> list[dict]:
    """Rows of a model's way from files to the device, and of its first call and the next one."""
    sentence = [workloads.running_text(1)[0][0]]
    with tempfile.TemporaryDirectory() as folder:
        models.write_files(Path(folder), arguments.model)
        source, moments = "bundled" if arguments.model == "bundled" else folder, [time.perf_counter()]
        elmo = elmo_fast.load(source, device=arguments.device, precision="medium")
        moments.append(time.perf_counter())
        for _ in range(2):
            elmo.embed(sentence)
            moments.append(time.perf_counter())
    return [common.row(common.Timing.of([seconds]), "s", workload="one sentence", model=arguments.model, way=way,
                       variant="ours", precision="medium")
            for way, seconds in zip(("load", "first call", "second call"), np.diff(moments).tolist())]


class Streams:
    """The rows of all numbers of slots, of a model that was compared with its peers."""

    def __init__(self, setup: bench_embed.Setup, energy: Callable[[], float] | str, rounds: int):
        self.setup, self.energy, self.rounds = setup, energy, rounds
        self.on_gpu = setup.device != "cpu"

    def rows(self, slots: int, text: bench_embed.Text, peer_batches: int) -> list[dict]:
        """The rows of streams, batches and peers with a number of slots."""
        turns = {(f"slots of {slots}", "ours", precision): lambda embedder=embedder: stream(embedder, text.sentences,
                                                                                           slots)
                 for precision, embedder in self.setup.ours.items()}
        if slots == self.setup.batch_size:
            way = f"one batch of {slots}"
            turns |= {(way, "ours", precision): bench_embed.whole_turn(text, bench_embed.run_over, embedder,
                                                                       text.groups)
                      for precision, embedder in self.setup.ours.items()}
            turns |= {(way, name, "highest"): bench_embed.peer_turn(peer, text, peer_batches)
                      for name, peer in self.setup.slow.items()}
        memory = {key: self.warmed(turn) for key, turn in turns.items()}
        spent = collections.defaultdict(collections.Counter)
        speeds = common.alternate({key: metered(turn, self.energy, spent[key]) for key, turn in turns.items()},
                                  self.rounds)
        timings = {key: common.Timing.of(values) for key, values in speeds.items()}
        slow = next((key for key in timings if key[1] == self.setup.peer_name), None)
        return [self.row(key, timing, spent[key], memory[key], slots, text,
                         slow and timings[slow]) for key, timing in timings.items()]

    def warmed(self, turn: Callable[[], int]) -> dict:
        """Run a turn for the first time: MiB of tensors before it, at the peak, and all that PyTorch held then."""
        if not self.on_gpu:
            turn()
            return {}
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        turn()
        most = before, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        return dict(zip(("mib_before", "mib_peak", "mib_reserved"), (size / 2**20 for size in most)))

    def row(self, key: tuple, timing: common.Timing, spent: collections.Counter, memory: dict, slots: int,
            text: bench_embed.Text, slow: common.Timing | None) -> dict:
        way, variant, precision = key
        joules = None if isinstance(self.energy, str) else 1e3 * spent["joules"] / spent["tokens"]
        ratio = slow and float(np.median(np.divide(timing.samples, slow.samples)))  # these are speeds
        return common.row(timing, "tokens/s", workload=text.workload, model=self.setup.model, way=way, variant=variant,
                          precision=precision, slots=slots, tokens_per_s=timing.median, times_as_fast=ratio,
                          cpu_us_per_token=1e6 * spent["cpu"] / spent["tokens"], joules_per_1000_tokens=joules,
                          **memory)

    def calls(self, slots: int, text: bench_embed.Text) -> list[dict]:
        """Rows of calls with the next sentences of the text, one after the other, in each precision."""
        rows = []
        for precision, embedder in self.setup.ours.items():
            groups, seconds = itertools.cycle(common.batches(text.sentences, slots)), []
            embedder.reset_states()
            while len(seconds) < 4 or sum(seconds) < CALLS_SECONDS:
                group, begin = next(groups), time.perf_counter()
                embedder.embed_batch(group)
                seconds.append(time.perf_counter() - begin)
            timing = common.Timing.of(seconds[1:])
            rows.append(common.row(timing, "s", workload=text.workload, model=self.setup.model, variant="ours",
                                   way=f"calls of {slots}", precision=precision, slots=slots,
                                   p99=float(np.percentile(seconds[1:], 99))))
        return rows

    def add_share(self, row: dict, sentences: list[list[str]]) -> None:
        """Add the microseconds of the device a token, and its share of the time, to the row of a stream."""
        part = sentences[: max(16, 4 * row["slots"])]
        seconds = busy_seconds(lambda: stream(self.setup.ours[row["precision"]], part, row["slots"]), self.on_gpu)
        busy = seconds / bench_embed.count([part])
        row |= common.rounded({"gpu_us_per_token": 1e6 * busy, "gpu_share": busy * row["median"]})


def run(arguments: argparse.Namespace) -> dict:
    """The content of the results file, which is also written after each number of slots."""
    results, settings, batch = start(arguments), {"model": arguments.model, "states": "carry"}, arguments.batch_size

    def document() -> dict:
        return common.document("gpu text", settings, results)

    with contextlib.ExitStack() as stack:
        setup = bench_embed.set_up(arguments, stack)
        first, energy = bench_embed.Text.read("running text", 1, batch), energy_counter(arguments.device)
        settings |= {"text": first.source, "agreement": bench_embed.check(setup, first, 1), "not_timed": [],
                     "times_as_fast_as": setup.peer_name, "no_joules": energy if isinstance(energy, str) else None}
        streams, texts, began = Streams(setup, energy, arguments.rounds), {}, time.monotonic()
        for slots, sentences in (SENTENCES if streams.on_gpu else DRY).items():
            if time.monotonic() - began > arguments.seconds:
                settings["not_timed"].append(f"{slots} slots: no time is left")
                continue
            read = texts[slots] = bench_embed.Text.read("running text", sentences // batch, batch)
            results += streams.rows(slots, read, arguments.peer_batches) + streams.calls(slots, read)
            common.write_json(arguments.out, document())
        for row in results:  # last: what a profiler needs may not be there
            if row["way"].startswith("slots"):
                streams.add_share(row, texts[row["slots"]].sentences)
                common.write_json(arguments.out, document())
    return document()


def main() -> int:
    parser = common.make_parser(__doc__, "gpu-text.json", ("--rounds", 3, "turns of each"),
                                ("--peer-batches", 2, "batches in a turn of a peer"),
                                ("--seconds", 600, "begin no number of slots after that"))
    parser.add_argument("--model", choices=workloads.MODELS, default="original", metavar="MODEL")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="cpu, for a dry run: tiny work")
    parser.add_argument("--allennlp", metavar="PATH", help="a source checkout of AllenNLP 0.9")
    parser.set_defaults(plain=["torch"], precisions=["highest", "high", "medium"], bilm_tf=None, simple_elmo=None)
    arguments = parser.parse_args()
    arguments.out = arguments.out or common.RESULTS / "cpu" / "gpu-text.json"
    arguments.batch_size = next(iter(SENTENCES if arguments.device == "cuda" else DRY))
    return common.run_and_write(arguments, run, "gpu-text.json", common.table)


if __name__ == "__main__":
    sys.exit(main())
