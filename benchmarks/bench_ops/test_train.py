"""Times forward and backward of one LSTM layer and of the char encoder, as a training step calls them.

    python -m pytest benchmarks/bench_ops/test_train.py --benchmark-only -k "lstm and d512-p64 and b64"
    python -m pytest benchmarks/bench_ops/test_train.py --benchmark-only --benchmark-timer=time.process_time

The second counts the CPU time of all threads, which other programs on the machine disturb less.

A batch is `batch` rows of 20 steps of running text, every direction with its own rows, states carried in. The first
layer gathers unique token vectors; a layer above reads its own half of what the layer below gave. Gradients of every
operand are computed and weights count as edited between calls, so that packing is part of the time.

The yardstick that runs between the rounds is `torch.nn.LSTM(proj_size)`, forward and backward, on the same rows. It
has no clips and multiplies repeated tokens again, so it is a bound on what a library offers, not an ELMo. For the
encoder it is `backend="torch"`.
"""

import functools
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from benchmarks import agreement, common
from benchmarks.bench_ops import cases
from elmo_fast import Options
from elmo_fast.engine.schedule import Schedule
from elmo_fast.nn.layers.encoder import CharacterEncoder
from elmo_fast.ops.projected_lstm import projected_lstm
from elmo_fast.weights.datasets import random_weights

STEPS = 20
SIZES = {"d512-p64": (512, 64), "d512-p128": (512, 128), "d4096-p512": (4096, 512)}
FILTERS = {"f512": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 128], [6, 128]],
           "f1024": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512]]}
BATCHES = (64, 128)
CLIPS = {"cell_clip": 3.0, "proj_clip": 3.0}


