import numpy as np
import pytest
import torch
from models import SHAPES, options, weights
from tolerances import AGAINST_FLOAT64, relative_error

from elmo_fast.model.weights import lstm_name
from elmo_fast.ops import reference
from elmo_fast.ops.projected_lstm import projected_lstm
from elmo_fast.ops.schedule import make_schedule

FAST = ["torch"]
LENGTHS = [3, 1, 0, 7, 4, 1, 5]


def layer(of, dtype=torch.float64, number=0, requires_grad=False):
    drawn = weights(of)

    def one(direction):
        names = ("W_0", "B", "W_P_0") if of.lstm.is_projected else ("W_0", "B")
        parts = [torch.tensor(drawn[lstm_name(direction, number, name)], dtype=dtype, requires_grad=requires_grad)
                 for name in names]
        return tuple(parts) if of.lstm.is_projected else (*parts, None)

    return one(0), one(1)


def draw(of, dtype=torch.float64, lengths=LENGTHS, lanes=None, halves=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    schedule = make_schedule(lengths, lanes)
    rows = 6
    p, d = of.lstm.projection_dim, of.lstm.dim
    inputs = torch.randn(rows, halves * p, generator=generator, dtype=torch.float64).to(dtype)
    index = torch.randint(0, rows, (sum(lengths),), generator=generator)
    state = tuple(torch.randn(schedule.lanes.size, 2 * size, generator=generator, dtype=torch.float64).to(dtype) / 4
                  for size in (p, d))
    return inputs, index, schedule, state


def run(function, of, dtype=torch.float64, halves=1, lanes=None, restart=None, **extra):
    inputs, index, schedule, state = draw(of, dtype, lanes=lanes, halves=halves)
    out, (h, c) = function(inputs, index, schedule, state, layer(of, dtype), cell_clip=of.lstm.cell_clip,
                           proj_clip=of.lstm.proj_clip, restart=restart, **extra)
    return out, h, c


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize("shape", ["two layers", "no projection", "no clips", "clips that fire"])
def test_agrees_with_float64(shape, halves, backend):
    of = SHAPES[shape]
    expected = run(reference.projected_lstm, of, halves=halves)
    found = run(projected_lstm, of, torch.float32, halves=halves, backend=backend)
    for one, other in zip(found, expected):
        assert one.shape == other.shape
        assert relative_error(one, other) < AGAINST_FLOAT64["highest"]


@pytest.mark.parametrize("backend", ["reference", *FAST])
def test_lanes_equal_sentences_run_one_by_one(backend):
    of = SHAPES["clips that fire"]
    lanes = np.array([0, 1, 1, 0, 2, 1, 0])
    inputs, index, schedule, state = draw(of, lanes=lanes)
    clips = {"cell_clip": of.lstm.cell_clip, "proj_clip": of.lstm.proj_clip, "backend": backend}
    out, final = projected_lstm(inputs, index, schedule, state, layer(of), **clips)
    ends = np.cumsum(LENGTHS)
    for lane in range(3):
        now = tuple(each[lane : lane + 1] for each in state)
        for number in np.flatnonzero(lanes == lane):
            tokens = slice(ends[number] - LENGTHS[number], ends[number])
            one = make_schedule([LENGTHS[number]])
            alone, now = projected_lstm(inputs, index[tokens], one, now, layer(of), **clips)
            assert torch.allclose(out[tokens], alone, rtol=1e-12, atol=1e-14)
        for found, expected in zip(final, now):
            assert torch.allclose(found[lane], expected[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("backend", ["reference", *FAST])
def test_restart_makes_sentences_independent(backend):
    of = options()
    lanes = np.array([0, 1, 1, 0, 2, 1, 0])
    restart = tuple(torch.linspace(-1, 1, 2 * size, dtype=torch.float64) for size in (11, 37))
    inputs, index, schedule, state = draw(of, lanes=lanes)
    state = tuple(each * np.nan for each in state)
    clips = {"cell_clip": of.lstm.cell_clip, "proj_clip": of.lstm.proj_clip, "backend": backend}
    out, _ = projected_lstm(inputs, index, schedule, state, layer(of), restart=restart, **clips)
    apart = make_schedule(LENGTHS)
    started = tuple(each.expand(len(LENGTHS), -1) for each in restart)
    expected, _ = projected_lstm(inputs, index, apart, started, layer(of), **clips)
    assert torch.allclose(out, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("backend", ["reference", *FAST])
def test_lanes_without_tokens_keep_their_state(backend):
    of = options()
    inputs, index, schedule, state = draw(of)
    _, final = projected_lstm(inputs, index, schedule, state, layer(of), backend=backend)
    for before, after in zip(state, final):
        assert torch.equal(before[2], after[2])
        assert not torch.equal(before[3], after[3])
    empty = make_schedule([0, 0])
    two = tuple(each[:2] for each in state)
    out, final = projected_lstm(inputs, index[:0], empty, two, layer(of), backend=backend)
    assert out.shape == (0, 22)
    assert all(torch.equal(one, other) for one, other in zip(final, two))


@pytest.mark.parametrize("backend", ["reference", *FAST])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_stays_in_its_sentence(backend, value):
    of = options()
    inputs, index, schedule, state = draw(of)
    expected, _ = projected_lstm(inputs, index, schedule, state, layer(of), backend=backend)
    poisoned = torch.cat([inputs, torch.full_like(inputs[:1], value)])
    index = index.clone()
    index[5] = len(inputs)  # the second token of the sentence of seven
    out, _ = projected_lstm(poisoned, index, schedule, state, layer(of), cell_clip=3.0, proj_clip=3.0, backend=backend)
    assert torch.allclose(out[:4], expected[:4]) and torch.allclose(out[11:], expected[11:])
    assert torch.isfinite(out[4, :11]).all()
    assert not torch.allclose(out[5], expected[5], equal_nan=True)
    if np.isnan(value):
        assert out[5:11, :11].isnan().all() and out[4:6, 11:].isnan().all()


@pytest.mark.parametrize("backend", FAST)
def test_gradients_agree(backend):
    of = SHAPES["clips that fire"]
    grads = []
    for name in ("reference", backend):
        inputs, index, schedule, state = draw(of, halves=2)
        leaves = [inputs, *state]
        drawn = layer(of, requires_grad=True)
        for leaf in leaves:
            leaf.requires_grad_()
        out, final = projected_lstm(inputs, index, schedule, state, drawn, cell_clip=of.lstm.cell_clip,
                                    proj_clip=of.lstm.proj_clip, backend=name)
        (out.sin().sum() + final[0].cos().sum() + final[1].sum()).backward()
        grads.append([leaf.grad for leaf in (*leaves, *drawn[0], *drawn[1])])
    for expected, found in zip(*grads):
        assert expected.abs().sum() > 0
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("backend", FAST)
def test_many_rows_run_in_chunks(backend, monkeypatch):
    from elmo_fast.ops import torch_projected_lstm

    of = options()
    whole = run(projected_lstm, of, backend=backend)
    monkeypatch.setattr(torch_projected_lstm, "_ROWS_AT_ONCE", 4)
    for found, expected in zip(run(projected_lstm, of, backend=backend), whole):
        assert torch.allclose(found, expected, rtol=1e-12, atol=1e-14)
