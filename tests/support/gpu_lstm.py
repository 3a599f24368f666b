"""The CUDA LSTM on cases of `op_cases`, on the CPU or a GPU, and its comparison with the reference."""

import dataclasses

import numpy as np
import torch

from elmo_fast.ops.projected_lstm.arguments import flat_weights, limit
from elmo_fast.ops.projected_lstm.cuda import blocks
from elmo_fast.testing import AGAINST_FLOAT64, relative_error
from tests.support.engines import GRAPHS, REFERENCE
from tests.support.op_cases import TIGHT, layer, lstm_case

LIMITS = {engine.precision: engine.limits[0] for engine in GRAPHS}  # of fp16 in medium


def ragged(batch_sizes, dim=37, projection=11, clips=TIGHT, seed=0, starts=True, bf16=False, gathered=True):
    """A case whose slots have these `batch_sizes`, and three empty slots.

    With `starts` sequences start within slots. Inputs have one large value, which has no weight: rows for fp16 are
    scaled. With `bf16` a weight is too large for fp16, and its inputs are zero.
    """
    rng, sentences = np.random.default_rng(seed), [(0, 0), (1, 0), (batch_sizes[0] + 2, 0)]
    for slot in range(batch_sizes[0]):
        length = sum(size > slot for size in batch_sizes)
        cuts = 1 + np.flatnonzero(rng.random(length - 1) < 0.3 * starts)
        sentences += [(slot + 2, int(steps)) for steps in np.diff([0, *cuts, length])]
    slots, lengths = np.array(sentences).T
    case = lstm_case((projection, dim, projection), lengths, slots, gathered, starts, clips, seed)
    inputs = case.operands["inputs"]
    inputs[:, ::projection] = 0 if bf16 else torch.linspace(1, 2e5, len(inputs))[:, None]
    for d in (0, 1):
        case.operands[f"w_{d}"][0] = 4e4 * bf16
    return case


def weights_of(case):
    """W, B and W_P of both directions by name, in fp32, which several runs can share."""
    return {name: each for name, each in case.leaves(wanted=[]).items() if name[0] in "wbp"}


def run(case, precision, weights=(), device="cpu", **settings):
    """Outputs in the order of the text, and the final h and c; `weights` replace those of the case."""
    return case.call(case.leaves(wanted=[], device=device) | dict(weights), "cuda", precision, **settings)


def error_of(actual, expected):
    """The largest relative error of outputs and states, NaN above all."""
    pairs = list(zip(actual, expected, strict=True))
    assert all(ours.shape == theirs.shape and ours.dtype == torch.float32 for ours, theirs in pairs)
    return float(torch.tensor([relative_error(ours.cpu(), theirs.cpu()) for ours, theirs in pairs]).max())


def compare(case, precision, weights=(), device="cpu", times=1, **settings):
    """The last of `times` runs, the largest error of all against the float64 reference, and the operands' limit."""
    operands = case.leaves(wanted=[], device=device) | dict(weights)
    exact = dataclasses.replace(case, operands={name: each.double().cpu() for name, each in operands.items()})
    expected, of = exact.run(REFERENCE), flat_weights(layer(operands))
    bf16 = blocks.operands(of, precision, limit(case.clips.get("proj_clip"))).dtype == torch.bfloat16
    runs = [case.call(operands, "cuda", precision, **settings) for _ in range(times)]
    error = float(torch.tensor([error_of(actual, expected) for actual in runs]).max())
    return runs[-1], error, AGAINST_FLOAT64["bf16"] if bf16 else LIMITS[precision]


def check_gradients(case, precision, limit, device="cpu"):
    """Results and gradients against the reference in float64, within the limit; gives the operands."""
    leaves = case.leaves(device=device)
    results = case.call(leaves, "cuda", precision)
    case.backward(results)
    for name, truth in case.gradients(REFERENCE).items():
        actual = (results[name].detach() if isinstance(name, int) else leaves[name].grad).cpu()
        assert actual.dtype == torch.float32 and actual.shape == truth.shape
        if truth.norm():
            assert relative_error(actual, truth) < limit, name
        else:  # every sequence starts anew
            assert not actual.any(), name
    return leaves


def check(*arguments, **settings):
    """The last run of `compare`, whose error must be within the limit."""
    result, error, most = compare(*arguments, **settings)
    assert error < most
    return result
