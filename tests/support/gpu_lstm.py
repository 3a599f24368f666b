"""The CUDA LSTM op over the running text of `op_cases`, on the CPU or a GPU: calls, and what they are compared with."""

import functools

import numpy as np
import torch

from elmo_fast.ops.cuda import blocks
from elmo_fast.ops.schedule import make_schedule
from elmo_fast.ops.schemas import flat_weights, limit
from elmo_fast.testing import AGAINST_FLOAT64, relative_error
from tests.support import cuda_ops, op_cases
from tests.support.models import SHAPES, options
from tests.support.op_cases import LENGTHS, draw, text_order

LIMITS = {"highest": AGAINST_FLOAT64["highest"], "high": AGAINST_FLOAT64["high-tf32"],
          "medium": AGAINST_FLOAT64["medium-fp16"]}
BF16_LIMIT = AGAINST_FLOAT64["medium-bf16"]
FIRING = SHAPES["clips that fire"]


def one_layer(dim, projection, cell_clip=0.3, proj_clip=0.05):
    """Options of a model with one layer of these sizes, whose clips fire unless they are higher."""
    return options({"dim": dim, "projection_dim": projection, "n_layers": 1, "cell_clip": cell_clip,
                    "proj_clip": proj_clip})


def layer(of=FIRING, number=0):
    return op_cases.layer(of, torch.float32, number)


def text(of=FIRING, seed=0, slots=None):
    """Inputs, the row of each token, and the state of each slot, in fp32."""
    inputs, index, state = draw(of, torch.float32, seed)
    return inputs, index, tuple(part[:slots] for part in state)


def ragged(batch_sizes, of=FIRING, seed=0, starts=True, bf16=False, rows=6):
    """Arguments of a call whose slots have those `batch_sizes`, and three are empty.

    With `starts` sequences start within slots. Inputs have one large value, which has no weight: rows for fp16 are
    scaled. With `bf16` a weight is too large for fp16, and what it multiplies is zero.
    """
    rng, sizes = np.random.default_rng(seed), (of.lstm.projection_dim, of.lstm.dim)
    sentences = [(0, 0), (1, 0), (batch_sizes[0] + 2, 0)]
    for slot in range(batch_sizes[0]):
        length = sum(size > slot for size in batch_sizes)
        cuts = 1 + np.flatnonzero(rng.random(length - 1) < 0.3 * starts)
        sentences += [(slot + 2, int(steps)) for steps in np.diff([0, *cuts, length])]
    slots, lengths = zip(*sentences)
    inputs, h, c = (torch.from_numpy(rng.normal(0, scale, shape)).float() for scale, shape in (
        (1, (rows, sizes[0])), *((0.25, (batch_sizes[0] + 3, 2 * size)) for size in sizes)))
    inputs[:, 0] = 0 if bf16 else torch.linspace(1, 2e5, rows)
    weights = layer(of)
    for w, *_ in weights:
        w[0] = 4e4 * bf16
    return {"inputs": inputs, "index": torch.arange(sum(lengths)) % rows, "state": (h, c), "lengths": lengths,
            "weights": weights, **(starting(of, slots) if starts else {"slots": np.array(slots)})}


def starting(of=FIRING, slots=(0, 1, 1, 0, 2, 1, 0)):
    """Settings of sequences that start within slots, four of the text's sentences, and the state they start from."""
    sizes = 2 * of.lstm.projection_dim, 2 * of.lstm.dim
    return {"slots": np.array(slots), "initial_state": tuple(torch.linspace(-0.2, 0.2, size) for size in sizes)}


def moved(tree, *to):
    return tree if tree is None else tree.to(*to) if isinstance(tree, torch.Tensor) else tuple(
        moved(part, *to) for part in tree)


def prepare(of, precision, inputs, index, state, lengths=LENGTHS, slots=None, weights=None, initial_state=None,
            halves=False, device="cpu", **more):
    """The GPU's op on these operands, to be called, and its tokens' order. `halves`: each direction reads its half of
    inputs in packed rows."""
    schedule = make_schedule(lengths, slots)
    order = torch.from_numpy(schedule.tokens).long()
    rows = None if halves else index[order]
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


def error_of(found, expected):
    """The largest relative error of outputs and states, NaN above all."""
    pairs = list(zip((found[0], *found[1]), (expected[0], *expected[1])))
    assert all(ours.shape == theirs.shape and ours.dtype == torch.float32 for ours, theirs in pairs)
    return float(torch.tensor([relative_error(ours.cpu(), theirs) for ours, theirs in pairs]).max())


def check(*operands, **settings):
    """`run`, within the limit of `compare`."""
    found, error, limit = compare(*operands, **settings)
    assert error < limit
    return found


def compare(of, precision, inputs, index, state, *, times=1, weights=None, initial_state=None, lengths=LENGTHS,
            slots=None, **how):
    """The last of so many runs, the largest error of all against the reference in float64, and the operands' limit."""
    weights = weights or layer(of)
    operands = blocks.operands(flat_weights(weights), precision, limit(of.lstm.proj_clip))
    most = BF16_LIMIT if operands.dtype == torch.bfloat16 else LIMITS[precision]
    expected = op_cases.run(of, inputs.double(), index, moved(state, torch.float64), "reference", lengths, slots,
                            moved(initial_state, torch.float64), moved(weights, "cpu", torch.float64))
    work, order = prepare(of, precision, inputs, index, state, lengths, slots, weights, initial_state, **how)
    found = [(text_order(out.cpu(), order), final) for out, final in (work() for _ in range(times))]
    return found[-1], float(torch.tensor([error_of(each, expected) for each in found]).max()), most
