"""The C++ engine through the ops: bits that do not depend on batch mates, edits that are seen, threads and forks."""

import concurrent.futures
import copy
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo_fast import BiLm, ElmoEmbedder, batch_to_ids
from elmo_fast.ops import weight_cache
from elmo_fast.ops.backend import native_module
from elmo_fast.ops.cpu import linear as native_linear
from elmo_fast.ops.cpu import projected_lstm as native_lstm
from elmo_fast.ops.linear import linear
from elmo_fast.ops.projected_lstm import projected_lstm
from elmo_fast.ops.schedule import make_schedule
from elmo_fast.ops.schemas import LstmCall
from elmo_fast.testing import AGAINST_FLOAT64, relative_error
from tests.support.models import SENTENCES, SHAPES, bilm, options
from tests.support.op_cases import LENGTHS, draw, layer, on_threads, run

pytestmark = pytest.mark.skipif(native_module()[0] is None, reason=f"no native module: {native_module()[1]}")


def embed(sentences, **arguments):
    return ElmoEmbedder.from_bilm(bilm(backend="native", **arguments)).embed_batch(sentences)


@pytest.mark.parametrize("state", ["zero", "warm"])
def test_a_sentence_has_the_same_bits_beside_any_others(state):
    embedder = ElmoEmbedder.from_bilm(bilm(SHAPES["clips that fire"], backend="native", state=state))
    together = embedder.embed_batch(SENTENCES)
    alone = [embedder.embed_sentence(sentence) for sentence in SENTENCES]
    turned = embedder.embed_batch(SENTENCES[::-1])[::-1]
    streamed = list(embedder.embed_sentences(SENTENCES, 2))
    for one, *others in zip(together, alone, turned, streamed):
        assert all(np.array_equal(one, other) for other in others)


def test_any_number_of_threads_gives_the_same_bits():
    expected, *others = (on_threads(threads, embed, SENTENCES) for threads in (1, 2, 3, 5))
    assert all(np.array_equal(one, two) for other in others for one, two in zip(expected, other))


def test_ids_and_strings_give_the_same_bits():
    activations, mask = bilm(backend="native")(batch_to_ids(SENTENCES))
    packed, _ = bilm(backend="native").embed_tokens(SENTENCES)
    for one, other in zip(activations, packed):
        assert torch.equal(one[mask], other)


@pytest.mark.parametrize("part, name", [
    *[("_elmo_lstm", name) for name in ("W_0_1_1", "B_0_0", "W_P_0_1_0")],
    *[("_token_embedder", name) for name in ("W_cnn_1", "b_cnn_0", "W_carry_0", "b_transform_1", "W_proj", "b_proj",
                                             "char_embed")]])
def test_an_edit_is_seen(part, name):
    model, ids = bilm(backend="native", state="zero"), batch_to_ids(SENTENCES)
    before = model(ids).activations[-1]
    with torch.no_grad():
        getattr(getattr(model, part), name).mul_(1.5).add_(0.125)
    after = model(ids).activations
    assert not torch.equal(before, after[-1])
    fresh = BiLm(model.options, model.weights(), backend="native", state="zero")(ids).activations
    assert all(torch.equal(one, other) for one, other in zip(after, fresh))


def test_packed_weights_go_with_the_model():
    count = len(weight_cache._cache)
    model = bilm(backend="native")
    model(batch_to_ids(SENTENCES))
    assert len(weight_cache._cache) > count
    twin = copy.deepcopy(model)
    del model
    assert len(weight_cache._cache) == count
    twin(batch_to_ids(SENTENCES))
    del twin
    assert len(weight_cache._cache) == count


def test_packed_weights_are_little_larger_than_the_weights():
    of = options({"dim": 512, "projection_dim": 64, "n_layers": 1}, {"filters": [[1, 32], [3, 96]]})
    model = bilm(of, backend="native")
    model(batch_to_ids(SENTENCES))
    for own in (model._elmo_lstm.W_0_0_0, model._token_embedder.W_carry_0):
        (_, packed), = weight_cache._cache[own].values()
        beside = 2 * 64 * 2048 + 2048 + 512 * 64 if own is model._elmo_lstm.W_0_0_0 else 128 * 128 + 128
        assert packed.numel() <= 1.1 * 4 * 2 * beside


