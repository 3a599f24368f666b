"""Both paths of the CUDA LSTM on the CPU: the graph path without graphs, the persistent one over its kernels' PTX."""

import itertools

import pytest
import torch

from elmo_fast.ops.cuda import blocks, lstm
from elmo_fast.ops.schemas import LstmCall, flat_weights, limit
from elmo_fast.testing import relative_error
from tests.support import cuda_ops
from tests.support.gpu_lstm import FIRING, LIMITS, check, layer, one_layer, prepare, ragged, run, starting, text
from tests.support.models import SENTENCES, SHAPES, bilm, options

# Rows of input projections that an arena holds: those of a table in full; of a block's unique rows; of few slots, which
# step by turns.
HELD = (None, 14, 8)
ON_GRAPHS = [(None, ("two layers", "no projection", "no clips", "clips that fire")[number % 4], precision, held)
             for number, (held, precision) in enumerate(itertools.product(HELD, LIMITS))]
ON_PTX = [(generation, shape, "medium", held) for generation, held in zip((90, 80, 90), HELD)
          for shape in ("clips that fire", "no clips")]


@pytest.mark.parametrize("native, shape, precision, held", ON_GRAPHS + ON_PTX, indirect=["native"])
def test_both_paths_agree_with_float64(native, shape, precision, held, monkeypatch):
    """Each direction from its half of the inputs too; with NaN in three slots' states, which the starts replace."""
    of, (inputs, index, state) = SHAPES[shape], text(SHAPES[shape])
    if held:  # and many rows that are not read: they are not projected
        monkeypatch.setattr(blocks, "rows_held", lambda layer: held)
        inputs, index = torch.cat([torch.full_like(inputs, torch.nan)] * 9 + [inputs]), index + 9 * len(inputs)
    if held == 8:
        monkeypatch.setitem(lstm.MOST_SLOTS, "graph", 4)
    check(of, precision, inputs, index, state)
    for bounded in (False, True):
        check(of, precision, *text(of), halves=True, bounded=bounded)
    check(of, precision, inputs, index, tuple(part[:3] * torch.nan for part in state), **starting(of))
    if native:
        bf16 = shape == "no clips"
        assert all((call["operand"], bool(call["scale"])) == (bf16, not bf16) for call in native.calls)
        assert not native.calls[0]["initial_c"] and native.calls[-1]["initial_h"]


WIDE = one_layer(700, 600)


@pytest.mark.parametrize("of, slots, count", [(FIRING, 7, 3), (WIDE, 7, 3), *(
    pytest.param(FIRING, slots, 40, marks=pytest.mark.long) for slots in (1, 2, 16, 32, 64, 200))])
@pytest.mark.parametrize("precision, bf16", [*((precision, False) for precision in LIMITS), ("medium", True)])
@pytest.mark.parametrize("native", ["triton 90", "triton 80"], indirect=True)
def test_triton_kernels_of_a_step_agree_with_float64(native, precision, bf16, of, slots, count):
    """In a program for each slot, and in two with inputs, and factors of fp16 rows, that differ by direction."""
    call = ragged(torch.linspace(slots, 1, count).int().tolist(), of, bf16=bf16)
    _, (h, c) = check(of, precision, **call, halves=of is WIDE)
    assert all((part.abs() >= clip - 1e-6).any() for part, clip in ((h, of.lstm.proj_clip), (c, of.lstm.cell_clip)))


@pytest.mark.parametrize("native, precision", [
    (None, "highest"), (None, "medium"), (90, "medium"), (80, "medium"), ("triton 90", "medium"),
    ("triton 80", "highest")], indirect=["native"])
