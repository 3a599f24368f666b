"""The graph path of the CUDA LSTM, run on the CPU: the same code without graphs, and with graphs that are faked."""

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
from torch.optim import SGD

from elmo_fast.model.layout import in_text_order
from elmo_fast.ops import reference, torch_lstm_pointwise
from elmo_fast.ops.cuda import blocks, buffers, lstm, operands, padded, steps
from elmo_fast.ops.schedule import make_schedule

LIMITS = {"highest": AGAINST_FLOAT64["highest"], "high": AGAINST_FLOAT64["high-tf32"],
          "medium": AGAINST_FLOAT64["medium-fp16"]}
SLOTS = np.array([0, 1, 1, 0, 2, 1, 0])
FIRING = SHAPES["clips that fire"]


@pytest.fixture(autouse=True)
def arenas(monkeypatch):
    """A cache of its own."""
    monkeypatch.setattr(lstm, "_arenas", buffers.Arenas())
    return lstm._arenas


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
    monkeypatch.setattr(steps, "pointwise_of", lambda device: kernels)
    return kernels


@pytest.fixture(params=["a table in full", "unique rows of a block", "packed rows", "small groups"])
def projected(request, monkeypatch):
    """Each way to come by the input projections; and slots in groups that do not step together."""
    if request.param == "packed rows":
        monkeypatch.setattr(lstm, "known_on_host", lambda rows: False)
    if request.param != "a table in full":
        monkeypatch.setattr(buffers, "rows_held", lambda layer: 14 if "rows" in request.param else 8)
        monkeypatch.setattr(op_tests, "draw", many_rows)
    if request.param == "small groups":
        monkeypatch.setitem(steps.MOST_SLOTS, "graph", 4)


draw = op_tests.draw


def many_rows(*arguments):
    """Inputs with so many rows besides those read that they are not projected in full."""
    inputs, index, state = draw(*arguments)
    return torch.cat([torch.full_like(inputs, torch.nan)] * 9 + [inputs]), index + 9 * len(inputs), state


def run(of, precision, inputs, index, state, lengths=op_tests.LENGTHS, slots=None, weights=None, **more):
    """As `op_tests.run`, on the GPU's op."""
    schedule = make_schedule(lengths, slots)
    order = torch.from_numpy(schedule.tokens).long()
    found, final = lstm.projected_lstm(
        inputs, index[order], schedule, state, weights or op_tests.layer(of, torch.float32),
        cell_clip=of.lstm.cell_clip, proj_clip=of.lstm.proj_clip, precision=precision, **more)
    return in_text_order(found, order), final


def expected_of(of, inputs, index, state, slots=None, restart=None, **more):
    """The same by the reference in float64."""
    state, restart = (each and tuple(part.double() for part in each) for each in (state, restart))
    return op_tests.run(of, inputs.double(), index, state, "reference", lanes=slots, restart=restart, **more)


def assert_close(found, expected, limit):
    for one, other in zip((found[0], *found[1]), (expected[0], *expected[1])):
        assert one.shape == other.shape and one.dtype == torch.float32
        assert relative_error(one, other) < limit


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("shape", ["two layers", "no projection", "no clips", "clips that fire"])
def test_agrees_with_float64(shape, precision, projected):
    given = op_tests.draw(SHAPES[shape], torch.float32)
    limit = LIMITS[precision] if shape != "no clips" or precision != "medium" else AGAINST_FLOAT64["medium-bf16"]
    assert_close(run(SHAPES[shape], precision, *given), expected_of(SHAPES[shape], *given), limit)


@pytest.mark.parametrize("shape, precision, limit", [
    ("no projection", "medium", LIMITS["medium"]), ("clips that fire", "highest", LIMITS["highest"]),
    ("clips that fire", "medium", LIMITS["medium"]), ("no clips", "medium", AGAINST_FLOAT64["medium-bf16"])])