def test_models_run_side_by_side_in_threads():
    models = [bilm(SHAPES["clips that fire"], seed=seed, backend="native", state="zero") for seed in range(4)]
    expected = [ElmoEmbedder.from_bilm(model).embed_batch(SENTENCES) for model in models]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            found = pool.map(lambda model: ElmoEmbedder.from_bilm(model).embed_batch(SENTENCES), models)
            for one, other in zip(found, expected):
                assert all(np.array_equal(each, same) for each, same in zip(one, other))


class Embedded(torch.utils.data.Dataset):
    def __init__(self, embedder):
        self.embedder = embedder

    def __len__(self):
        return len(SENTENCES)

    def __getitem__(self, index):
        return self.embedder.embed_sentence(SENTENCES[index])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_workers():
    embedder = ElmoEmbedder.from_bilm(bilm(backend="native", state="zero"))
    expected = [embedder.embed_sentence(sentence) for sentence in SENTENCES]
    loader = torch.utils.data.DataLoader(Embedded(embedder), batch_size=None, num_workers=2, timeout=60,
                                         multiprocessing_context="fork")
    for one, other in zip(loader, expected):
        assert np.array_equal(np.asarray(one), other)
    assert np.array_equal(embedder.embed_sentence(SENTENCES[0]), expected[0])


def test_denormals_follow_ieee():
    weight = torch.full((3, 2), 1.0)
    tiny = torch.full((1, 3), 1e-42)
    expected = tiny.double().sum(1, keepdim=True).float().expand(1, 2)
    assert torch.equal(linear(tiny, weight, torch.zeros(2), backend="native"), expected)


def test_linear_against_float64():
    generator = torch.Generator().manual_seed(0)
    for rows, inputs, outputs in ((1, 1, 1), (3, 700, 5), (65, 33, 130), (0, 4, 4)):
        x, weight, bias = (torch.randn(shape, generator=generator)
                           for shape in ((rows, inputs), (inputs, outputs), (outputs,)))
        found = linear(x, weight, bias, backend="native")
        expected = x.double() @ weight.double() + bias.double()
        assert found.shape == expected.shape
        assert not rows or relative_error(found, expected) < AGAINST_FLOAT64["highest"]


def test_float64_and_gradients_of_other_types_go_elsewhere():
    x, weight, bias = torch.ones(2, 3), torch.ones(3, 4, requires_grad=True), torch.zeros(4)
    assert linear(x, weight, bias).requires_grad and linear(x, weight.half(), bias).requires_grad
    with pytest.raises(RuntimeError, match="is not available: the native kernels have gradients in float32 only"):
        linear(x, weight.half(), bias, backend="native")
    with pytest.raises(RuntimeError, match="an operand is float64"):
        linear(x.double(), weight.detach().double(), bias.double(), backend="native")
    with torch.no_grad():
        assert torch.equal(linear(x, weight, bias, backend="native"), torch.full((2, 4), 3.0))


def registered(inputs, index, state, weights, initial_state=None):
    """Operands of `torch.ops.elmo_fast.projected_lstm` for a batch of sentences."""
    schedule = make_schedule(LENGTHS)
    rows = index[torch.from_numpy(schedule.tokens).long()]
    packed = native_lstm.pack([*weights[0], *weights[1]], "highest")
    return LstmCall(inputs, rows, schedule, state, weights, 3.0, 3.0, initial_state).arguments(packed)


def test_registered_ops():
    inputs, index, state = draw(options(), torch.float32)
    weights = layer(options(), torch.float32)
    for initial_state in (None, tuple(each[0] for each in state)):
        operands = registered(inputs, index, state, weights, initial_state)
        torch.library.opcheck(torch.ops.elmo_fast.projected_lstm.default, operands)
    packed = native_linear.pack([torch.randn(11, 5), torch.randn(5)], native_linear.NO_EPILOGUE, "highest")
    torch.library.opcheck(torch.ops.elmo_fast.linear.default, (inputs, [], packed, 5, "highest", False))


