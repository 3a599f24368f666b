"""The graph path of the CUDA LSTM, run on the CPU: the same code without graphs, and with graphs that are faked."""

import contextlib
import gc
import itertools
import math
import threading

from tests.support import fake_graphs
import numpy as np
import pytest
from tests.support import cuda_ops, op_cases
import torch
from tests.support.models import SENTENCES, SHAPES, bilm, options
from tests.support.ptx_machine import machine
from tests.support.op_cases import draw
from elmo_fast.testing.tolerances import AGAINST_FLOAT64, relative_error
from torch.optim import SGD

from elmo_fast.model.layout import in_text_order
from elmo_fast.ops import reference
from elmo_fast.ops.cuda import blocks, buffers, lstm, operands, padded, steps
from elmo_fast.ops.schedule import make_schedule
from elmo_fast.ops.schemas import LstmCall, flat_weights, limit

LIMITS = {"highest": AGAINST_FLOAT64["highest"], "high": AGAINST_FLOAT64["high-tf32"],
          "medium": AGAINST_FLOAT64["medium-fp16"]}
SLOTS = np.array([0, 1, 1, 0, 2, 1, 0])
FIRING = SHAPES["clips that fire"]
CLIPS = {"cell_clip": 0.3, "proj_clip": 0.05}  # of FIRING
INITIAL_STATE = tuple(torch.linspace(-0.2, 0.2, 2 * size) for size in (11, 37))
WAYS = ["a table in full", "unique rows of a block", "packed rows", "small groups"]  # to come by input projections


@pytest.fixture(autouse=True)
def arenas(monkeypatch):
    """A cache of its own."""
    monkeypatch.setattr(lstm, "_arenas", buffers.Arenas())
    return lstm._arenas


class RowsOnDevice(lstm._Call):
    """Takes the host's rows for ones that only the device can read."""

    def __init__(self, steps, inputs, rows, *settings):
        super().__init__(steps, inputs, rows, *settings)
        self.on_host, self.rows = False, rows


@pytest.fixture(params=WAYS)
def projected(request, monkeypatch):
    """Each way to come by the input projections; and slots in groups that do not step together."""
    if request.param == "packed rows":
        monkeypatch.setattr(lstm, "_Call", RowsOnDevice)
    if request.param != "a table in full":
        monkeypatch.setattr(buffers, "rows_held", lambda layer: 14 if "rows" in request.param else 8)
        monkeypatch.setattr(op_cases, "draw", many_rows)
    if request.param == "small groups":
        monkeypatch.setitem(steps.MOST_SLOTS, "graph", 4)


def many_rows(*arguments):
    """Inputs with so many rows besides those read that they are not projected in full."""
    inputs, index, state = draw(*arguments)
    return torch.cat([torch.full_like(inputs, torch.nan)] * 9 + [inputs]), index + 9 * len(inputs), state


def run(of, precision, inputs, index, state, lengths=op_cases.LENGTHS, slots=None, weights=None, **more):
    """As `op_cases.run`, on the GPU's op."""
    schedule = make_schedule(lengths, slots)
    order = torch.from_numpy(schedule.tokens).long()
    found, final = cuda_ops.projected_lstm(
        inputs, index[order], schedule, state, weights or layer(of),
        cell_clip=of.lstm.cell_clip, proj_clip=of.lstm.proj_clip, precision=precision, **more)
    return in_text_order(found, order), final


def layer(of=FIRING, number=0, **more):
    return op_cases.layer(of, torch.float32, number, **more)


def expected_of(of, inputs, index, state, slots=None, initial_state=None, weights=None, **more):
    """The same by the reference in float64."""
    state, initial_state = (each and tuple(part.double() for part in each) for each in (state, initial_state))
    weights = weights and tuple(tuple(part.double() for part in each) for each in weights)
    return op_cases.run(of, inputs.double(), index, state, "reference", slots=slots, initial_state=initial_state, weights=weights,
                        **more)


def assert_close(found, expected, limit):
    for one, other in zip((found[0], *found[1]), (expected[0], *expected[1])):
        assert one.shape == other.shape and one.dtype == torch.float32
        assert relative_error(one, other) < limit