def test_triton_kernels_agree_with_float64(shape, precision, limit, triton_kernels, monkeypatch):
    """Sequences start within slots, some of which stop before others."""
    monkeypatch.setattr(steps, "pointwise_of", lambda device: triton_kernels)
    of = SHAPES[shape]
    inputs, index, state = draw(of, torch.float32)
    restart = tuple(torch.linspace(-0.2, 0.2, 2 * size) for size in (11, of.lstm.dim))
    given, more = (inputs, index, tuple(each[:3] for each in state)), {"slots": SLOTS, "restart": restart}
    assert_close(run(of, precision, *given, **more), expected_of(of, *given, **more), limit)


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_agrees_where_sequences_start_within_slots(precision, projected):
    inputs, index, state = op_tests.draw(FIRING, torch.float32)
    more = {"slots": SLOTS, "restart": tuple(torch.linspace(-0.2, 0.2, 2 * size) for size in (11, 37))}
    state = tuple(each[:3] * torch.nan for each in state)
    given = inputs, index, state
    assert_close(run(FIRING, precision, *given, **more), expected_of(FIRING, *given, **more), LIMITS[precision])


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("precision", LIMITS)
def test_each_direction_reads_its_half_in_blocks(precision, bounded, projected):
    inputs, index, state = draw(FIRING, torch.float32)
    schedule = make_schedule(op_tests.LENGTHS)
    order = torch.from_numpy(schedule.tokens).long()
    halves = torch.cat([inputs[index][order[0]], inputs[index][order[1]]], dim=1)
    weights, settings = op_tests.layer(FIRING, torch.float32), {"cell_clip": 0.3, "proj_clip": 0.05, "bounded": bounded}
    found, final = lstm.projected_lstm(halves, None, schedule, state, weights, precision=precision, **settings)
    assert_close((in_text_order(found, order), final), expected_of(FIRING, inputs, index, state), LIMITS[precision])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_stays_in_its_sentence(value, pointwise):
    inputs, index, state = draw(FIRING, torch.float32)
    expected, _ = run(FIRING, "highest", inputs, index, state)
    poisoned, index = torch.cat([inputs, torch.full_like(inputs[:1], value)]), index.clone()
    index[5] = len(inputs)  # the second token of the sentence of seven, tokens 4 to 10
    found, _ = run(FIRING, "highest", poisoned, index, state)
    others = [*range(4), *range(11, len(index))]
    assert torch.allclose(found[others], expected[others], rtol=1e-5, atol=1e-6)


# ---- 16-bit operands --------------------------------------------------------------------------


@pytest.mark.parametrize("change, dtype", [
    ({}, torch.float16), ({"proj_clip": None}, torch.bfloat16), ({"proj_clip": 1e5}, torch.bfloat16),
    ({"dim": 11, "proj_clip": None}, torch.float16),
])
def test_medium_takes_fp16_where_the_operands_are_bounded(change, dtype):
    of = options(change)
    weights, clip = operands.flat_weights(op_tests.layer(of, torch.float32)), operands.limit(of.lstm.proj_clip)
    assert operands.operands(weights, "medium", clip).dtype == dtype
    assert operands.operands(weights, "high", clip).dtype == torch.float32
    weights[0][3, 5] = 4e4  # seen although the copies are made
    assert operands.operands(weights, "medium", clip).dtype == torch.bfloat16


