"""Times one layer of the two-direction projected LSTM on a batch of running text: unique rows, gathered, no padding.

    python -m pytest benchmarks/bench_ops/test_projected_lstm.py --benchmark-only -k "native and original and b64"
    python -m pytest benchmarks/bench_ops/test_projected_lstm.py --benchmark-only --benchmark-timer=time.process_time

The second counts the CPU time of all threads, which other programs on the machine disturb less.

The yardstick that runs between the rounds is `torch.nn.LSTM(proj_size)` on the same packed sequences. It has no clips
and multiplies repeated tokens again, so it is a bound on what a library offers, not an ELMo. `share` in `extra_info` is
that of the floor of this layer (benchmarks/floor.py); with the timer of CPU time, of the floor times the threads.
"""

import functools
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from benchmarks import common, floor
from benchmarks.bench_ops import cases
from benchmarks.peers.layer import direction
from elmo_fast.engine.precision import PRECISIONS
from elmo_fast.engine.schedule import Schedule, make_schedule
from elmo_fast.ops.projected_lstm import projected_lstm

CLIPS = {"cell_clip": 3.0, "proj_clip": 3.0}


@dataclass(frozen=True)
class Layer:
    """Operands of one call, and the LSTM that stands beside it with its packed sequences."""

    inputs: torch.Tensor
    rows: torch.Tensor
    schedule: Schedule
    state: tuple
    weights: tuple
    bound: torch.nn.LSTM
    sequences: torch.nn.utils.rnn.PackedSequence

    def run(self, backend: str, precision: str = "highest", exact: bool = False) -> list[torch.Tensor]:
        """Outputs [S, 2 P], h and c after the last step; `exact` computes in float64."""
        inputs, state, weights = self.inputs, self.state, self.weights
        if exact:
            (inputs,), state = cases.in_float64(inputs), cases.in_float64(*state)
            weights = tuple(cases.in_float64(*of_direction) for of_direction in weights)
        out, (h, c) = projected_lstm(inputs, self.rows, self.schedule, state, weights, backend=backend,
                                     precision=precision, **CLIPS)
        return [out, h, c]


@functools.lru_cache(maxsize=1)
def layer(size: str, batch: int) -> Layer:
    """Random operands: gates well out of their linear part, states as in the middle of a text."""
    cells, projection, _ = common.SIZES[size]
    unique, index, lengths = cases.numbered(batch)
    torch.manual_seed(cases.SEED)
    inputs = torch.randn(len(unique), projection)  # [R, P]
    schedule = make_schedule(lengths)
    state = 0.1 * torch.randn(batch, 2 * projection), 0.1 * torch.randn(batch, 2 * cells)
    bound = torch.nn.LSTM(projection, cells, proj_size=projection, bidirectional=True).eval()
    sequences = torch.nn.utils.rnn.pack_sequence(
        [inputs[torch.from_numpy(part).long()] for part in np.split(index, np.cumsum(lengths)[:-1])],
        enforce_sorted=False)
    weights = direction(cells, projection), direction(cells, projection)
    rows = torch.from_numpy(index[schedule.tokens])  # [2, S]
    return Layer(inputs, rows, schedule, state, weights, bound, sequences)


@functools.lru_cache(maxsize=1)
def expected(size: str, batch: int) -> list[torch.Tensor]:
    """The reference: in float64 for small, else in fp32."""
    return layer(size, batch).run("reference", exact=size == "small")


@functools.cache
def rates(size: str, precision: str) -> floor.Rates:
    threads = torch.get_num_threads()
    return floor.measure_rates(threads, floor.kib_per_thread(common.standard_options(size), precision, threads))


def floor_seconds(size: str, precision: str, operands: Layer) -> float | None:
    """The floor of one layer with unique inputs, or None where it is not known."""
    options = common.standard_options(size, n_layers=1)
    work = floor.Work(0, np.zeros(len(operands.inputs)), operands.schedule.batch_sizes)
    try:
        measured = rates(size, precision)
        encoder = floor.encoder_flop(options, work.characters) / measured.flops(precision)
        return floor.seconds(options, work, measured, precision) - encoder
    except floor.NoFloor:
        return None


@pytest.mark.parametrize("backend, precision", cases.variants(PRECISIONS))
@pytest.mark.parametrize("batch", cases.batches())
@pytest.mark.parametrize("size", cases.SIZES)
def test_projected_lstm(request, benchmark, size, batch, backend, precision):
    cases.skip_absent(backend, precision)
    operands = layer(size, batch)
    with torch.no_grad():
        checks = [cases.compare([found], [truth], precision, exact=size == "small")
                  for found, truth in zip(operands.run(backend, precision), expected(size, batch))]
    checked = max(checks, key=lambda check: check["error"])
    least = floor_seconds(size, precision, operands)
    if least and cases.clock(request) is time.process_time:
        least *= torch.get_num_threads()
    case = cases.Case("projected_lstm", size, batch, backend, precision, int(operands.schedule.batch_sizes.sum()),
                      checked)
    cases.timed(request, benchmark, case, lambda: operands.run(backend, precision),
                lambda: operands.bound(operands.sequences), "nn.LSTM without clips", least)