@functools.cache
def rows_of_text(batch: int) -> tuple[list[str], np.ndarray]:
    """Unique tokens, and the number of each token of `2 * batch` rows of running text: int32 [2, STEPS * batch]."""
    wanted = 2 * batch * STEPS
    sentences, _ = common.running_text(wanted // 10)
    running = [token for sentence in sentences for token in sentence]
    running = (running * (wanted // len(running) + 1))[:wanted]
    numbers = {token: number for number, token in enumerate(dict.fromkeys(running))}
    index = np.array([numbers[token] for token in running], dtype=np.int32).reshape(2, batch, STEPS)
    return [*numbers], np.ascontiguousarray(index.transpose(0, 2, 1)).reshape(2, -1)


@dataclass(frozen=True)
class Layer:
    """Leaves of one call, in the order inputs, h, c, then both directions' weights."""

    leaves: list[torch.Tensor]
    rows: torch.Tensor | None
    schedule: Schedule
    grad: torch.Tensor

    def train(self, backend: str, leaves: list[torch.Tensor] | None = None) -> list[torch.Tensor]:
        """Outputs, and the gradients of all leaves."""
        leaves = leaves or self.leaves
        for leaf in leaves:
            leaf.grad = None
        inputs, h, c, *weights = leaves
        with torch.no_grad():
            weights[0].mul_(1.0)  # what an optimizer step does to what is packed
        out, _ = projected_lstm(inputs, self.rows, self.schedule, (h, c), (tuple(weights[:3]), tuple(weights[3:])),
                                **CLIPS, backend=backend)
        out.backward(self.grad.to(out.dtype))
        return [out.detach(), *(leaf.grad for leaf in leaves)]

    def exact(self) -> list[torch.Tensor]:
        return self.train("reference", [leaf.detach().double().requires_grad_() for leaf in self.leaves])


@functools.lru_cache(maxsize=1)
def layer(size: str, batch: int, which: str) -> Layer:
    cells, projection = SIZES[size]
    unique, index = rows_of_text(batch)
    count = batch * STEPS
    torch.manual_seed(cases.SEED)
    inputs = torch.randn((len(unique), projection) if which == "first" else (count, 2 * projection))
    leaves = [inputs, 0.1 * torch.randn(batch, 2 * projection), 0.1 * torch.randn(batch, 2 * cells)]
    for _ in range(2):
        leaves += [torch.empty(2 * projection, 4 * cells), torch.zeros(4 * cells), torch.empty(cells, projection)]
    for matrix in leaves[3::3] + leaves[5::3]:
        torch.nn.init.xavier_uniform_(matrix)
    schedule = Schedule(np.arange(batch), np.full(STEPS, batch, np.int32), index, np.zeros(count, dtype=bool))
    rows = torch.from_numpy(index) if which == "first" else None
    return Layer([leaf.requires_grad_() for leaf in leaves], rows, schedule, torch.randn(count, 2 * projection))


@functools.lru_cache(maxsize=1)
def bound(size: str, batch: int):
    """Forward and backward of `torch.nn.LSTM(proj_size)` on as many rows and steps."""
    cells, projection = SIZES[size]
    lstm = torch.nn.LSTM(projection, cells, proj_size=projection, bidirectional=True)
    x = torch.randn(STEPS, batch, projection, requires_grad=True)
    grad = torch.randn(STEPS, batch, 2 * projection)
    return lambda: lstm(x)[0].backward(grad)


def with_gradients(call):
    """`call` where gradients are recorded: cases times without them."""
    def run():
        with torch.enable_grad():
            call()

    return run


def compare(found: list[torch.Tensor], expected: list[torch.Tensor]) -> dict[str, float]:
    """The largest error of a gradient and its limit."""
    errors = [agreement.relative_error([one], [other]) for one, other in zip(found, expected)]
    for error in errors:
        agreement.require("gradients against the reference", error, agreement.GRADIENT_LIMIT)
    return {"error": max(errors), "limit": agreement.GRADIENT_LIMIT}


@functools.lru_cache(maxsize=1)
def expected_of_layer(size: str, batch: int, which: str) -> list[torch.Tensor]:
    """The reference's gradients: in float64, but for the original size, which takes too long."""
    operands = layer(size, batch, which)
    return operands.train("reference") if size == "d4096-p512" else operands.exact()


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("which", ["first", "above"])
@pytest.mark.parametrize("batch", BATCHES, ids="b{}".format)
@pytest.mark.parametrize("size", SIZES)
def test_lstm(request, benchmark, size, batch, which, backend):
    cases.skip_absent(backend, "highest")
    operands = layer(size, batch, which)
    checked = compare(operands.train(backend), expected_of_layer(size, batch, which))
    case = cases.Case(f"training lstm, {which} layer", size, batch, backend, "highest", batch * STEPS, checked)
    cases.timed(request, benchmark, case, with_gradients(lambda: operands.train(backend)),
                with_gradients(bound(size, batch)), "nn.LSTM without clips")


@functools.cache
def encoder(filters: str) -> CharacterEncoder:
    options = Options.from_dict(common.standard_options("small", n_layers=1) | {
        "char_cnn": {"embedding": {"dim": 16}, "filters": FILTERS[filters], "n_highway": 1, "n_characters": 262,
                     "max_characters_per_token": 50, "activation": "relu"}})
    # Of a seed with which no two windows of the texts nearly tie: fp32 and float64 would take different maxima.
    return CharacterEncoder.of_weights(options, random_weights(options, seed=cases.SEED + 1), requires_grad=True)


@functools.lru_cache(maxsize=1)
def expected_of_encoder(filters: str, batch: int) -> list[torch.Tensor]:
    model = encoder(filters)
    try:
        return train_encoder(model.double(), batch, "reference")
    finally:
        model.float()


def train_encoder(model: CharacterEncoder, batch: int, backend: str) -> list[torch.Tensor]:
    """Vectors of a batch's unique tokens, and the gradients of all parameters."""
    model.zero_grad()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.0)
    out = model.encode_rows(token_ids(batch), backend)
    torch.manual_seed(cases.SEED)
    out.backward(torch.randn(out.shape).to(out.dtype))
    return [out.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


@functools.cache
def token_ids(batch: int) -> torch.Tensor:
    return encoder("f512").token_ids(rows_of_text(batch)[0])


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("batch", BATCHES, ids="b{}".format)
@pytest.mark.parametrize("filters", FILTERS)
def test_encoder(request, benchmark, filters, batch, backend):
    cases.skip_absent(backend, "highest")
    model = encoder(filters)
    checked = compare(train_encoder(model, batch, backend), expected_of_encoder(filters, batch))
    case = cases.Case("training char encoder", filters, batch, backend, "highest", batch * STEPS, checked)
    cases.timed(request, benchmark, case, with_gradients(lambda: train_encoder(model, batch, backend)),
                with_gradients(lambda: train_encoder(model, batch, "torch")), "torch")
