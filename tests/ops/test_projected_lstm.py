"""The projected LSTM of every available engine against the float64 reference, and bitwise properties."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo_fast.engine.precision import PRECISIONS
from elmo_fast.ops import projected_lstm as op
from elmo_fast.testing import AGAINST_FLOAT64, relative_error
from tests.support.engines import (
    BF16_DOTS,
    BF16_WEIGHTS,
    FAST,
    FIXED,
    GPU,
    GPU_GRADIENTS,
    HIGHEST,
    LOW,
    NATIVE,
    REFERENCE,
    TILES,
    TWINS,
)
from tests.support.grid import grid
from tests.support.op_cases import (
    LENGTHS,
    SLOTS,
    TIGHT,
    assert_same_nonfinite,
    keep_from_zero,
    lstm_case,
    on_threads,
)

SIZES = [(11, 37, 11), (16, 24, 24), (16, 64, 64), (5, 40, 33), (11, 37, 37), (64, 128, 64), (512, 128, 512),
         (32, 256, 48), (1, 1, 1), (7, 5, 2), (33, 70, 45)]  # I, D, P
WAYS = {
    "ragged": {}, "clipped": {"clips": TIGHT}, "one token": {"lengths": [1]}, "nothing": {"lengths": [0, 0]},
    "slots": {"slots": SLOTS, "starts": True, "clips": TIGHT}, "halves": {"gathered": False, "slots": SLOTS},
    "equal lengths": {"lengths": [4] * 9, "gathered": False, "starts": True}, "many slots": {"lengths": [2] * 61},
    **{f"{n} slots": {"lengths": [1 + k % 6 for k in range(n)][::-1], "starts": n % 2 == 0, "clips": TIGHT}
       for n in (2, 14, 15, 16, 17, 33, 64)}}


@pytest.mark.parametrize("engine, sizes, way", grid([*FAST, *GPU_GRADIENTS[:1]], SIZES, list(WAYS), only_pairs=TWINS))
def test_agrees_with_float64(engine, sizes, way):
    lstm_case(sizes, **WAYS[way]).check(engine)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([*FAST, *GPU_GRADIENTS[:1]]),
       st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=9),
       st.tuples(st.integers(1, 24), st.integers(1, 40), st.integers(1, 24)), st.integers(1, 5), st.booleans(),
       st.booleans(), st.integers(0, 2**16))
def test_any_shape_agrees_with_float64(engine, sentences, sizes, threads, gathered, starts, seed):
    lengths, slots = (np.array(values) for values in zip(*sentences))
    case = lstm_case(sizes, lengths, slots, gathered, starts, {"cell_clip": 0.4, "proj_clip": 0.2}, seed)
    on_threads(threads if engine.backend == "native" else 1, case.check, engine)


@functools.cache
def large_case(dim):
    """A case with `dim` cells and the other sizes of the original model, and its exact results."""
    case = lstm_case((512, dim, 512), [1 + k % 5 for k in range(19)], clips={"cell_clip": 0.3, "proj_clip": 0.05})
    return case, case.run(REFERENCE)


@pytest.mark.parametrize("engine, dim", [
    *((engine, 1024) for engine in (*HIGHEST, *BF16_WEIGHTS, *BF16_DOTS, *TILES, *LOW)),
    *(pytest.param(engine, 4096, marks=pytest.mark.long) for engine in (*HIGHEST, *BF16_WEIGHTS, *LOW)
      if engine.isa == "avx512")], ids=str)
def test_clips_that_fire_at_the_original_size(engine, dim):
    case, expected = large_case(dim)
    for actual, truth in zip(case.run(engine), expected):
        assert relative_error(actual, truth) < engine.limits[0]
    for values, limit in zip((expected[2], expected[0]), case.clips.values()):
        assert 0.1 < (values.abs() == limit).double().mean() < 0.99


@pytest.mark.parametrize("engine", [*FIXED, *BF16_WEIGHTS, *BF16_DOTS, *TILES, *LOW], ids=str)
@pytest.mark.parametrize("sizes", [(11, 37, 11), (270, 520, 24)], ids=str)
def test_slots_equal_sentences_run_one_by_one(engine, sizes):
    case = lstm_case(sizes, slots=SLOTS, clips=TIGHT)
    out, *final = case.run(engine)
    for slot in range(3):
        state = [case.operands[name][[slot]] for name in "hc"]
        for number in np.flatnonzero(slot == SLOTS):
            alone, tokens = case.part([number], state)
            expected, *state = alone.run(engine)
            assert engine.same(out[tokens], expected)
        for actual, expected in zip(final, state):
            assert engine.same(actual[slot], expected[0])


@pytest.mark.parametrize("sizes, engine", [
    pytest.param(sizes, engine, marks=pytest.mark.long if sizes[1] != 96 else [])
    for sizes in [(300, 96, 40), (300, 48, 48), (70, 600, 40), (40, 1120, 24)]
    for engine in (*HIGHEST, *BF16_WEIGHTS, *BF16_DOTS, *TILES, *LOW)
    if engine not in TWINS or sizes == (300, 96, 40)], ids=str)
def test_same_bits_in_any_batch_for_threads_and_chunks(engine, sizes):
    """The whole batch has more unique inputs than one input GEMM takes, a single sentence fewer."""
    case = lstm_case(sizes, [1 + 4 * (k % 11) for k in range(37)], starts=True, clips=TIGHT, unique=2000)
    assert len(case.index.unique()) > 448
    expected = out, h, c = case.run(engine)
    for numbers in (*([k] for k in range(37)), *(list(range(n)) for n in (2, 16, 20))):
        part, tokens = case.part(numbers)
        assert all(torch.equal(*pair) for pair in zip(part.run(engine), (out[tokens], h[numbers], c[numbers])))
    for threads in (1, 2, 3, 4, 6, 8):
        assert all(map(torch.equal, on_threads(threads, case.run, engine), expected))


@pytest.mark.parametrize("engine", [*FIXED, *LOW, *GPU], ids=str)
def test_restart_makes_sentences_independent(engine):
    case = lstm_case(slots=SLOTS, starts=True)
    operands = case.operands | {name: case.operands[name] * np.nan for name in "hc"}
    out, *_ = dataclasses.replace(case, operands=operands).run(engine)
    started = [case.operands[f"initial_{name}"].expand(len(LENGTHS), -1) for name in "hc"]
    assert engine.same(out, case.part(range(len(LENGTHS)), started)[0].run(engine)[0])


@pytest.mark.parametrize("engine", [*FIXED, *LOW, *GPU], ids=str)
def test_slots_without_tokens_keep_their_state(engine):
    case = lstm_case()
    for name, after in zip("hc", case.run(engine)[1:]):
        before = case.operands[name].to(engine.dtype)
        assert torch.equal(before[2], after[2]) and not torch.equal(before[3], after[3])


@pytest.mark.parametrize("engine", [*FIXED, *LOW, *GPU], ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("clips", [{}, TIGHT], ids=["no clips", "clips"])  # bf16 and fp16 on a GPU
def test_nan_and_infinity_stay_in_their_sentence(engine, clips, value):
    case = lstm_case(clips=clips)
    index = case.index.clone()
    inputs = case.operands["inputs"]
    index[5] = len(inputs)  # the second token of the sentence of seven, tokens 4 to 10
    broken = case.operands | {"inputs": torch.cat([inputs, torch.full_like(inputs[:1], value)])}
    (out, *_), (expected, *_) = dataclasses.replace(case, operands=broken, index=index).run(engine), case.run(engine)
    for part in (slice(4), slice(11, None), (4, slice(11))):
        assert engine.same(out[part], expected[part])
    assert not torch.allclose(out[5], expected[5], equal_nan=True)
    if np.isnan(value):
        assert out[5:11, :11].isnan().all() and out[4:6, 11:].isnan().all()


@pytest.mark.parametrize("engine", [*HIGHEST, *BF16_DOTS, *TILES, *LOW, *GPU], ids=str)
def test_nan_and_infinity_propagate(engine):
    case = lstm_case((40, 20, 7), [1] * 6, gathered=False)  # tiles take 16 inputs at a time, then single ones
    x, h, c = (case.operands[name] for name in ("inputs", "h", "c"))
    nan, inf = float("nan"), float("inf")
    for d in (0, 40):
        x[1, d + 2], x[3, d], x[3, d + 37] = nan, inf, -inf
        x[2, d + 5] = 3e38 if engine in (*BF16_DOTS, *TILES) else 3.0
    h[4, 3], h[5, 0], h[5, 4], c[5, 2], c[5, 21] = nan, -inf, inf, inf, -inf
    if engine in LOW:
        keep_from_zero(values for name, values in case.operands.items() if name[0] in "wp")
    for clips in ({}, {"cell_clip": 3.0, "proj_clip": 3.0}):
        case = dataclasses.replace(case, clips=clips)
        actual, expected = case.run(engine), case.run(REFERENCE)
        for values, exact in zip(actual, expected):
            assert_same_nonfinite(values, exact)
            finite = exact.isfinite()
            assert finite[[0, 2]].all()
            unbounded = AGAINST_FLOAT64[PRECISIONS[engine.precision].gpu]  # without clips
            assert relative_error(values[finite], exact[finite]) < max(engine.limits[0], unbounded * (engine in GPU))
        assert actual[0][[1, 4]].isnan().any(1).all() and not actual[0][[0, 2]].isnan().any()


@pytest.mark.parametrize("engine", LOW, ids=str)
@pytest.mark.parametrize("scale, clips", [(1, {}), (4, {}), (4, TIGHT)], ids=["usual", "chaotic", "clipped"])
def test_errors_of_bytes_are_those_of_weights_half_a_percent_off(engine, scale, clips):
    """Without clips, large weights make an LSTM chaotic: float64 itself is off by the size of the result there."""
    case, generator = lstm_case((16, 64, 48), [30, 25, 7], clips=clips), torch.Generator().manual_seed(0)
    weights = {name: scale * values for name, values in case.operands.items() if name[0] in "wp"}
    near = {name: values * (1 + 0.004 * torch.randn(values.shape, generator=generator, dtype=values.dtype))
            for name, values in weights.items()}
    exact, of_near = (dataclasses.replace(case, operands=case.operands | changed).run(REFERENCE)
                      for changed in (weights, near))
    actual = dataclasses.replace(case, operands=case.operands | weights).run(engine)
    limit = 3 * relative_error(of_near[0], exact[0])
    assert (limit > 2) == (scale > 1 and not clips) and relative_error(actual[0], exact[0]) <= limit


@pytest.mark.parametrize("value", [1e-42, 3e-40])
@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("engine, threads", [*((engine, 1) for engine in HIGHEST), (NATIVE, 3)], ids=str)
def test_denormal_cells_are_not_flushed(engine, threads, flush, value):
    """Forget gate open, input gate closed. The caller's flush setting has no effect and stays unchanged."""
    c = torch.full((2, 16), value)
    c[1] *= -1
    case = lstm_case((4, 8, 8), [1, 1])
    tensors = {name: torch.zeros(operand.shape) for name, operand in case.operands.items()} | {"c": c}
    for d in (0, 1):
        tensors[f"b_{d}"][:8], tensors[f"b_{d}"][16:24] = -200.0, 50.0
    if not torch.set_flush_denormal(flush):
        pytest.skip("this CPU does not flush denormals")
    try:
        with engine.active():
            out, _, after = on_threads(threads, case.call, tensors, "native")
        assert (torch.full((1,), 3e-40) * 1 == 0).all() == flush
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(after.view(torch.int32), c.view(torch.int32))
    assert torch.equal(out.signbit(), c.signbit())
    assert ((out.abs().view(torch.int32) - c.abs().view(torch.int32) // 2).abs() <= 1).all()


# ---- activations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", HIGHEST, ids=str)
def test_activations(engine):
    """Within 2 ulp: new cells are sigmoid(i) tanh(j); tanh(j) is 1 in one direction, sigmoid(i) in the other."""
    patterns = np.arange(0, 2**32, 65521, np.uint64).astype(np.uint32).view(np.float32)
    values = np.concatenate([patterns[np.isfinite(patterns)], np.linspace(-105, 105, 60001, dtype=np.float32)])
    x = torch.from_numpy(values)
    case = lstm_case((1, len(x), 3), [1])
    operands = {name: operand * 0 + (name == "inputs") for name, operand in case.operands.items()}
    for d in (0, 1):
        operands[f"w_{d}"].view(4, 4, -1)[0, d], operands[f"b_{d}"].view(4, -1)[1 - d] = x.double(), 100
    _, _, cells = dataclasses.replace(case, operands=operands).run(engine)
    for y, expected in zip(cells[0].chunk(2), (x.double().sigmoid(), x.double().tanh())):
        error, size = (y - expected).abs().numpy(), expected.abs().numpy()
        assert (error <= 2 * np.spacing(size.astype(np.float32)).astype(np.float64)).all()


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["reference", "torch", "native"])
@pytest.mark.parametrize("name, change, message", [
    ("inputs", lambda x: x[:, :10], "inputs: expected shape"),
    ("inputs", lambda x: x.long(), "inputs: expected floating-point"),
    ("rows", lambda x: x + 7, "rows: expected rows of inputs, 0 to 6"),
    ("rows", lambda x: x - 7, "rows: expected rows of inputs"),
    ("rows", lambda x: x[:, 1:], "rows: expected shape"),
    ("rows", lambda x: x.float(), "rows: expected int32 or int64"),
    ("state", lambda x: (x[0][1:], x[1][1:]), r"state\[0\]: expected"),
    ("state", lambda x: (x[0], x[1][:, 2:]), r"state\[1\]: expected"),
    ("cell_clip", lambda x: 0.0, "cell_clip: expected a number above 0"),
    ("proj_clip", lambda x: -1.0, "proj_clip: expected a number above 0"),
    ("proj_clip", lambda x: float("nan"), "proj_clip: expected a number above 0"),
    ("initial_state", lambda x: (torch.zeros(11), torch.zeros(74)), r"initial_state\[0\]: expected shape"),
    ("weights", lambda x: (x[0], (x[1][0], x[1][1][1:], x[1][2])), r"weights\[1\] B: expected"),
    ("weights", lambda x: (x[0], (*x[1][:2], None)), "weights: expected W_P"),
])
def test_refuses(name, change, message, backend):
    call, _ = lstm_case().given(lstm_case().leaves(wanted=[]))
    changes = {name: change(vars(call)[name])}
    with pytest.raises(ValueError, match=f"^{message}"):
        op.projected_lstm(**vars(call) | changes, backend=backend)
