"""Stage `eager`: the whole model from character ids on the device, as it stands, and its token encoder alone."""

import sys

from benchmarks import models
from benchmarks.gpu import clock, grid
from benchmarks.gpu import stage as stages


def model_call(bilm, device: str):
    def prepare(batch: int, length: int):
        ids = models.device_ids(grid.fixed_batch(batch, length), device)
        bilm.reset_states()
        return lambda: bilm(ids)

    return prepare


def encoder_call(bilm, device: str):
    def prepare(batch: int, length: int):
        ids = models.device_ids(grid.fixed_batch(batch, length), device).flatten(0, 1)
        return lambda: bilm.token_source(ids, bilm.backend)

    return prepare


def work(stage: stages.Stage) -> None:
    bilm = models.build(grid.size(stage)).to(stage.device)
    for backend in models.backends(stage.device):
        bilm.backend = backend
        facts = {"backend": backend, "precision": bilm.precision}
        grid.Grid(stage, "model", model_call(bilm, stage.device), facts).run()
        shortest = [shape for shape in grid.shapes(stage) if shape[1] == grid.shapes(stage)[0][1]]
        grid.Grid(stage, "token encoder", encoder_call(bilm, stage.device), facts).run(shortest)
    clock.synchronize(stage.device)


if __name__ == "__main__":
    sys.exit(stages.run("eager", work, stages.parser(__doc__).parse_args()))