@pytest.mark.parametrize("of_both", [False, True])
def test_scaled_rows_give_their_projections(of_both):
    inputs, _, _ = draw(SHAPES["two layers"], torch.float32)
    for row, size in enumerate((1e5, 1e30, 1e-3, 1.0)):
        inputs[row] *= size
    inputs[5, 3] = torch.inf
    weights = op_tests.layer(SHAPES["two layers"], torch.float32)
    flat = operands.flat_weights(weights)
    layer = operands.operands(flat, "medium", 3.0)
    arena = lstm.arena_of(layer, flat[0], inputs.device)
    both = (inputs, inputs) if of_both else (inputs, inputs.flip(0))
    lstm.project(arena, layer, inputs if of_both else torch.stack(both), False)
    for direction, x in enumerate(both):
        found = arena.z[: len(x), direction].double() * arena.scale[: len(x), direction, None]
        finite = x.isfinite().all(1)
        expected = x.double() @ weights[direction][0][:11].double()
        assert (((found - expected).norm(dim=1) / expected.norm(dim=1)) < 1e-3)[finite].all()
        assert not found[~finite].isfinite().any()


def test_rows_of_any_size_fit_fp16(pointwise):
    inputs, index, state = draw(SHAPES["two layers"], torch.float32)
    for row, size in enumerate((1e6, 1e30, 1e-3, 1.0)):
        inputs[row] *= size
    of, given = SHAPES["two layers"], (inputs, index, state)
    assert_close(run(of, "medium", *given), expected_of(of, *given), LIMITS["medium"])


# ---- graphs -----------------------------------------------------------------------------------


@pytest.fixture
def graphs(monkeypatch, arenas):
    """Captures are faked; gives the list of them, one for each arena."""
    made = []

    def buffers_of(number):
        arena = list(arenas._kept.values())[number][0]
        layers = [layer for bucket in arena._buckets.values() for layer in bucket._graphs]
        holders = [arena, *arena._buckets.values(), *layers]
        return [each for holder in holders for each in vars(holder).values() if isinstance(each, torch.Tensor)]

    def capture_on(device):
        number = len(made)
        made.append(fake_graphs.FakeCapture(lambda: buffers_of(number)))
        return made[-1]

    monkeypatch.setattr(lstm, "capture_on", capture_on)
    return made


@pytest.mark.parametrize("precision, starts", [("highest", False), ("medium", True)])
def test_replays_give_what_plain_steps_give(precision, starts, graphs):
    weights = op_tests.layer(FIRING, torch.float32)
    restart = {"restart": tuple(torch.linspace(-1, 1, 2 * size) for size in (11, 37))} if starts else {}
    results = []
    for seed in (0, 1, 0, 1):
        inputs, index, state = draw(FIRING, torch.float32, seed)
        found, final = run(FIRING, precision, inputs, index, tuple(each[:3] for each in state), slots=SLOTS,
                           weights=weights, **restart)
        results.append((found, *final))
    assert len(graphs) == 1 and graphs[0].captured and graphs[0].replayed
    for plain, replayed in zip(results[:2], results[2:]):
        assert all(map(torch.equal, plain, replayed))
    assert not torch.equal(results[0][0], results[1][0])


def test_each_setting_and_layer_has_graphs_of_its_own(graphs):
    """Clips, starts and weights in turn on one arena, until all of it is replayed."""
    inputs, index, state = draw(SHAPES["two layers"], torch.float32)
    given = inputs, index, tuple(each[:3] for each in state)
    restart = {"slots": SLOTS, "restart": tuple(torch.linspace(-1, 1, 2 * size) for size in (11, 37))}
    layers = [op_tests.layer(SHAPES["two layers"], torch.float32, number) for number in (0, 1)]
    cases = [(of, layer, more) for of in (options(), options({"cell_clip": 0.3}), options({"proj_clip": 0.05}))
             for layer in layers for more in ({"slots": SLOTS}, restart)]
    expected = [expected_of(of, *given, weights=tuple(tuple(each.double() for each in one) for one in layer), **more)
                for of, layer, more in cases]
    for _ in range(3):
        for (of, layer, more), truth in zip(cases, expected):
            assert_close(run(of, "highest", *given, weights=layer, **more), truth, LIMITS["highest"])
    assert len(graphs) == 1 and graphs[0].replayed