def check(of, precision, *given, limit=None, **more):
    found = run(of, precision, *given, **more)
    assert_close(found, expected_of(of, *given, **more), limit or LIMITS[precision])
    return found


CASES = [(("two layers", "no projection", "no clips", "clips that fire")[number % 4], precision, way)
         for number, (way, precision) in enumerate(itertools.product(WAYS, LIMITS))]


@pytest.mark.parametrize("shape, precision, projected", CASES, indirect=["projected"])
def test_agrees_with_float64(shape, precision, projected):
    """Also where sequences start within slots, from NaN that the starts replace."""
    of, (inputs, index, state) = SHAPES[shape], op_cases.draw(SHAPES[shape], torch.float32)
    limit = AGAINST_FLOAT64["medium-bf16"] if (shape, precision) == ("no clips", "medium") else LIMITS[precision]
    check(of, precision, inputs, index, state, limit=limit)
    initial_state = tuple(torch.linspace(-0.2, 0.2, each.shape[1]) for each in state)
    lost = tuple(each[:3] * torch.nan for each in state)
    check(of, precision, inputs, index, lost, limit=limit, slots=SLOTS, initial_state=initial_state)


@pytest.mark.parametrize("precision, bounded, projected", [
    ("highest", False, WAYS[0]), ("medium", True, WAYS[1]), ("high", True, WAYS[2]), ("medium", False, WAYS[3])],
    indirect=["projected"])
def test_each_direction_reads_its_half_in_blocks(precision, bounded, projected):
    inputs, index, state = draw(FIRING, torch.float32)
    schedule = make_schedule(op_cases.LENGTHS)
    order = torch.from_numpy(schedule.tokens).long()
    halves = torch.cat([inputs[index][order[0]], inputs[index][order[1]]], dim=1)
    found, final = cuda_ops.projected_lstm(halves, None, schedule, state, layer(), precision=precision,
                                           bounded=bounded, **CLIPS)
    assert_close((in_text_order(found, order), final), expected_of(FIRING, inputs, index, state), LIMITS[precision])


def triton_as_ptx(monkeypatch):
    """Triton's kernels, run from their PTX."""
    from tests.support import triton_on_ptx

    from elmo_fast.kernels import lstm_pointwise

    machine()
    monkeypatch.setattr(triton_on_ptx, "device_memory", lambda *tensors: contextlib.nullcontext())  # views overlap
    for name in ("_gates", "_hidden"):
        monkeypatch.setattr(lstm_pointwise, name, triton_on_ptx.OnPtx(getattr(lstm_pointwise, name), 90))
    monkeypatch.setattr(steps, "pointwise_of", lambda device: lstm_pointwise)


@pytest.mark.parametrize("kernels, precision", [
    ("torch", "highest"), ("torch", "medium"), ("triton", "highest"), ("triton", "medium")])
def test_what_is_no_number_stays_in_its_sentence(kernels, precision, monkeypatch):
    if kernels == "triton":
        triton_as_ptx(monkeypatch)
    inputs, index, state = draw(FIRING, torch.float32)
    check(FIRING, precision, inputs, index, state)
    expected, _ = run(FIRING, precision, inputs, index, state)
    poisoned, index = torch.cat([inputs, torch.full_like(inputs[:2], torch.inf)]), index.clone()
    poisoned[-1] = torch.nan
    index[5:7] = torch.arange(len(inputs), len(poisoned))  # tokens two and three of the sentence of tokens 4 to 10
    found, _ = run(FIRING, precision, poisoned, index, state)
    others = [*range(4), *range(11, len(index))]
    assert found[4:11].isnan().any() and torch.allclose(found[others], expected[others], rtol=1e-5, atol=1e-6)


# ---- 16-bit operands --------------------------------------------------------------------------