def test_nan_and_infinity_stay_in_their_sentence_and_direction(native, precision):
    inputs, index, state = text()
    inputs = torch.cat([inputs, torch.zeros_like(inputs[:2])])
    expected, _ = check(FIRING, precision, inputs, index, state)
    inputs[-2], inputs[-1], state[0][4, 11:] = torch.inf, torch.nan, torch.inf
    index[5:7] = torch.tensor([6, 7])  # tokens two and three of the sentence of tokens 4 to 10
    found, _ = run(FIRING, precision, inputs, index, state)
    kept = torch.ones_like(found, dtype=torch.bool)
    kept[4:11] = kept[11:15, 11:] = False
    assert torch.equal(found[kept], expected[kept]) and found[11:15, 11:].isnan().any()
    assert found[6:11, :11].isnan().all() and found[4:7, 11:].isnan().all()


@pytest.mark.parametrize("native, shape, state, precision", [
    (None, "four layers", "carry", "medium"), (None, "no projection", "zero", "highest"),
    (None, "no skip connections", "warm", "medium"), (None, "clips that fire", "carry", "highest"),
    (90, "clips that fire", "carry", "medium"), (80, "four layers", "carry", "medium"),
    (80, "clips that fire", "zero", "medium"), (90, "no skip connections", "warm", "medium")], indirect=["native"])
def test_models_over_ragged_batches(native, graphs, shape, state, precision, monkeypatch):
    """A batch, a smaller one, a larger one, empty sentences, against the reference in float64."""
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
    assert native.calls and all(call["timeout_ns"] for call in native.calls) if native else graphs[0].replayed


@pytest.mark.parametrize("change, dtype", [
    ({}, torch.float16), ({"proj_clip": None}, torch.bfloat16), ({"proj_clip": 1e5}, torch.bfloat16),
    ({"dim": 11, "proj_clip": None}, torch.float16),
])
def test_medium_takes_fp16_where_the_operands_are_bounded(change, dtype):
    of = options(change)
    weights, clip = flat_weights(layer(of)), limit(of.lstm.proj_clip)
    assert blocks.operands(weights, "medium", clip).dtype == dtype
    assert blocks.operands(weights, "high", clip).dtype == torch.float32
    weights[0][3, 5] = 4e4  # noticed although the copies are made
    assert blocks.operands(weights, "medium", clip).dtype == torch.bfloat16


def test_weights_are_not_prepared_in_a_capture(monkeypatch):
    weights = flat_weights(layer())
    blocks.operands(weights, "highest", 3.0)
    monkeypatch.setattr(blocks, "is_capturing", lambda device: True)
    blocks.operands(weights, "highest", 3.0)
    for precision in ("medium", "highest"):
        with pytest.raises(RuntimeError, match="expected a model that has run once before a CUDA graph is captured"):
            blocks.operands(flat_weights(layer()), precision, 3.0)


def test_rows_of_any_size_fit_fp16():
    """Each row within the rounding of its own size, for both directions from one table and from rows of their own."""
    (inputs, index, state), weights = text(), layer()
    inputs[:4] *= torch.tensor([1e5, 1e30, 1e-3, 1.0])[:, None]
    check(FIRING, "medium", inputs, index, state)
    with lstm.prepared(flat_weights(weights), "medium", (3.0, 3.0), inputs.device) as steps:
        arena = steps.arena
        for x in (inputs, torch.stack([inputs, inputs.flip(0)])):
            steps.project(x, False)
            for direction, rows in enumerate(x if x.dim() == 3 else (x, x)):
                found = arena.z[: len(rows), direction].double() * arena.scale[: len(rows), direction, None]
                expected = rows.double() @ weights[direction][0][: rows.shape[1]].double()
                assert (((found - expected).norm(dim=1) / expected.norm(dim=1)) < 1e-3).all()


@pytest.mark.parametrize("slots, settings", [(7, {}), (3, starting())])
def test_registered_as_one_op(slots, settings):
    work, _ = prepare(FIRING, "highest", *text(slots=slots), **settings)
    given = LstmCall(*work.args, **work.keywords).arguments()
    with cuda_ops.registered_on_cpu():
        torch.library.opcheck(torch.ops.elmo_fast.projected_lstm.default, given)