@pytest.mark.parametrize("length", [1, 31, 100, 250])
def test_any_length_replays_a_few_graphs(length, graphs):
    of, weights = SHAPES["two layers"], op_tests.layer(SHAPES["two layers"], torch.float32)
    inputs, _, state = draw(of, torch.float32)
    given = inputs, torch.arange(2 * length) % 6, tuple(each[:2] for each in state)
    for _ in range(4):
        graphs and setattr(graphs[0], "replayed", 0)
        found = run(of, "highest", *given, lengths=[length] * 2, weights=weights)
    assert_close(found, expected_of(of, *given, lengths=[length] * 2), LIMITS["highest"])
    assert graphs[0].captured <= len(blocks.CHUNKS)
    assert graphs[0].replayed == length // 16 + bin(length % 16).count("1")


def test_a_capture_that_fails_leaves_plain_steps_and_one_warning(graphs, caplog):
    given, weights = draw(FIRING, torch.float32), op_tests.layer(FIRING, torch.float32)
    with caplog.at_level(logging.WARNING):
        first = run(FIRING, "highest", *given, weights=weights)
        graphs[0].fails = True
        again = [run(FIRING, "highest", *given, weights=weights) for _ in range(3)][-1]
    assert torch.equal(first[0], again[0])
    assert caplog.text.count("run without CUDA graphs") == 1 and not graphs[0].captured


def test_a_chunk_that_reads_foreign_memory_is_noticed():
    foreign, own = torch.zeros(3), torch.zeros(3)
    with pytest.raises(AssertionError, match="not the graph's"), fake_graphs.Watch({fake_graphs.address(own)}):
        own.add_(foreign)
    with pytest.raises(AssertionError, match="waits"), fake_graphs.Watch({fake_graphs.address(own)}):
        own.sum().item()


@pytest.mark.parametrize("halves, precision, most", [(0, "highest", 55), (0, "medium", 73), (1, "medium", 64)])
def test_a_call_queues_few_operations_besides_graphs(halves, precision, most, monkeypatch):
    """Views included: each of them costs the host a microsecond or more, and so does a copy between the chunks."""
    class Replayed:
        def replay(self):
            pass

    monkeypatch.setattr(lstm, "capture_on", lambda device: lambda work: Replayed())
    schedule, weights = make_schedule([25] * 64), operands.flat_weights(op_tests.layer(options(), torch.float32))
    inputs = (torch.randn(1600, 22), None) if halves else (torch.randn(1600, 11), torch.from_numpy(schedule.tokens))
    given = (*inputs, torch.from_numpy(schedule.lanes), torch.from_numpy(schedule.live), None, torch.randn(64, 22),
             torch.randn(64, 74), weights, precision, 3.0, 3.0, None, None, bool(halves))
    watch = fake_graphs.Watch(())
    watch.check = lambda *values, by: None
    for _ in range(2):
        lstm.run(*given)
    with watch:
        lstm.run(*given)
    assert 40 < watch.operations <= most


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_a_padded_batch_waits_for_nothing(precision, monkeypatch):
    x, lengths, state = torch.randn(3, 20, 11), torch.tensor([20, 0, 7]), (torch.randn(3, 22), torch.randn(3, 74))
    weights, clips = op_tests.layer(FIRING, torch.float32), {"cell_clip": 0.3, "proj_clip": 0.05}
    schedule = make_schedule(lengths.tolist())
    rows = torch.from_numpy(schedule.tokens + 20 * (schedule.tokens >= 20))  # past the empty sentence
    expected = reference.projected_lstm(x.flatten(0, 1), rows, schedule, state, weights, **clips)
    operands.operands(operands.flat_weights(weights), precision, 0.05)
    watch = fake_graphs.Watch(())
    watch.check = lambda *values, by: None  # the buffers are the call's own: only waiting is looked for
    for most in (1024, 2):
        monkeypatch.setitem(steps.MOST_SLOTS, "graph", most)
        with watch:
            found, final = padded.padded_lstm(x, lengths, state, weights, precision=precision, **clips)
        assert (found[1] == 0).all() and (found[2, 7:] == 0).all() and torch.equal(final[1][1], state[1][1])
        real = torch.cat([found[0], found[2, :7]])
        order = torch.from_numpy(schedule.tokens).long()
        assert_close((real, final), (in_text_order(expected[0], order), expected[1]), LIMITS[precision])


