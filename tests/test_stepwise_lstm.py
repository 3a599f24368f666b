"""Tier A of the CUDA LSTM, run on the CPU: the same code without graphs, and with graphs that are faked."""

import gc
import importlib.util
import logging
import math
import threading
from pathlib import Path

import fake_graphs
import numpy as np
import pytest
import test_projected_lstm as op_tests
import torch
from models import SENTENCES, SHAPES, bilm, options
from tolerances import AGAINST_FLOAT64, relative_error

from elmo_fast.model.layout import in_text_order
from elmo_fast.ops import lstm_operands, step_buffers, step_plan, stepwise_lstm, torch_lstm_pointwise
from elmo_fast.ops.projected_lstm import projected_lstm
from elmo_fast.ops.schedule import make_schedule

LIMITS = {"highest": AGAINST_FLOAT64["highest"], "high": AGAINST_FLOAT64["high-tf32"],
          "medium": AGAINST_FLOAT64["medium-fp16"]}
LANES = np.array([0, 1, 1, 0, 2, 1, 0])


@pytest.fixture
def arenas(monkeypatch):
    """A cache of its own."""
    fresh = step_buffers.Arenas()
    monkeypatch.setattr(stepwise_lstm, "_arenas", fresh)
    return fresh


@pytest.fixture(scope="module")
def triton_kernels():
    """The Triton kernels as the interpreter runs them, loaded beside those of the package."""
    pytest.importorskip("triton")
    path = Path(__file__).parent.parent / "kernels" / "lstm_pointwise.py"
    spec = importlib.util.spec_from_file_location("interpreted_lstm_pointwise", path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(params=["torch", "triton"])
def pointwise(request, monkeypatch):
    """Each kind of small kernels in turn."""
    kernels = torch_lstm_pointwise if request.param == "torch" else request.getfixturevalue("triton_kernels")
    monkeypatch.setattr(stepwise_lstm, "pointwise_of", lambda device: kernels)
    return request.param


@pytest.fixture(params=["products of the whole table", "of each block's distinct rows", "of each step-row", "small groups"])
def rows_known(request, monkeypatch, arenas):
    """Each way to come by the input products; and lanes in groups that do not step together."""
    if request.param == "of each step-row":
        monkeypatch.setattr(stepwise_lstm, "known_on_host", lambda rows: False)
    if request.param != "products of the whole table":
        monkeypatch.setattr(step_buffers.Sizes, "products", property(lambda self: 14 if "row" in request.param else 8))
        monkeypatch.setattr(op_tests, "draw", many_rows)
    if request.param == "small groups":
        monkeypatch.setattr(step_plan, "MOST_LANES", 4)
    return request.param


draw = op_tests.draw


def many_rows(*arguments):
    """Inputs with so many rows besides those read that they are not multiplied whole."""
    inputs, index, state = draw(*arguments)
    return torch.cat([torch.full_like(inputs, torch.nan)] * 9 + [inputs]), index + 9 * len(inputs), state


def run(of, precision, inputs, index, state, lengths=op_tests.LENGTHS, lanes=None, weights=None, **more):
    """As `op_tests.run`, on tier A."""
    schedule = make_schedule(lengths, lanes)
    order = torch.from_numpy(schedule.tokens).long()
    found, final = stepwise_lstm.projected_lstm(
        inputs, index[order], schedule, state, weights or op_tests.layer(of, torch.float32),
        cell_clip=of.lstm.cell_clip, proj_clip=of.lstm.proj_clip, precision=precision, **more)
    return in_text_order(found, order), final


def expected_of(of, *operands, **more):
    """The same by the reference in float64."""
    double = [each.double() if isinstance(each, torch.Tensor) and each.is_floating_point() else each for each in operands]
    double[2] = tuple(each.double() for each in double[2])
    return op_tests.run(of, *double, "reference", **more)


def assert_close(found, expected, limit):
    for one, other in zip((found[0], *found[1]), (expected[0], *expected[1])):
        assert one.shape == other.shape and one.dtype == torch.float32
        assert relative_error(one, other) < limit


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("shape", ["two layers", "no projection", "no clips", "clips that fire"])
def test_agrees_with_float64(shape, precision, rows_known):
    agrees_with_float64(shape, precision)


@pytest.mark.parametrize("precision", ["highest", "medium"])
@pytest.mark.parametrize("shape", ["no projection", "clips that fire"])
def test_triton_kernels_agree_with_float64(shape, precision, arenas, triton_kernels, monkeypatch):
    monkeypatch.setattr(stepwise_lstm, "pointwise_of", lambda device: triton_kernels)
    agrees_with_float64(shape, precision)


def agrees_with_float64(shape, precision):
    of = SHAPES[shape]
    operands = op_tests.draw(of, torch.float32)
    limit = LIMITS[precision] if shape != "no clips" or precision != "medium" else AGAINST_FLOAT64["medium-bf16"]
    assert_close(run(of, precision, *operands), expected_of(of, *operands), limit)


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_agrees_in_lanes_with_restarts(precision, rows_known):
    of = SHAPES["clips that fire"]
    inputs, index, state = op_tests.draw(of, torch.float32)
    state = tuple(each[:3] * torch.nan for each in state)
    restart = tuple(torch.linspace(-0.2, 0.2, 2 * size) for size in (11, 37))
    assert_close(run(of, precision, inputs, index, state, lanes=LANES, restart=restart),
                 expected_of(of, inputs, index, state, lanes=LANES, restart=tuple(each.double() for each in restart)),
                 LIMITS[precision])


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_triton_kernels_do_what_torch_operations_do(kind, restarts, triton_kernels):
    lanes, dim, projection = 3, 37, 11
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator)

    zh, z, bias, r = drawn(2, lanes, 4 * dim), drawn(5, 2, 4 * dim).to(kind), drawn(2, 4 * dim), drawn(2, lanes, projection)
    scale = torch.tensor([1.0, 2, 4, 1, 8])[:, None].repeat(1, 2) if kind == torch.float16 else None
    fresh_h, fresh_c = drawn(2, projection), drawn(2, dim)
    meta = torch.tensor([[4, -1, 0], [2, -1, 3], [1, 0, 0]], dtype=torch.int32)
    after = torch.tensor([[4, -1, 0], [2, -1, 3], [0, 0, 1]], dtype=torch.int32)
    before = drawn(2, lanes, dim), drawn(2, lanes, dim).to(kind), drawn(2, lanes, projection), drawn(2, lanes, projection).to(kind)
    results = []
    for kernels in (triton_kernels, torch_lstm_pointwise):
        c, m, h, operand = (each.clone() for each in before)
        out = torch.full((lanes, 2 * projection), torch.nan)
        kernels.gates(zh, z, scale, bias, meta, fresh_c, c, m, 0.3, restarts)
        kernels.hidden(r, meta, after, fresh_h, h, operand, out, 0.5, restarts)
        live = [0, 2]  # what the other lane's operands hold is nobody's
        results.append((c, m[:, live].float(), h, operand[:, live].float(), out[live]))
    rounding = 4 * torch.finfo(kind).eps  # the interpreter cuts bf16 off where a GPU rounds it
    for one, other in zip(*results):
        assert torch.allclose(one, other, rtol=rounding, atol=1e-6)
    restarted = torch.allclose(results[0][3][:, 1], fresh_h, rtol=rounding, atol=1e-6)
    assert restarted == restarts and torch.equal(results[0][0][:, 1], before[0][:, 1])


