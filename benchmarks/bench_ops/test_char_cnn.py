"""Times the char-CNN, and the whole char encoder around it, on the unique tokens of a batch of running text.

    python -m pytest benchmarks/bench_ops/test_char_cnn.py --benchmark-only -k "encoder and original and b64"

The convolutions are the same in all published sizes, so they have no size here; the encoder adds highways and
projection. On the CPU these ops compute in fp32 in every precision; `--device cuda` has them all. The yardstick that
runs between the rounds is the reference.
"""

import functools

import pytest
import torch

from benchmarks import common
from benchmarks.bench_ops import cases
from elmo_fast import Options
from elmo_fast.engine.precision import PRECISIONS
from elmo_fast.nn.layers.encoder import CharacterEncoder
from elmo_fast.ops.char_cnn import char_cnn
from elmo_fast.ops.numerics import numerics
from elmo_fast.weights.datasets import random_weights


@functools.cache
def encoder(size: str, device: torch.device) -> CharacterEncoder:
    """The char encoder with random weights of a size; one LSTM layer is drawn beside it and dropped."""
    options = Options.from_dict(common.standard_options(size, n_layers=1))
    return CharacterEncoder.of_weights(options, random_weights(options, seed=cases.SEED)).eval().to(device)


@functools.cache
def token_ids(batch: int, device: torch.device) -> torch.Tensor:
    """Character ids of a batch's unique tokens: [R, 50]."""
    unique, _, _ = cases.numbered(batch)
    return encoder("small", device).token_ids([*unique]).to(device)


def convolve(model: CharacterEncoder, ids: torch.Tensor, backend: str, dtype=torch.float32) -> torch.Tensor:
    weights = {name: value.to(dtype) for name, value in model.weights().items()}
    filters = [(weights[f"CNN/W_cnn_{k}"], weights[f"CNN/b_cnn_{k}"]) for k in range(len(model.options.filters))]
    return char_cnn(ids, weights["char_embed"], filters, model.options.activation, backend=backend)


@functools.lru_cache(maxsize=1)
def expected(what: str, size: str, batch: int, device: torch.device) -> torch.Tensor:
    """The reference: in float64 for small, else in fp32."""
    model, ids = encoder(size, device), token_ids(batch, device)
    with torch.no_grad(), numerics("highest", device):
        if what == "char_cnn":
            return convolve(model, ids, "reference", torch.float64)
        if size != "small":
            return model.encode_rows(ids, "reference")
        try:
            return model.double().encode_rows(ids, "reference")
        finally:
            model.float()


def measure(request, benchmark, device, what: str, size: str, batch: int, backend: str, precision: str, run) -> None:
    if device.type == "cpu" and precision != "highest":
        pytest.skip("on the CPU these ops compute in fp32 in every precision")
    cases.skip_absent(backend, precision, device.type)
    truth = expected(what, size, batch, device)
    with torch.no_grad(), numerics(precision, device):
        checked = cases.compare([run(backend)], [truth], precision, size == "small", device.type)
        case = cases.Case(what, size, batch, backend, precision, len(token_ids(batch, device)), checked)
        cases.timed(request, benchmark, case, lambda: run(backend), lambda: run("reference"), "reference")


@pytest.mark.parametrize("backend, precision", cases.variants())
@pytest.mark.parametrize("batch", cases.batches())
def test_char_cnn(request, benchmark, device, backend, precision, batch):
    model, ids = encoder("small", device), token_ids(batch, device)
    measure(request, benchmark, device, "char_cnn", "small", batch, backend, precision,
            lambda name: convolve(model, ids, name))


@pytest.mark.parametrize("backend, precision", cases.variants(PRECISIONS))
@pytest.mark.parametrize("batch", cases.batches())
@pytest.mark.parametrize("size", cases.SIZES)
def test_char_encoder(request, benchmark, device, size, batch, backend, precision):
    model, ids = encoder(size, device), token_ids(batch, device)
    measure(request, benchmark, device, "encoder", size, batch, backend, precision,
            lambda name: model.encode_rows(ids, name))