# ---- memory -----------------------------------------------------------------------------------


def test_models_of_one_size_share_an_arena_and_take_it_along(arenas):
    given = draw(FIRING, torch.float32)
    one, two = (op_tests.layer(FIRING, torch.float32, number) for number in (0, 1))
    alone = [run(FIRING, "highest", *given, weights=each)[0] for each in (one, two)]
    assert len(arenas) == 1 and not torch.equal(*alone)
    assert torch.equal(run(FIRING, "highest", *given, weights=one)[0], alone[0])
    (arena, _), = arenas._kept.values()
    assert {len(bucket._graphs) for bucket in arena._buckets.values()} == {2}
    one[0][0].mul_(1)  # what was made of the weights before goes, and its graphs with it
    run(FIRING, "highest", *given, weights=one)
    gc.collect()
    assert {len(bucket._graphs) for bucket in arena._buckets.values()} == {2}
    del one
    gc.collect()
    assert len(arenas) == 1 and {len(bucket._graphs) for bucket in arena._buckets.values()} == {1}
    del two
    gc.collect()
    assert len(arenas) == 0


@pytest.mark.parametrize("precision", ["highest", "medium"])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_an_edit_in_place_is_seen(part, precision):
    given, weights = draw(FIRING, torch.float32), op_tests.layer(FIRING, torch.float32)
    before = run(FIRING, precision, *given, weights=weights)
    weights[1][part].mul_(0.5)
    after = run(FIRING, precision, *given, weights=weights)
    assert not torch.equal(before[0], after[0])
    fresh = tuple(tuple(each.clone() for each in direction) for direction in weights)
    assert torch.equal(run(FIRING, precision, *given, weights=fresh)[0], after[0])


def test_a_step_of_a_fused_optimizer_is_seen():
    given, weights = draw(FIRING, torch.float32), op_tests.layer(FIRING, torch.float32, requires_grad=True)
    before = run(FIRING, "medium", *given, weights=weights)
    weights[0][0].grad = torch.ones_like(weights[0][0])
    SGD([weights[0][0]], lr=0.1, fused=True).step()
    assert not torch.equal(run(FIRING, "medium", *given, weights=weights)[0], before[0])


def test_the_cache_is_bounded():
    arenas, weight = buffers.Arenas(most=2), torch.ones(1)
    made = [arenas.get(key, weight, lambda key=key: f"arena {key}") for key in "abacb"]
    assert made == ["arena a", "arena b", "arena a", "arena c", "arena b"]
    assert list(arenas._kept) == ["c", "b"]
    del weight
    assert len(arenas) == 0


def test_buckets_are_bounded(graphs, monkeypatch, arenas):
    monkeypatch.setattr(buffers, "_MOST_BUCKETS", 2)
    weights = op_tests.layer(FIRING, torch.float32)
    inputs, _, state = draw(FIRING, torch.float32)
    for slots in (1, 2, 3, 7) * 2:
        given = inputs, torch.arange(4 * slots) % 6, tuple(each[:slots] for each in state)
        found = run(FIRING, "highest", *given, lengths=[4] * slots, weights=weights)
        assert_close(found, expected_of(FIRING, *given, lengths=[4] * slots), LIMITS["highest"])
    (arena, _), = arenas._kept.values()
    assert list(arena._buckets) == [4, 8]


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_inference_mode_leaves_nothing_behind(precision, graphs):
    given, weights = draw(FIRING, torch.float32), op_tests.layer(FIRING, torch.float32)
    with torch.inference_mode():
        own = draw(FIRING, torch.float32), op_tests.layer(FIRING, torch.float32)
        inside = [run(FIRING, precision, *some, weights=each) for some, each in ((given, weights), own)]
    outside = run(FIRING, precision, *given, weights=weights)
    assert torch.equal(inside[0][0], outside[0]) and torch.equal(inside[1][0], outside[0])
    outside[0].add_(1)


