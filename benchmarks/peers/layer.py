"""One LSTM layer by turns with oneDNN's LSTM with projection and with `torch.nn.LSTM(proj_size)`.

Rows of one length, zero states and no clips, which neither has, both directions; outputs are compared first. oneDNN has
one direction a call, so two calls count.

    python -m benchmarks.peers.layer --onednn [PREFIX] --torch-lstm      # into results/cpu/layer-SIZE.json
"""

import argparse
import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks import agreement, common, models, recorded
from benchmarks.peers import onednn, torch_lstm
from elmo_fast.engine.schedule import make_schedule
from elmo_fast.ops.projected_lstm import projected_lstm

STEPS = 12  # of all rows
SECONDS = 0.3  # of calls in a turn


def direction(cells: int, projection: int) -> tuple[torch.Tensor, ...]:
    """W [2 P, 4 D], B [4 D], W_P [D, P], spread as a new model's."""
    w, w_p = torch.empty(2 * projection, 4 * cells), torch.empty(cells, projection)
    for matrix in (w, w_p):
        torch.nn.init.xavier_uniform_(matrix)
    return w, torch.zeros(4 * cells), w_p


@dataclass(frozen=True)
class Layer:
    """Inputs [steps, rows, P] and the weights of both directions."""

    x: torch.Tensor
    weights: tuple[tuple[torch.Tensor, ...], ...]

    @classmethod
    def random(cls, size: str, rows: int) -> "Layer":
        cells, projection, _ = common.SIZES[size]
        torch.manual_seed(0)
        return cls(torch.randn(STEPS, rows, projection), tuple(direction(cells, projection) for _ in range(2)))

    def calls(self, precision: str) -> tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], np.ndarray]]:
        """A call of our layer, and what makes its outputs [steps, rows, 2 P] of either direction by the step read."""
        steps, rows, projection = self.x.shape
        schedule = make_schedule(np.full(rows, steps))
        inputs, packed = self.x.transpose(0, 1).reshape(-1, projection), torch.from_numpy(schedule.tokens)
        state = tuple(torch.zeros(rows, 2 * size) for size in (projection, len(self.weights[0][2])))

        def call() -> torch.Tensor:
            with torch.no_grad():
                return projected_lstm(inputs, packed, schedule, state, self.weights, backend="native",
                                      precision=precision)[0]

        def by_step(out: torch.Tensor) -> np.ndarray:
            forward, backward = out.reshape(steps, rows, 2 * projection).chunk(2, dim=2)
            return torch.cat([forward, backward.flip(0)], dim=2).numpy()  # packed, the backward half has its own steps

        return call, by_step


# ---- comparing -----------------------------------------------------------------------------


def compare(arguments: argparse.Namespace) -> dict:
    """The content of the results file."""
    if not (arguments.onednn or arguments.torch_lstm):
        raise ValueError("peers: expected --onednn or --torch-lstm, got neither")
    absent = {name: why for name, why in models.absent_precisions().items() if name in onednn.TYPES}
    results = [row for precision in onednn.TYPES if precision not in absent for rows in arguments.rows
               for row in beside(arguments, rows, precision)]
    settings = {"steps": STEPS, "directions": 2, "absent": absent}
    return common.document(f"layer {arguments.size}", settings, results)


def beside(arguments: argparse.Namespace, rows: int, precision: str) -> list[dict]:
    """A row for ours and for each peer, in seconds for all steps of both directions."""
    layer = Layer.random(arguments.size, rows)
    call, by_step = layer.calls(precision)
    with contextlib.ExitStack() as stack:
        peers = {}
        if arguments.onednn:
            weights = tuple(part.numpy() for part in layer.weights[0])
            peers["onednn"] = stack.enter_context(onednn.OneDnnLstm(arguments.onednn, precision, layer.x.numpy(),
                                                                    weights))
        if arguments.torch_lstm and precision == "highest":
            peers["torch.nn.LSTM"] = torch_lstm.TorchLstm(layer.x, layer.weights)
        if not peers:
            return []
        ours, errors = by_step(call()), {}
        for name, peer in peers.items():
            errors[name] = agreement.relative_error([ours[..., : peer.outputs.shape[2]]], [peer.outputs])
            agreement.require(f"{precision} against {name}", errors[name], 2 * agreement.limit(precision))
        count = max(1, round(SECONDS / common.seconds_per_call(call, 1)))
        samples = common.take_turns({"ours": lambda: common.seconds_per_call(call, count), **{
            name: lambda peer=peer: peer.seconds(count) / count for name, peer in peers.items()}}, arguments.rounds)
    timings = {name: common.Timing.of(seconds, count) for name, seconds in samples.items()}
    return [common.row(timing, "s", workload="random rows", model=arguments.size, way=f"{rows} rows", variant=name,
                       precision=precision, rows=rows, error=errors.get(name, max(errors.values(), default=None)),
                       limit=2 * agreement.limit(precision), implementation=getattr(peers.get(name), "implementation",
                                                                                    None),
                       times_as_fast_as_ours=timing.times_as_fast_as(timings["ours"]))
            for name, timing in timings.items()]


def table(content: dict) -> str:
    """Results as Markdown; times of both directions of a layer in ms a step."""
    lines = ["| size | rows | precision | variant | ms a step | implementation | times as fast as ours |",
             "|---|---|---|---|---|---|---|"]
    for row in content["results"]:
        cells = [row["model"], row["rows"], row["precision"], row["variant"], f"{1e3 * row['median'] / STEPS:.2f}",
                 row.get("implementation", ""), f"{row['times_as_fast_as_ours']:.2f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> int:
    parser = common.make_parser(__doc__, "layer-SIZE.json or layer-SIZE-amx.json", ("--rounds", 9, "turns of each"))
    parser.add_argument("--onednn", type=Path, nargs="?", const=Path(sys.prefix), metavar="PREFIX",
                        help="a directory with oneDNN's include/ and lib/ (without PREFIX: Python's own prefix)")
    parser.add_argument("--torch-lstm", action="store_true", help="torch.nn.LSTM(proj_size), in fp32")
    parser.add_argument("--size", choices=common.SIZES, default="original", help="model size (default: original)")
    parser.add_argument("--rows", type=common.positive, nargs="+", default=[25, 64, 256], metavar="N",
                        help="rows of a step (default: 25 64 256)")
    arguments = parser.parse_args()
    return common.run_and_write(arguments, compare, f"layer-{arguments.size}{recorded.suffix()}.json", table)


if __name__ == "__main__":
    sys.exit(main())
