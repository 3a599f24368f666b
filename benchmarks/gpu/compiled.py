"""Stage `compiled`: the reference path under torch.compile.

`compiled cell` compiles the function that one time step of one direction runs: usable for any length, the
loop stays in Python. `compiled layer` compiles a whole layer for one fixed shape, its loop unrolled: compile
time grows with the length, so only the shortest length is tried, last and while time is left.
"""

import sys
import time
from unittest import mock

import torch

from benchmarks import models
from benchmarks.gpu import clock, eager, grid
from benchmarks.gpu import stage as stages

WHOLE_BATCHES = (16, 64)


def compiler(stage: stages.Stage) -> dict:
    """A dry run traces without generating code: compilers are no part of what it tests."""
    return {"backend": "eager"} if stage.dry_run else {}


def timed_after_compiling(prepare, device: str, notes: dict):
    """The same preparation, the first call done and its seconds noted."""

    def prepared(batch: int, length: int):
        call = prepare(batch, length)
        began = time.perf_counter()
        with torch.no_grad():
            call()
        clock.synchronize(device)
        notes["first_call_seconds"] = round(time.perf_counter() - began, 2)
        return call

    return prepared


def variant(stage: stages.Stage, name: str, bilm) -> grid.Grid:
    notes: dict = {}
    prepare = timed_after_compiling(eager.model_call(bilm, stage.device), stage.device, notes)
    return grid.Grid(stage, name, prepare, {"precision": bilm.precision}, notes)


def work(stage: stages.Stage) -> None:
    from elmo_fast.ops import reference

    torch._dynamo.config.cache_size_limit = 64  # one entry for each shape of the grid
    bilm = models.build(grid.size(stage)).to(stage.device)
    cell = torch.compile(reference.lstm_cell, dynamic=False, **compiler(stage))
    with mock.patch.object(reference, "lstm_cell", cell):
        variant(stage, "compiled cell", bilm).run()
    torch._dynamo.reset()
    layer = torch.compile(reference.projected_lstm, dynamic=False, **compiler(stage))
    length = grid.shapes(stage)[0][1]
    batches = (3,) if stage.dry_run else WHOLE_BATCHES
    with mock.patch.object(reference, "projected_lstm", layer):
        variant(stage, "compiled layer", bilm).run([(batch, length) for batch in batches])


if __name__ == "__main__":
    sys.exit(stages.run("compiled", work, stages.parser(__doc__).parse_args()))