@pytest.mark.parametrize("change, dtype", [
    ({}, torch.float16), ({"proj_clip": None}, torch.bfloat16), ({"proj_clip": 1e5}, torch.bfloat16),
    ({"dim": 11, "proj_clip": None}, torch.float16),
])
def test_medium_takes_fp16_where_the_operands_are_bounded(change, dtype):
    of = options(change)
    weights, clip = flat_weights(layer(of)), limit(of.lstm.proj_clip)
    assert operands.operands(weights, "medium", clip).dtype == dtype
    assert operands.operands(weights, "high", clip).dtype == torch.float32
    weights[0][3, 5] = 4e4  # seen although the copies are made
    assert operands.operands(weights, "medium", clip).dtype == torch.bfloat16


def test_scaled_rows_give_their_projections(arenas):
    """Each row within the rounding of its own size, for both directions from one table and from rows of their own."""
    inputs, weights = draw(FIRING, torch.float32)[0], layer()
    inputs[:4] *= torch.tensor([1e5, 1e30, 1e-3, 1.0])[:, None]
    of_layer = operands.operands(flat_weights(weights), "medium", 3.0)
    arena = lstm.arena_of(of_layer, weights[0][0], inputs.device)
    for x in (inputs, torch.stack([inputs, inputs.flip(0)])):
        lstm.project(arena, of_layer, x, False)
        for direction, rows in enumerate(x if x.dim() == 3 else (x, x)):
            found = arena.z[: len(rows), direction].double() * arena.scale[: len(rows), direction, None]
            expected = rows.double() @ weights[direction][0][: rows.shape[1]].double()
            assert (((found - expected).norm(dim=1) / expected.norm(dim=1)) < 1e-3).all()


def test_rows_of_any_size_fit_fp16():
    inputs, index, state = draw(SHAPES["two layers"], torch.float32)
    for row, size in enumerate((1e6, 1e30, 1e-3, 1.0)):
        inputs[row] *= size
    check(SHAPES["two layers"], "medium", inputs, index, state)


# ---- graphs -----------------------------------------------------------------------------------


@pytest.fixture
def graphs(monkeypatch, arenas):
    """Captures are faked; gives the list of them, one for each arena."""
    made = []

    def buffers_of(capture):
        arena = next(each for each in arenas.kept.values() if each.capture is capture)
        layers = [of for bucket in arena._buckets.values() for of in bucket.graphs]
        holders = [arena, *arena._buckets.values(), *layers]
        return [each for holder in holders for each in vars(holder).values() if isinstance(each, torch.Tensor)]

    def capture_on(device):
        made.append(fake_graphs.FakeCapture(buffers_of))
        return made[-1]

    monkeypatch.setattr(lstm, "capture_on", capture_on)
    return made


def few_slots(seed=0):
    inputs, index, state = draw(FIRING, torch.float32, seed)
    return inputs, index, tuple(each[:3] for each in state)


def test_each_setting_and_layer_has_graphs_of_its_own(graphs):
    """Clips, starts, weights and inputs in turn on an arena of each operand type, until all of it is replayed."""
    layers, clipped = [layer(SHAPES["two layers"], number) for number in (0, 1)], options({"cell_clip": 0.3})
    cases = [(options(), "highest", 0, {}), (options(), "highest", 1, {}), (options(), "medium", 1, {}),
             (clipped, "highest", 0, {"initial_state": INITIAL_STATE}), (FIRING, "medium", 0, {"initial_state": INITIAL_STATE})]
    plain, _, replayed = ([check(of, precision, *few_slots(seed), slots=SLOTS, weights=layers[number], **more)
                           for of, precision, number, more in cases] for seed in (0, 1, 0))
    assert len(graphs) == 2 and all(each.replayed for each in graphs)
    for (one, state), (other, other_state) in zip(plain, replayed):
        assert all(map(torch.equal, (one, *state), (other, *other_state)))


@pytest.mark.parametrize("length", [1, 31, 50])
def test_any_length_replays_a_few_graphs(length, graphs):
    inputs, _, state = few_slots()
    weights, given = layer(), (inputs, torch.arange(2 * length) % 6, tuple(each[:2] for each in state))
    for _ in range(4):
        graphs and setattr(graphs[0], "replayed", 0)
        found = run(FIRING, "highest", *given, lengths=[length] * 2, weights=weights)
    assert_close(found, expected_of(FIRING, *given, lengths=[length] * 2), LIMITS["highest"])
    assert graphs[0].captured <= len(blocks.CHUNKS)
    assert graphs[0].replayed == length // 16 + bin(length % 16).count("1")