@pytest.fixture
def as_an_op(monkeypatch, arenas):
    """The tests of the op, with tier A in the place of plain torch."""
    def instead(*operands, backend, **settings):
        return (projected_lstm if backend == "reference" else stepwise_lstm.projected_lstm)(
            *operands, **settings, **({"backend": backend} if backend == "reference" else {}))

    monkeypatch.setattr(op_tests, "projected_lstm", instead)
    monkeypatch.setattr(op_tests, "dtype_of", lambda backend: torch.float32)
    monkeypatch.setattr(op_tests, "same", lambda one, other, backend: torch.allclose(one, other, rtol=1e-5, atol=1e-6))


@pytest.mark.parametrize("test", [
    op_tests.test_each_direction_reads_its_half, op_tests.test_lanes_equal_sentences_run_one_by_one,
    op_tests.test_restart_makes_sentences_independent, op_tests.test_lanes_without_tokens_keep_their_state,
], ids=lambda test: test.__name__)
def test_as_an_op(test, as_an_op):
    test("torch")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_stays_in_its_sentence(value, as_an_op, pointwise):
    op_tests.test_what_is_no_number_stays_in_its_sentence("torch", value)


@pytest.mark.parametrize("precision", LIMITS)
def test_each_direction_reads_its_half_in_blocks(precision, monkeypatch, rows_known):
    of = SHAPES["clips that fire"]
    inputs, index, state = draw(of, torch.float32)
    schedule = make_schedule(op_tests.LENGTHS)
    order = torch.from_numpy(schedule.tokens).long()
    halves = torch.cat([inputs[index][order[0]], inputs[index][order[1]]], dim=1)
    found, final = stepwise_lstm.projected_lstm(
        halves, None, schedule, state, op_tests.layer(of, torch.float32), cell_clip=of.lstm.cell_clip,
        proj_clip=of.lstm.proj_clip, precision=precision)
    assert_close((in_text_order(found, order), final), expected_of(of, inputs, index, state), LIMITS[precision])