def test_threads_take_turns_on_an_arena(graphs):
    cases = [(draw(FIRING, torch.float32, seed), op_tests.layer(FIRING, torch.float32, seed % 2)) for seed in range(4)]
    expected = [run(FIRING, "highest", *given, weights=weights)[0] for given, weights in cases]
    wrong = []

    def work(number):
        for _ in range(5):
            given, weights = cases[number]
            found = run(FIRING, "highest", *given, weights=weights)[0]
            if not torch.allclose(found, expected[number], rtol=0, atol=1e-5):  # products may be split otherwise
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong and len(graphs) == 1


# ---- as one op, and in models -----------------------------------------------------------------


@pytest.mark.parametrize("starts", [False, True])
def test_registered_as_one_op(starts):
    inputs, index, state = draw(FIRING, torch.float32)
    schedule = make_schedule(op_tests.LENGTHS)
    rows = index[torch.from_numpy(schedule.tokens).long()]
    fresh = (torch.zeros(22), torch.zeros(74)) if starts else (None, None)
    given = (inputs, rows, torch.from_numpy(schedule.lanes), torch.from_numpy(schedule.live),
             torch.from_numpy(schedule.starts) if starts else None, *state,
             operands.flat_weights(op_tests.layer(FIRING, torch.float32)), "highest", 3.0, math.inf, *fresh, False)
    torch.library.opcheck(torch.ops.elmo_fast.cuda_lstm.default, given)
    compiled = torch.compile(lambda x: torch.ops.elmo_fast.cuda_lstm(x * 2, *given[1:]), fullgraph=True,
                             backend="aot_eager")
    for one, other in zip(compiled(inputs), torch.ops.elmo_fast.cuda_lstm(inputs * 2, *given[1:])):
        assert torch.equal(one, other)


@pytest.mark.parametrize("shape, precision", [
    ("four layers", "medium"), ("no projection", "highest"), ("no skip connections", "medium"),
    ("clips that fire", "highest")])
@pytest.mark.parametrize("state", ["carry", "zero", "warm"])
def test_states_over_ragged_batches(shape, state, precision, graphs, monkeypatch):
    """A batch, a smaller one, a larger one, against the reference in float64; the LSTM's steps are replayed."""
    def on_gpu(*given, backend, multiplied, **settings):
        assert not multiplied
        bounds.append(settings["bounded"])
        return lstm.projected_lstm(*given, **{**settings, "precision": precision})

    truth, found = bilm(SHAPES[shape], state=state, backend="reference").double(), bilm(SHAPES[shape], state=state)
    batches, bounds = [SENTENCES[:4], SENTENCES[1:3], SENTENCES[::-1], SENTENCES[2:5]], []
    expected = [truth.embed_tokens(batch)[0] for batch in batches]
    monkeypatch.setattr("elmo_fast.model.lstm.projected_lstm", on_gpu)
    for batch, layers in zip(batches, expected):
        for one, other in zip(found.embed_tokens(batch)[0], layers):
            assert relative_error(one, other) < LIMITS[precision]
    if state == "carry":
        for one, other in zip(found._elmo_lstm._states, truth._elmo_lstm._states):
            assert relative_error(one, other) < LIMITS[precision]
    layers = SHAPES[shape].lstm.n_layers
    assert graphs[0].replayed and bounds[-layers:] == [
        layer == 1 or layer > 1 and not SHAPES[shape].lstm.use_skip_connections for layer in range(layers)]