def test_without_captures_steps_run_plainly(monkeypatch):
    monkeypatch.setattr(lstm, "capture_on", lambda device: lambda work: None)
    given, weights = draw(FIRING, torch.float32), layer()
    first, *again = (run(FIRING, "highest", *given, weights=weights)[0] for _ in range(3))
    assert torch.equal(first, again[0]) and torch.equal(first, again[1])


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
    schedule, state = make_schedule([25] * 64), (torch.randn(64, 22), torch.randn(64, 74))
    inputs = (torch.randn(1600, 22), None) if halves else (torch.randn(1600, 11), torch.from_numpy(schedule.tokens))
    given = LstmCall(*inputs, schedule, state, layer(options()), 3.0, 3.0, precision=precision,
                     bounded=bool(halves)).arguments()
    for _ in range(2):
        lstm.run(*given)
    with fake_graphs.Watch(None) as watch:
        lstm.run(*given)
    assert 40 < watch.operations <= most


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_a_padded_batch_waits_for_nothing(precision, monkeypatch):
    x, lengths, state = torch.randn(3, 20, 11), torch.tensor([20, 0, 7]), (torch.randn(3, 22), torch.randn(3, 74))
    weights, schedule = layer(), make_schedule(lengths.tolist())
    rows = torch.from_numpy(schedule.tokens + 20 * (schedule.tokens >= 20))  # past the empty sentence
    expected = reference.projected_lstm(x.flatten(0, 1), rows, schedule, state, weights, **CLIPS)
    operands.operands(flat_weights(weights), precision, 0.05)
    for most in (1024, 2):
        monkeypatch.setitem(steps.MOST_SLOTS, "graph", most)
        with fake_graphs.Watch(None):  # the buffers are the call's own: only waiting is looked for
            found, final = padded.padded_lstm(x, lengths, state, weights, precision=precision, **CLIPS)
        assert (found[1] == 0).all() and (found[2, 7:] == 0).all() and torch.equal(final[1][1], state[1][1])
        real = torch.cat([found[0], found[2, :7]])
        order = torch.from_numpy(schedule.tokens).long()
        assert_close((real, final), (in_text_order(expected[0], order), expected[1]), LIMITS[precision])


# ---- memory -----------------------------------------------------------------------------------


def test_models_of_one_size_share_an_arena_and_take_it_along(arenas):
    def layers_with_graphs():
        gc.collect()
        return [{len(bucket.graphs) for bucket in arena._buckets.values()} for arena in arenas.kept.values()]

    given = draw(FIRING, torch.float32)
    one, two = (layer(number=number) for number in (0, 1))
    alone = [run(FIRING, "highest", *given, weights=each)[0] for each in (one, two)]
    assert not torch.equal(*alone)
    assert torch.equal(run(FIRING, "highest", *given, weights=one)[0], alone[0])
    assert layers_with_graphs() == [{2}]
    one[0][0].mul_(1)  # what was made of the weights before goes, and its graphs with it
    run(FIRING, "highest", *given, weights=one)
    assert layers_with_graphs() == [{2}]
    del one
    assert layers_with_graphs() == [{1}]
    del two
    assert layers_with_graphs() == []


@pytest.mark.parametrize("part, precision", [(0, "highest"), (1, "medium"), (2, "medium")])
def test_an_edit_in_place_is_seen(part, precision):
    given, weights = draw(FIRING, torch.float32), layer(requires_grad=True)
    before = run(FIRING, precision, *given, weights=weights)
    with torch.no_grad():
        weights[1][part].mul_(0.5)
    after = run(FIRING, precision, *given, weights=weights)
    assert not torch.equal(before[0], after[0])
    fresh = tuple(tuple(each.detach().clone() for each in direction) for direction in weights)
    assert torch.equal(run(FIRING, precision, *given, weights=fresh)[0], after[0])
    weights[0][0].grad = torch.ones_like(weights[0][0])
    SGD([weights[0][0]], lr=0.1, fused=True).step()
    assert not torch.equal(run(FIRING, precision, *given, weights=weights)[0], after[0])


