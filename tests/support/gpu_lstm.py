"""The CUDA LSTM op on the CPU, over the running text of `op_cases`: calls, and what they are compared with."""

import contextlib

import numpy as np
import torch

from elmo_fast.ops.cuda import blocks, lstm, steps
from elmo_fast.ops.schedule import make_schedule
from elmo_fast.testing.tolerances import AGAINST_FLOAT64, relative_error
from tests.support import cuda_ops, op_cases
from tests.support.models import SENTENCES, SHAPES, bilm
from tests.support.op_cases import LENGTHS, draw, text_order

LIMITS = {"highest": AGAINST_FLOAT64["highest"], "high": AGAINST_FLOAT64["high-tf32"],
          "medium": AGAINST_FLOAT64["medium-fp16"]}
FIRING = SHAPES["clips that fire"]
CLIPS = {"cell_clip": 0.3, "proj_clip": 0.05}  # of FIRING
SLOTS = np.array([0, 1, 1, 0, 2, 1, 0])  # of the sentences: four start within slots
INITIAL_STATE = tuple(torch.linspace(-0.2, 0.2, 2 * size) for size in (11, 37))


def layer(of=FIRING, number=0, **more):
    return op_cases.layer(of, torch.float32, number, **more)


def text(of=FIRING, seed=0, slots=None):
    """Inputs, the row of each token, and the state of each slot, in fp32."""
    inputs, index, state = draw(of, torch.float32, seed)
    return inputs, index, tuple(each[:slots] for each in state)


def run(of, precision, inputs, index, state, lengths=LENGTHS, slots=None, weights=None, halves=False, **more):
    """As `op_cases.run`, on the GPU's op. `halves`: each direction reads its half of inputs in packed rows."""
    schedule = make_schedule(lengths, slots)
    order = torch.from_numpy(schedule.tokens).long()
    given = (torch.cat([inputs[index[one]] for one in order], 1), None) if halves else (inputs, index[order])
    found, final = cuda_ops.projected_lstm(*given, schedule, state, weights or layer(of), cell_clip=of.lstm.cell_clip,
                                           proj_clip=of.lstm.proj_clip, precision=precision, **more)
    return text_order(found, order), final


def double(tree):
    return tree if tree is None else tree.double() if isinstance(tree, torch.Tensor) else tuple(map(double, tree))


def assert_close(found, expected, limit):
    for one, other in zip((found[0], *found[1]), (expected[0], *expected[1])):
        assert one.shape == other.shape and one.dtype == torch.float32
        assert relative_error(one.cpu(), other) < limit


def check(of, precision, inputs, index, state, *, limit=None, initial_state=None, weights=None, bounded=False,
          halves=False, **more):
    """`run`, within the limit of the reference in float64."""
    found = run(of, precision, inputs, index, state, initial_state=initial_state, weights=weights, bounded=bounded,
                halves=halves, **more)
    expected = op_cases.run(of, inputs.double(), index, double(state), "reference", weights=double(weights),
                            initial_state=double(initial_state), **more)
    assert_close(found, expected, limit or LIMITS[precision])
    return found


def check_states_over_ragged_batches(shape, state, precision, monkeypatch):
    """A model over a batch, a smaller one, a larger one, empty sentences, against the reference in float64."""
    def on_gpu(*given, backend, precomputed, **settings):
        assert not precomputed
        bounds.append(settings["bounded"])
        return cuda_ops.projected_lstm(*given, **{**settings, "precision": precision})

    truth, found = bilm(SHAPES[shape], state=state, backend="reference").double(), bilm(SHAPES[shape], state=state)
    batches, bounds = [SENTENCES[:4], SENTENCES[1:3], SENTENCES[::-1], [[], []], SENTENCES[2:5]], []
    expected = [truth.embed_tokens(batch)[0] for batch in batches]
    monkeypatch.setattr("elmo_fast.model.lstm.projected_lstm", on_gpu)
    for batch, layers in zip(batches, expected):
        assert all(relative_error(*pair) < LIMITS[precision] for pair in zip(found.embed_tokens(batch)[0], layers))
    if state == "carry":
        for pair in zip(found._elmo_lstm._states, truth._elmo_lstm._states):
            assert relative_error(*pair) < LIMITS[precision]
    of = SHAPES[shape].lstm
    assert bounds[-of.n_layers :] == [
        number == 1 or (number > 1 and not of.use_skip_connections) for number in range(of.n_layers)]


# ---- ways to come by the input projections ----------------------------------------------------

WAYS = ["a table in full", "unique rows of a block", "packed rows", "small groups"]


class _RowsOnDevice(lstm._Call):
    """Takes the host's rows for ones that only the device can read."""

    def __init__(self, steps, inputs, rows, *settings):
        super().__init__(steps, inputs, rows, *settings)
        self.on_host, self.rows = False, rows


def take_way(way, monkeypatch):
    """Have projections come that way; in small groups not all slots step together. Gives the operands of a call."""
    if way == "packed rows":
        monkeypatch.setattr(lstm, "_Call", _RowsOnDevice)
    if way == WAYS[0]:
        return text
    monkeypatch.setattr(blocks, "rows_held", lambda layer: 14 if "rows" in way else 8)
    if way == "small groups":
        monkeypatch.setitem(steps.MOST_SLOTS, "graph", 4)
    return _many_rows


def _many_rows(of=FIRING):
    """`text` with so many rows besides those read that they are not projected in full."""
    inputs, index, state = text(of)
    return torch.cat([torch.full_like(inputs, torch.nan)] * 9 + [inputs]), index + 9 * len(inputs), state


def triton_as_ptx(monkeypatch):
    """The small kernels of a step, run from their PTX."""
    from elmo_fast.kernels import lstm_pointwise
    from tests.support import ptx_machine, triton_on_ptx

    ptx_machine.machine()
    monkeypatch.setattr(ptx_machine, "device_memory", lambda *args, **memory: contextlib.nullcontext())  # views overlap
    for name in ("_gates", "_hidden"):
        monkeypatch.setattr(lstm_pointwise, name, triton_on_ptx.OnPtx(getattr(lstm_pointwise, name), 90))
    monkeypatch.setattr(steps, "pointwise_of", lambda device: lstm_pointwise)