BAD = {
    "inputs of another width": (lambda a: a | {"inputs": a["inputs"][:, :10]}, "inputs: expected shape"),
    "integer inputs": (lambda a: a | {"inputs": a["inputs"].long()}, "inputs: expected floating-point"),
    "rows beyond the inputs": (lambda a: a | {"rows": a["rows"] + 6}, "rows: expected rows of inputs, 0 to 5"),
    "negative rows": (lambda a: a | {"rows": a["rows"] - 6}, "rows: expected rows of inputs"),
    "rows of other numbers": (lambda a: a | {"rows": a["rows"][:, 1:]}, "rows: expected shape"),
    "float rows": (lambda a: a | {"rows": a["rows"].float()}, "rows: expected int32 or int64"),
    "few slots of state": (lambda a: a | {"state": tuple(each[1:] for each in a["state"])}, r"state\[0\]: expected"),
    "cells of another size": (lambda a: a | {"state": (a["state"][0], a["state"][1][:, 2:])}, r"state\[1\]: expected"),
    "a clip of zero": (lambda a: a | {"cell_clip": 0.0}, "cell_clip: expected a number above 0"),
    "a negative clip": (lambda a: a | {"proj_clip": -1.0}, "proj_clip: expected a number above 0"),
    "a clip that is no number": (lambda a: a | {"proj_clip": float("nan")}, "proj_clip: expected a number above 0"),
    "half an initial state": (lambda a: a | {"initial_state": (torch.zeros(11), torch.zeros(74))},
                              r"initial_state\[0\]: expected shape"),
    "a bias cut short": (
        lambda a: a | {"weights": (a["weights"][0], (a["weights"][1][0], a["weights"][1][1][1:], a["weights"][1][2]))},
        r"weights\[1\] B: expected"),
    "one projection": (lambda a: a | {"weights": (a["weights"][0], (*a["weights"][1][:2], None))},
                       "weights: expected W_P"),
}


@pytest.mark.parametrize("backend", ["reference", "torch", "native"])
@pytest.mark.parametrize("case", BAD)
def test_refuses(case, backend):
    inputs, index, state = draw(options(), torch.float32)
    schedule = make_schedule(LENGTHS)
    good = {"inputs": inputs, "rows": index[torch.from_numpy(schedule.tokens).long()], "schedule": schedule,
            "state": state, "weights": layer(options(), torch.float32)}
    change, named = BAD[case]
    with pytest.raises(ValueError, match=f"^{named}"):
        projected_lstm(**change(good), backend=backend)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=9),
       st.integers(1, 40), st.integers(1, 24), st.integers(1, 24), st.booleans(), st.integers(0, 2**16))
def test_any_shape_agrees_with_float64(sentences, dim, projection, width, starts, seed):
    generator = torch.Generator().manual_seed(seed)
    projection = min(projection, dim)

    def random(*shape):
        return torch.randn(shape, generator=generator) / 2

    lengths, slots = (np.array(each) for each in zip(*sentences))
    schedule = make_schedule(lengths, slots)
    rows = torch.randint(0, 5, schedule.tokens.shape, generator=generator)
    weights = tuple((random(width + projection, 4 * dim), random(4 * dim),
                     random(dim, projection) if projection < dim else None) for _ in range(2))
    state = random(schedule.slots.size, 2 * projection), random(schedule.slots.size, 2 * dim)
    initial_state = (random(2 * projection), random(2 * dim)) if starts else None
    operands = random(5, width), rows, schedule, state, weights
    exact = [operands[0].double(), rows, schedule, tuple(each.double() for each in state),
             tuple(tuple(None if each is None else each.double() for each in one) for one in weights)]
    clips = {"cell_clip": 0.4, "proj_clip": 0.2}
    found, final = projected_lstm(*operands, **clips, initial_state=initial_state, backend="native")
    expected, last = projected_lstm(*exact, **clips, backend="reference",
                                    initial_state=initial_state and tuple(each.double() for each in initial_state))
    for one, other in zip((found, *final), (expected, *last)):
        assert one.shape == other.shape
        assert torch.allclose(one.double(), other, atol=2e-6)


def test_batches_and_their_halves_agree():
    of = SHAPES["clips that fire"]
    inputs, index, state = draw(of, torch.float32)
    whole, final = run(of, inputs, index, state, "native")
    first, middle = run(of, inputs, index[:4], tuple(each[:3] for each in state), "native", lengths=LENGTHS[:3])
    assert torch.equal(whole[:4], first)
    assert all(torch.equal(one[:3], other) for one, other in zip(final, middle))