def test_the_cache_is_bounded():
    class Kept:
        pass

    arenas, weight = buffers.Arenas(most=2), torch.ones(1)
    made = [arenas.get(key, weight, Kept) for key in "abacba"]
    assert made[2] is made[0] and made[4] is not made[1] and made[5] is not made[0]
    assert list(arenas.kept) == ["b", "a"]
    del weight, made
    assert len(arenas.kept) == 0


def test_buckets_are_bounded(graphs, monkeypatch, arenas):
    monkeypatch.setattr(buffers, "_MOST_BUCKETS", 2)
    weights, (inputs, _, state) = layer(), draw(FIRING, torch.float32)
    for slots in (1, 2, 3, 7) * 2:
        given = inputs, torch.arange(4 * slots) % 6, tuple(each[:slots] for each in state)
        check(FIRING, "highest", *given, lengths=[4] * slots, weights=weights)
    arena, = arenas.kept.values()
    assert list(arena._buckets) == [4, 8]


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_inference_mode_leaves_nothing_behind(precision, graphs):
    given, weights = draw(FIRING, torch.float32), layer()
    with torch.inference_mode():
        own = draw(FIRING, torch.float32), layer()
        inside = [run(FIRING, precision, *some, weights=each) for some, each in ((given, weights), own)]
    outside = run(FIRING, precision, *given, weights=weights)
    assert torch.equal(inside[0][0], outside[0]) and torch.equal(inside[1][0], outside[0])
    outside[0].add_(1)


def test_threads_take_turns_on_an_arena(graphs):
    cases = [(draw(FIRING, torch.float32, seed), layer(number=seed % 2)) for seed in range(4)]
    expected = [run(FIRING, "highest", *given, weights=weights)[0] for given, weights in cases]
    right = []

    def work(number):
        for _ in range(3):
            given, weights = cases[number]
            found = run(FIRING, "highest", *given, weights=weights)[0]
            right.append(torch.allclose(found, expected[number], rtol=0, atol=1e-5))  # products may be split otherwise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert right == [True] * 12 and len(graphs) == 1


# ---- as one op, and in models -----------------------------------------------------------------


@pytest.mark.parametrize("starts", [False, True])
def test_registered_as_one_op(starts):
    inputs, index, state = draw(FIRING, torch.float32)
    schedule = make_schedule(op_cases.LENGTHS)
    rows = index[torch.from_numpy(schedule.tokens).long()]
    given = LstmCall(inputs, rows, schedule, state, layer(), 3.0, None, INITIAL_STATE if starts else None).arguments()
    with cuda_ops.registered_on_cpu():
        torch.library.opcheck(torch.ops.elmo_fast.projected_lstm.default, given)
        compiled = torch.compile(lambda x: torch.ops.elmo_fast.projected_lstm(x * 2, *given[1:]), fullgraph=True,
                                 backend="aot_eager")
        for one, other in zip(compiled(inputs), torch.ops.elmo_fast.projected_lstm(inputs * 2, *given[1:])):
            assert torch.equal(one, other)


@pytest.mark.parametrize("shape, state, precision", [
    ("four layers", "carry", "medium"), ("no projection", "zero", "highest"), ("no skip connections", "warm", "medium"),
    ("clips that fire", "carry", "highest")])
def test_states_over_ragged_batches(shape, state, precision, graphs, monkeypatch):
    check_states_over_ragged_batches(shape, state, precision, monkeypatch)
    assert graphs[0].replayed


def check_states_over_ragged_batches(shape, state, precision, monkeypatch):
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
        assert all(relative_error(one, other) < LIMITS[precision]
                   for one, other in zip(found.embed_tokens(batch)[0], layers))
    if state == "carry":
        for one, other in zip(found._elmo_lstm._states, truth._elmo_lstm._states):
            assert relative_error(one, other) < LIMITS[precision]
    layers = SHAPES[shape].lstm.n_layers
    assert bounds[-layers:] == [
        layer == 1 or layer > 1 and not SHAPES[shape].lstm.use_skip_connections for layer in range(layers)]
