"""Times one layer of the two-direction projected LSTM on a batch of running text: unique rows, gathered, no padding.

    python -m pytest benchmarks/bench_projected_lstm.py --benchmark-only -k "native and original and b64"
    python -m pytest benchmarks/bench_projected_lstm.py --benchmark-only --benchmark-timer=time.process_time
    python -m benchmarks.bench_projected_lstm --onednn [PREFIX]

The second counts the CPU time of all threads, which other programs on the machine disturb less.

The yardstick that runs between the rounds is `torch.nn.LSTM(proj_size)` on the same packed sequences. It has no clips
and multiplies repeated tokens again, so it is a bound on what a library offers, not an ELMo. `share` in `extra_info` is
that of the floor of this layer (benchmarks/floor.py); with the timer of CPU time, of the floor times the threads.

The third times the layer by turns with oneDNN's LSTM with projection (benchmarks/onednn.py), rows all of one length,
zero states and no clips, after their outputs were compared. oneDNN has one direction a call, so two calls count.
"""

import argparse
import functools
import itertools
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import agreement, common, floor, models, onednn, op_cases
from elmo_fast.ops.precision import PRECISIONS
from elmo_fast.ops.projected_lstm import projected_lstm
from elmo_fast.ops.schedule import Schedule, make_schedule

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
            (inputs,), state = op_cases.in_float64(inputs), op_cases.in_float64(*state)
            weights = tuple(op_cases.in_float64(*of_direction) for of_direction in weights)
        out, (h, c) = projected_lstm(inputs, self.rows, self.schedule, state, weights, backend=backend,
                                     precision=precision, **CLIPS)
        return [out, h, c]


@functools.lru_cache(maxsize=1)
def layer(size: str, batch: int) -> Layer:
    """Random operands: gates well out of their linear part, states as in the middle of a text."""
    cells, projection, _ = common.SIZES[size]
    unique, index, lengths = op_cases.numbered(batch)
    torch.manual_seed(op_cases.SEED)
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


def direction(cells: int, projection: int) -> tuple:
    """W [2 P, 4 D], B [4 D], W_P [D, P], spread as a new model's."""
    w, w_p = torch.empty(2 * projection, 4 * cells), torch.empty(cells, projection)
    for matrix in (w, w_p):
        torch.nn.init.xavier_uniform_(matrix)
    return w, torch.zeros(4 * cells), w_p


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


@pytest.mark.parametrize("backend, precision", op_cases.variants(PRECISIONS))
@pytest.mark.parametrize("batch", op_cases.batches())
@pytest.mark.parametrize("size", op_cases.SIZES)
def test_projected_lstm(request, benchmark, size, batch, backend, precision):
    op_cases.skip_absent(backend, precision)
    operands = layer(size, batch)
    with torch.no_grad():
        for found, truth in zip(operands.run(backend, precision), expected(size, batch)):
            op_cases.compare([found], [truth], precision, exact=size == "small")
    op_cases.timed(request, benchmark, lambda: operands.run(backend, precision),
                   lambda: operands.bound(operands.sequences), "nn.LSTM without clips",
                   int(operands.schedule.batch_sizes.sum()), f"projected_lstm {size} b{batch}")
    least = floor_seconds(size, precision, operands)
    if least and op_cases.clock(request) is time.process_time:
        least *= torch.get_num_threads()
    if least and benchmark.stats is not None:
        benchmark.extra_info["share"] = common.rounded(least / benchmark.stats.stats.median)


# ---- oneDNN --------------------------------------------------------------------------------

STEPS = 12  # of all rows


def compare_with_onednn(arguments: argparse.Namespace) -> dict:
    """The content of the results file."""
    absent = {name: why for name, why in models.absent_precisions().items() if name in onednn.TYPES}
    results = [beside_onednn(arguments, rows, precision)
               for precision, rows in itertools.product(onednn.TYPES, arguments.rows) if precision not in absent]
    settings = {"size": arguments.size, "steps": STEPS, "directions": 2, "absent": absent}
    return common.document(f"projected_lstm beside oneDNN {arguments.size}", settings, results)


def beside_onednn(arguments: argparse.Namespace, rows: int, precision: str) -> dict:
    cells, projection, _ = common.SIZES[arguments.size]
    torch.manual_seed(op_cases.SEED)
    x = torch.randn(STEPS, rows, projection)
    schedule = make_schedule(np.full(rows, STEPS))
    state = torch.zeros(rows, 2 * projection), torch.zeros(rows, 2 * cells)
    weights = direction(cells, projection), direction(cells, projection)
    inputs, packed = x.transpose(0, 1).reshape(-1, projection), torch.from_numpy(schedule.tokens)

    def ours() -> torch.Tensor:
        with torch.no_grad():
            return projected_lstm(inputs, packed, schedule, state, weights, backend="native", precision=precision)[0]

    peer = onednn.OneDnnLstm(arguments.onednn, precision, x.numpy(), tuple(part.numpy() for part in weights[0]))
    with peer:
        forward = ours()[:, :projection].reshape(STEPS, rows, projection)
        error = agreement.relative_error([forward.numpy()], [peer.outputs])
        agreement.require(f"{precision} against oneDNN", error, 2 * agreement.limit(precision))
        calls = max(1, round(0.3 / common.seconds_per_call(ours, 1)))
        samples = common.take_turns({"ours": lambda: common.seconds_per_call(ours, calls),
                                     "oneDNN": lambda: 2 * peer.seconds(calls) / calls}, arguments.rounds)
    ours_timing, peer_timing = (common.Timing.of(samples[name], calls) for name in ("ours", "oneDNN"))
    return {"rows": rows, "precision": precision, "implementation": peer.implementation, "error": common.rounded(error),
            "ours": ours_timing.as_dict(), "onednn": peer_timing.as_dict(),
            "times_as_fast": common.rounded(ours_timing.times_as_fast_as(peer_timing))}


def table(content: dict) -> str:
    """Results as Markdown; times of both directions of a layer in ms a step."""
    lines = ["| size | rows | precision | ours, ms a step | oneDNN | implementation | times as fast |",
             "|---|---|---|---|---|---|---|"]
    for row in content["results"]:
        ours, peer = (1e3 * row[side]["median"] / STEPS for side in ("ours", "onednn"))
        cells = [content["settings"]["size"], row["rows"], row["precision"], f"{ours:.2f}", f"{peer:.2f}",
                 row["implementation"], f"{row['times_as_fast']:.2f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> int:
    parser = common.make_parser("Time one LSTM layer by turns with oneDNN's.", "onednn-SIZE.json",
                                ("--rounds", 9, "turns of each"))
    parser.add_argument("--onednn", type=Path, required=True, nargs="?", const=Path(sys.prefix), metavar="PREFIX",
                        help="a directory with oneDNN's include/ and lib/ (without PREFIX: Python's own prefix)")
    parser.add_argument("--size", choices=common.SIZES, default="original", help="model size (default: original)")
    parser.add_argument("--rows", type=common.positive, nargs="+", default=[25, 64, 256], metavar="N",
                        help="rows of a step (default: 25 64 256)")
    arguments = parser.parse_args()
    return common.run_and_write(arguments, compare_with_onednn, f"onednn-{arguments.size}.json", table)


if __name__ == "__main__":
    sys.exit(main())