def test_a_result_depends_on_batch_mates_within_rounding_only(arenas):
    of = SHAPES["clips that fire"]
    inputs, index, state = draw(of, torch.float32)
    together, _ = run(of, "highest", inputs, index, state)
    ends = np.cumsum(op_tests.LENGTHS)
    for number in (0, 3, 6):
        tokens = slice(ends[number] - op_tests.LENGTHS[number], ends[number])
        alone, _ = run(of, "highest", inputs, index[tokens], tuple(each[number : number + 1] for each in state),
                       lengths=[op_tests.LENGTHS[number]])
        assert torch.allclose(alone, together[tokens], rtol=1e-5, atol=1e-7)


# ---- 16-bit operands --------------------------------------------------------------------------


@pytest.mark.parametrize("change, dtype", [
    ({}, torch.float16), ({"proj_clip": None}, torch.bfloat16), ({"proj_clip": 1e5}, torch.bfloat16),
    ({"dim": 11, "proj_clip": None}, torch.float16),
])
def test_medium_takes_fp16_where_the_operands_are_bounded(change, dtype):
    of = options(change)
    weights = stepwise_lstm.flat_weights(op_tests.layer(of, torch.float32))
    clip = stepwise_lstm.limit(of.lstm.proj_clip)
    assert lstm_operands.operands(weights, 11, "medium", clip).dtype == dtype
    assert lstm_operands.operands(weights, 11, "high", clip).dtype == torch.float32
    weights[0][3, 5] = 4e4  # seen although the copies are made
    assert lstm_operands.operands(weights, 11, "medium", clip).dtype == torch.bfloat16


def test_scaled_rows_give_their_products(arenas):
    of = SHAPES["two layers"]
    inputs, _, _ = draw(of, torch.float32)
    for row, size in enumerate((1e5, 1e30, 1e-3, 1.0)):
        inputs[row] *= size
    weights = op_tests.layer(of, torch.float32)
    operands = lstm_operands.operands(stepwise_lstm.flat_weights(weights), 11, "medium", 3.0)
    arena = stepwise_lstm.arena_of(operands, inputs.device)
    stepwise_lstm.multiply_rows(arena, operands, (inputs, inputs.flip(0)))
    for one, x in enumerate((inputs, inputs.flip(0))):
        found = arena.z[: len(x), one].double() * arena.scale[: len(x), one, None]
        expected = x.double() @ weights[one][0][:11].double()
        assert (((found - expected).norm(dim=1) / expected.norm(dim=1)) < 1e-3).all()


