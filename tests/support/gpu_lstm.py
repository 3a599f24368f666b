"""The CUDA LSTM op over the running text of `op_cases`, on the CPU or a GPU: calls, and what they are compared with."""

import functools

import numpy as np
import torch

from elmo_fast.ops.schedule import make_schedule
from elmo_fast.testing import AGAINST_FLOAT64, relative_error
from tests.support import cuda_ops, op_cases
from tests.support.models import SHAPES
from tests.support.op_cases import LENGTHS, draw, text_order

LIMITS = {"highest": AGAINST_FLOAT64["highest"], "high": AGAINST_FLOAT64["high-tf32"],
          "medium": AGAINST_FLOAT64["medium-fp16"]}
BF16_LIMIT = AGAINST_FLOAT64["medium-bf16"]
FIRING = SHAPES["clips that fire"]


def layer(of=FIRING, number=0, **more):
    return op_cases.layer(of, torch.float32, number, **more)


def text(of=FIRING, seed=0, slots=None):
    """Inputs, the row of each token, and the state of each slot, in fp32."""
    inputs, index, state = draw(of, torch.float32, seed)
    return inputs, index, tuple(part[:slots] for part in state)


def ragged(slots, of=FIRING, seed=0):
    """`text` of ragged slots, in which sequences start, and three empty ones; with the settings of the call."""
    lengths, sizes = [0, 0, *(3 + number % 3 for number in range(slots)), 0] * 2, (of.lstm.projection_dim, of.lstm.dim)
    generator = torch.Generator().manual_seed(seed)
    state = tuple(torch.randn(slots + 3, 2 * size, generator=generator) / 4 for size in sizes)
    return ((text(of, seed)[0], torch.arange(sum(lengths)) % 6, state),
            {"lengths": lengths, **starting(of, [*range(slots + 3)] * 2)})


def starting(of=FIRING, slots=(0, 1, 1, 0, 2, 1, 0)):
    """Settings of sequences that start within slots, four of the text's sentences, and the state they start from."""
    sizes = 2 * of.lstm.projection_dim, 2 * of.lstm.dim
    return {"slots": np.array(slots), "initial_state": tuple(torch.linspace(-0.2, 0.2, size) for size in sizes)}


def moved(tree, *to):
    return tree if tree is None else tree.to(*to) if isinstance(tree, torch.Tensor) else tuple(
        moved(part, *to) for part in tree)


def prepare(of, precision, inputs, index, state, lengths=LENGTHS, slots=None, weights=None, initial_state=None,
            halves=False, device="cpu", rows_on="cpu", **more):
    """The GPU's op on these operands, to be called, and its tokens' order. `halves`: each direction reads its half of
    inputs in packed rows."""
    schedule = make_schedule(lengths, slots)
    order = torch.from_numpy(schedule.tokens).long()
    rows = None if halves else index[order].to(rows_on)
    inputs = torch.cat([inputs[index[tokens]] for tokens in order], 1) if halves else inputs
    inputs, state, weights, initial_state = moved((inputs, state, weights or layer(of), initial_state), device)
    return functools.partial(cuda_ops.projected_lstm, inputs, rows, schedule, state, weights, precision=precision,
                             cell_clip=of.lstm.cell_clip, proj_clip=of.lstm.proj_clip, initial_state=initial_state,
                             **more), order


def run(*operands, **settings):
    """As `op_cases.run`, on the GPU's op; arguments as in `prepare`."""
    work, order = prepare(*operands, **settings)
    found, final = work()
    return text_order(found.cpu(), order), final


def assert_close(found, expected, limit):
    for ours, theirs in zip((found[0], *found[1]), (expected[0], *expected[1])):
        assert ours.shape == theirs.shape and ours.dtype == torch.float32
        assert relative_error(ours.cpu(), theirs) < limit


def check(of, precision, inputs, index, state, *, limit=None, times=1, weights=None, initial_state=None,
          lengths=LENGTHS, slots=None, **how):
    """`run`, so many times, within the limit of the reference in float64."""
    expected = op_cases.run(of, inputs.double(), index, moved(state, torch.float64), "reference", lengths, slots,
                            moved(initial_state, torch.float64), moved(weights, "cpu", torch.float64))
    work, order = prepare(of, precision, inputs, index, state, lengths, slots, weights, initial_state, **how)
    for _ in range(times):
        found, final = work()
        found = text_order(found.cpu(), order), final
        assert_close(found, expected, limit or LIMITS[precision])
    return found
