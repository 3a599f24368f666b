import numpy as np
import pytest
import torch

from elmo_fast.ops.projected_lstm import projected_lstm
from elmo_fast.ops.schedule import make_schedule
from elmo_fast.testing import AGAINST_FLOAT64, relative_error
from tests.support.models import SHAPES, options
from tests.support.op_cases import ALL, FAST, LENGTHS, draw, dtype_of, layer, run, same, text_order


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("shape", ["two layers", "no projection", "no clips", "clips that fire"])
def test_agrees_with_float64(shape, backend):
    of = SHAPES[shape]
    expected, final = run(of, *draw(of), "reference")
    found, found_final = run(of, *draw(of, torch.float32), backend)
    for one, other in zip((found, *found_final), (expected, *final)):
        assert one.shape == other.shape
        assert relative_error(one, other) < AGAINST_FLOAT64["highest"]


@pytest.mark.parametrize("backend", ALL)
def test_each_direction_reads_its_half(backend):
    of = SHAPES["clips that fire"]
    inputs, index, state = draw(of, dtype_of(backend))
    expected, final = run(of, inputs, index, state, backend)
    schedule = make_schedule(LENGTHS)
    order = torch.from_numpy(schedule.tokens).long()
    halves = torch.cat([inputs[index][order[0]], inputs[index][order[1]]], dim=1)
    steps, found_final = projected_lstm(halves, None, schedule, state, layer(of, inputs.dtype), backend=backend,
                                        cell_clip=of.lstm.cell_clip, proj_clip=of.lstm.proj_clip)
    for one, other in zip((text_order(steps, order), *found_final), (expected, *final)):
        assert same(one, other, backend)


@pytest.mark.parametrize("backend", ALL)
def test_slots_equal_sentences_run_one_by_one(backend):
    of = SHAPES["clips that fire"]
    slots = np.array([0, 1, 1, 0, 2, 1, 0])
    inputs, index, state = draw(of, dtype_of(backend))
    state = tuple(each[:3] for each in state)
    out, final = run(of, inputs, index, state, backend, slots=slots)
    ends = np.cumsum(LENGTHS)
    for slot in range(3):
        now = tuple(each[slot : slot + 1] for each in state)
        for number in np.flatnonzero(slots == slot):
            tokens = slice(ends[number] - LENGTHS[number], ends[number])
            alone, now = run(of, inputs, index[tokens], now, backend, lengths=[LENGTHS[number]])
            assert same(out[tokens], alone, backend)
        for found, expected in zip(final, now):
            assert same(found[slot], expected[0], backend)


@pytest.mark.parametrize("backend", ALL)
def test_restart_makes_sentences_independent(backend):
    of = options()
    initial_state = tuple(torch.linspace(-1, 1, 2 * size, dtype=dtype_of(backend)) for size in (11, 37))
    inputs, index, state = draw(of, dtype_of(backend))
    unread = tuple(each[:3] * np.nan for each in state)
    out, _ = run(of, inputs, index, unread, backend, slots=np.array([0, 1, 1, 0, 2, 1, 0]), initial_state=initial_state)
    started = tuple(each.expand(len(LENGTHS), -1) for each in initial_state)
    expected, _ = run(of, inputs, index, started, backend)
    assert same(out, expected, backend)


@pytest.mark.parametrize("backend", ALL)
def test_slots_without_tokens_keep_their_state(backend):
    of = options()
    inputs, index, state = draw(of, dtype_of(backend))
    _, final = run(of, inputs, index, state, backend)
    for before, after in zip(state, final):
        assert torch.equal(before[2], after[2])
        assert not torch.equal(before[3], after[3])
    two = tuple(each[:2] for each in state)
    out, final = run(of, inputs, index[:0], two, backend, lengths=[0, 0])
    assert out.shape == (0, 22)
    assert all(torch.equal(one, other) for one, other in zip(final, two))


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_stays_in_its_sentence(backend, value):
    of = options()
    inputs, index, state = draw(of, dtype_of(backend))
    expected, _ = run(of, inputs, index, state, backend)
    poisoned = torch.cat([inputs, torch.full_like(inputs[:1], value)])
    index = index.clone()
    index[5] = len(inputs)  # the second token of the sentence of seven, tokens 4 to 10
    out, _ = run(of, poisoned, index, state, backend)
    assert same(out[:4], expected[:4], backend) and same(out[11:], expected[11:], backend)
    assert same(out[4, :11], expected[4, :11], backend)
    assert not torch.allclose(out[5], expected[5], equal_nan=True)
    if np.isnan(value):
        assert out[5:11, :11].isnan().all() and out[4:6, 11:].isnan().all()


def test_gradients_agree():
    of = SHAPES["clips that fire"]
    grads = []
    for name in ("reference", "torch"):
        inputs, index, state = draw(of)
        leaves = [each.requires_grad_() for each in (inputs, *state)]
        drawn = layer(of, requires_grad=True)
        out, final = run(of, inputs, index, state, name, weights=drawn)
        (out.sin().sum() + final[0].cos().sum() + final[1].sum()).backward()
        grads.append([leaf.grad for leaf in (*leaves, *drawn[0], *drawn[1])])
    for expected, found in zip(*grads):
        assert expected.abs().sum() > 0
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_many_rows_run_in_chunks(monkeypatch):
    from elmo_fast.ops.torch import projected_lstm as torch_projected_lstm

    of = options()
    whole, final = run(of, *draw(of), "torch")
    monkeypatch.setattr(torch_projected_lstm, "_ROWS_AT_ONCE", 4)
    found, found_final = run(of, *draw(of), "torch")
    for one, other in zip((found, *found_final), (whole, *final)):
        assert same(one, other, "torch")