def test_rows_of_any_size_fit_fp16(arenas, pointwise):
    of = SHAPES["two layers"]
    inputs, index, state = draw(of, torch.float32)
    for row, size in enumerate((1e6, 1e30, 1e-3, 1.0)):
        inputs[row] *= size
    assert_close(run(of, "medium", inputs, index, state), expected_of(of, inputs, index, state), LIMITS["medium"])


# ---- graphs -----------------------------------------------------------------------------------


@pytest.fixture
def graphs(monkeypatch, arenas):
    """Captures are faked; gives the list of them, one for each arena."""
    made = []

    def buffers_of(number):
        arena = list(arenas._kept.values())[number][0]
        holders = [arena, *arena._buckets.values()]
        return [each for holder in holders for each in vars(holder).values() if isinstance(each, torch.Tensor)]

    def capture_on(device):
        number = len(made)
        made.append(fake_graphs.FakeCapture(lambda: buffers_of(number)))
        return made[-1]

    monkeypatch.setattr(stepwise_lstm, "capture_on", capture_on)
    return made


def watched(kernels):
    """Triton's kernels are no torch operations: their arguments are checked by hand."""
    class Watched:
        def __getattr__(self, name):
            def call(*arguments):
                mode = torch.utils._python_dispatch._get_current_dispatch_mode()
                if mode is not None:
                    mode.check(*arguments, by=name)
                with torch.utils._python_dispatch._disable_current_modes():
                    return getattr(kernels, name)(*arguments)

            return call

    return Watched()


@pytest.mark.parametrize("precision, restarts", [("highest", False), ("medium", True)])
def test_replays_give_what_plain_steps_give(precision, restarts, graphs, pointwise, monkeypatch):
    of = SHAPES["clips that fire"]
    kernels = watched(stepwise_lstm.pointwise_of(torch.device("cpu")))
    monkeypatch.setattr(stepwise_lstm, "pointwise_of", lambda device: kernels)
    weights = op_tests.layer(of, torch.float32)
    restart = {"restart": tuple(torch.linspace(-1, 1, 2 * size) for size in (11, 37))} if restarts else {}
    results = []
    for seed in (0, 1, 0, 1):
        operands = draw(of, torch.float32, seed)
        found, final = run(of, precision, *operands[:2], tuple(each[:3] for each in operands[2]), lanes=LANES,
                           weights=weights, **restart)
        results.append((found, *final))
    assert len(graphs) == 1 and graphs[0].captured and graphs[0].replayed
    for plain, replayed in zip(results[:2], results[2:]):
        assert all(map(torch.equal, plain, replayed))
    assert not torch.equal(results[0][0], results[1][0])


def test_each_setting_has_graphs_of_its_own(graphs):
    """Clips, restarts and precision in turn on one arena, until all of it is replayed."""
    inputs, index, state = draw(SHAPES["two layers"], torch.float32)
    state = tuple(each[:3] for each in state)
    restart = tuple(torch.linspace(-1, 1, 2 * size) for size in (11, 37))
    weights = op_tests.layer(SHAPES["two layers"], torch.float32)
    cases = [(of, more) for of in (options(), options({"cell_clip": 0.3}), options({"proj_clip": 0.05}))
             for more in ({}, {"restart": restart})]
    expected = [expected_of(of, inputs, index, state, lanes=LANES, **{key: tuple(each.double() for each in value)
                                                                     for key, value in more.items()}) for of, more in cases]
    for _ in range(3):
        for (of, more), truth in zip(cases, expected):
            assert_close(run(of, "highest", inputs, index, state, lanes=LANES, weights=weights, **more), truth,
                         LIMITS["highest"])
    assert len(graphs) == 1 and graphs[0].replayed


@pytest.mark.parametrize("length", [1, 2, 31, 100, 250])
def test_any_length_replays_a_few_graphs(length, graphs):
    of = SHAPES["two layers"]
    weights = op_tests.layer(of, torch.float32)
    inputs, _, state = draw(of, torch.float32)
    index = torch.arange(2 * length) % 6
    run_it = lambda: run(of, "highest", inputs, index, tuple(each[:2] for each in state), lengths=[length, length],  # noqa: E731
                         weights=weights)
    for _ in range(3):
        found = run_it()
    assert_close(found, expected_of(of, inputs, index, tuple(each[:2] for each in state), lengths=[length] * 2),
                 LIMITS["highest"])
    assert graphs[0].captured <= len(step_plan.CHUNKS)
    graphs[0].replayed = 0
    run_it()
    assert graphs[0].replayed == length // 16 + bin(length % 16).count("1")


def test_a_capture_that_fails_leaves_plain_steps_and_one_warning(graphs, caplog):
    of = SHAPES["two layers"]
    operands, weights = draw(of, torch.float32), op_tests.layer(of, torch.float32)
    with caplog.at_level(logging.WARNING):
        first = run(of, "highest", *operands, weights=weights)
        graphs[0].fails = True
        for _ in range(3):
            again = run(of, "highest", *operands, weights=weights)
    assert torch.equal(first[0], again[0])
    assert caplog.text.count("run without CUDA graphs") == 1 and not graphs[0].captured


def test_a_chunk_that_reads_foreign_memory_is_noticed():
    foreign, own = torch.zeros(3), torch.zeros(3)
    watch = fake_graphs.Watch({fake_graphs.address(own)})
    with pytest.raises(AssertionError, match="not the graph's"), watch:
        own.add_(foreign)
    with pytest.raises(AssertionError, match="waits"), fake_graphs.Watch({fake_graphs.address(own)}):
        own.sum().item()


# ---- memory -----------------------------------------------------------------------------------


def test_models_of_one_size_share_an_arena_and_take_it_along(arenas):
    of = SHAPES["two layers"]
    operands = draw(of, torch.float32)
    one, two = (op_tests.layer(of, torch.float32, number) for number in (0, 1))
    alone = [run(of, "highest", *operands, weights=each)[0] for each in (one, two)]
    assert len(arenas) == 1 and not torch.equal(*alone)
    assert torch.equal(run(of, "highest", *operands, weights=one)[0], alone[0])
    del one
    gc.collect()
    assert len(arenas) == 1
    del two
    gc.collect()
    assert len(arenas) == 0


@pytest.mark.parametrize("precision", ["highest", "medium"])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_an_edit_in_place_is_seen(part, precision, arenas):
    of = SHAPES["two layers"]
    operands, weights = draw(of, torch.float32), op_tests.layer(of, torch.float32)
    before = run(of, precision, *operands, weights=weights)
    weights[1][part].mul_(0.5)
    after = run(of, precision, *operands, weights=weights)
    assert not torch.equal(before[0], after[0])
    fresh = tuple(tuple(each.clone() for each in direction) for direction in weights)
    assert torch.equal(run(of, precision, *operands, weights=fresh)[0], after[0])


def test_the_cache_is_bounded():
    arenas = step_buffers.Arenas(most=2)
    made = [arenas.get(key, 1, lambda key=key: f"arena {key}") for key in "abacb"]
    assert made == ["arena a", "arena b", "arena a", "arena c", "arena b"]
    assert list(arenas._kept) == ["c", "b"]
    arenas.release(1)
    assert len(arenas) == 0


def test_buckets_and_graphs_are_bounded(graphs, monkeypatch):
    monkeypatch.setattr(step_buffers, "_MOST_BUCKETS", 2)
    of = SHAPES["two layers"]
    weights = op_tests.layer(of, torch.float32)
    inputs, _, state = draw(of, torch.float32)
    for _ in range(2):
        for lanes in (1, 2, 3, 7):
            index = torch.arange(4 * lanes) % 6
            some = tuple(each[:lanes] for each in state)
            found = run(of, "highest", inputs, index, some, lengths=[4] * lanes, weights=weights)
            assert_close(found, expected_of(of, inputs, index, some, lengths=[4] * lanes), LIMITS["highest"])
    (arena, _), = stepwise_lstm._arenas._kept.values()
    assert list(arena._buckets) == [4, 8]


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_inference_mode_leaves_nothing_behind(precision, graphs):
    of = SHAPES["two layers"]
    operands, weights = draw(of, torch.float32), op_tests.layer(of, torch.float32)
    with torch.inference_mode():
        own = draw(of, torch.float32), op_tests.layer(of, torch.float32)
        inside = [run(of, precision, *given, weights=each) for given, each in ((operands, weights), own)]
    outside = run(of, precision, *operands, weights=weights)
    assert torch.equal(inside[0][0], outside[0]) and torch.equal(inside[1][0], outside[0])
    outside[0].add_(1)


def test_threads_take_turns_on_an_arena(graphs):
    of = SHAPES["clips that fire"]
    cases = [(draw(of, torch.float32, seed), op_tests.layer(of, torch.float32, seed % 2)) for seed in range(4)]
    expected = [run(of, "highest", *operands, weights=weights)[0] for operands, weights in cases]
    wrong = []

    def work(number):
        for _ in range(5):
            operands, weights = cases[number]
            found = run(of, "highest", *operands, weights=weights)[0]
            if not torch.allclose(found, expected[number], rtol=0, atol=1e-5):  # products may be split otherwise
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong and len(graphs) == 1


# ---- as one op, and in models -----------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
def test_registered_as_one_op(restarts, arenas):
    of = SHAPES["two layers"]
    inputs, index, state = draw(of, torch.float32)
    schedule = make_schedule(op_tests.LENGTHS)
    rows = index[torch.from_numpy(schedule.tokens).long()]
    restart = (torch.zeros(22), torch.zeros(74)) if restarts else (None, None)
    operands = (inputs, rows, torch.from_numpy(schedule.live), torch.from_numpy(schedule.starts) if restarts else None,
                *state, stepwise_lstm.flat_weights(op_tests.layer(of, torch.float32)), "highest", 3.0, math.inf, *restart)
    torch.library.opcheck(torch.ops.elmo_fast.stepwise_lstm.default, operands)


def test_compiles_into_one_op(arenas):
    of = SHAPES["two layers"]
    inputs, index, state = draw(of, torch.float32)
    schedule = make_schedule(op_tests.LENGTHS)
    rows, live = index[torch.from_numpy(schedule.tokens).long()], torch.from_numpy(schedule.live)
    weights = stepwise_lstm.flat_weights(op_tests.layer(of, torch.float32))

    def around(x):
        out, h, c = torch.ops.elmo_fast.stepwise_lstm(x * 2, rows, live, None, *state, weights, "highest", 3.0, 3.0, None,
                                                      None)
        return out + 1, h, c

    compiled = torch.compile(around, fullgraph=True, backend="aot_eager")
    for one, other in zip(compiled(inputs), around(inputs)):
        assert torch.equal(one, other)


@pytest.mark.parametrize("shape", ["two layers", "four layers", "no projection", "no skip connections", "clips that fire"])
@pytest.mark.parametrize("state", ["carry", "zero", "warm"])
def test_states_over_ragged_batches(shape, state, graphs, monkeypatch):
    """A batch, a smaller one, a larger one, against the reference in float64; the LSTM's steps are replayed."""
    def tier_a(*operands, backend, multiplied, **settings):
        assert not multiplied
        return stepwise_lstm.projected_lstm(*operands, **settings)

    truth, found = bilm(SHAPES[shape], state=state, backend="reference").double(), bilm(SHAPES[shape], state=state)
    batches = [SENTENCES[:4], SENTENCES[1:3], SENTENCES[::-1], SENTENCES[2:5]]
    expected = [truth.embed_tokens(batch)[0] for batch in batches]
    monkeypatch.setattr("elmo_fast.model.lstm.projected_lstm", tier_a)
    for batch, layers in zip(batches, expected):
        for one, other in zip(found.embed_tokens(batch)[0], layers):
            assert relative_error(one, other) < LIMITS["highest"]
    assert graphs[0].replayed
    if state == "carry":
        for one, other in zip(found._elmo_lstm._states, truth._elmo_lstm._states):
            assert relative_error(one, other) < LIMITS["highest"]
