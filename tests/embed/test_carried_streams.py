"""What a model carries while streams of it are read: what AllenNLP's loop over batches carries, result by result."""

import itertools

import numpy as np
import pytest

from elmo_fast import ElmoEmbedder
from elmo_fast.testing import SAME_MODEL
from tests.support.grid import grid
from tests.support.models import SHAPES, bilm, texts


def embedders(backend="native", shape="clips that fire", **arguments):
    """Two embedders of one model: the first to be tested, the second for `batches`."""
    return [ElmoEmbedder.from_bilm(bilm(SHAPES[shape], backend=backend, **arguments)) for _ in range(2)]


def batches(embedder, sentences, size):
    """AllenNLP's `embed_sentences`: a batch is read, run and stored when its first result is asked for."""
    sentences = iter(sentences)
    while batch := list(itertools.islice(sentences, size)):
        yield from embedder.embed_batch(batch)


def assert_same(found, expected, backend="native"):
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert one.shape == other.shape
        if backend == "native":
            np.testing.assert_array_equal(one, other)
        else:
            np.testing.assert_allclose(one, other, atol=SAME_MODEL, rtol=1e-7)


def assert_same_states(ours, plain, backend="native"):
    found, expected = (each.elmo_bilm._elmo_lstm._states or () for each in (ours, plain))
    assert_same([each.numpy() for each in found], [each.numpy() for each in expected], backend)


class Broken(Exception):
    """Raised by sentences, and by who reads results."""


def breaking(sentences, number):
    """The sentences, with an error in place of one of them."""
    for at, sentence in enumerate(sentences):
        if at == number:
            raise Broken
        yield sentence


def read_until_broken(results, *_):
    found = []
    with pytest.raises(Broken):
        for vectors in results:
            found.append(vectors)
            if len(found) == 10:
                raise Broken
    return found


def close_after(count):
    def use(results, *_):
        found = list(itertools.islice(results, count))
        results.close()
        return found
    return use


def keep_open(results, *_, kept=[]):  # noqa: B006
    kept.append(results)
    return [next(results), next(results)]


USES = {
    "list": lambda results, _: list(results),
    "next": lambda results, _: [next(results)],
    "next, kept open": keep_open,
    "nothing": lambda results, _: [],
    "one result a sentence": lambda results, sentences: [next(results) for _ in sentences],
    "islice 1": lambda results, _: list(itertools.islice(results, 1)),
    "islice of a batch": lambda results, _: list(itertools.islice(results, 3)),
    "islice into the next batch": lambda results, _: list(itertools.islice(results, 7)),
    "zip, sentences first": lambda results, sentences: [vectors for _, vectors in zip(sentences, results)],
    "zip, results first": lambda results, sentences: [vectors for vectors, _ in zip(results, sentences)],
    "close": close_after(4),
    "closed before it began": close_after(0),
    "an error of the reader": read_until_broken,
}
@pytest.mark.parametrize("use, backend", grid(list(USES), ["native", "torch", "reference"], together=1))
def test_three_calls_of_each_use(use, backend):
    ours, plain = embedders(backend)
    for call, count in enumerate((20, 19, 12)):
        sentences = texts(count, seed=call)
        assert_same(USES[use](ours.embed_sentences(sentences, 3), sentences),
                    USES[use](batches(plain, sentences, 3), sentences), backend)
    assert_same_states(ours, plain, backend)
    assert_same(ours.embed_batch(texts(4)), plain.embed_batch(texts(4)), backend)


def results_until_it_fails(results, kind):
    found = []
    with pytest.raises(kind):
        for vectors in results:
            found.append(vectors)  # noqa: PERF402
    return found


@pytest.mark.parametrize("size, number", grid([1, 3, 8], [0, 1, 7, 8, 9, 23]))
def test_errors_in_reading_come_after_the_whole_batches_before(number, size):
    ours, plain = embedders()
    for wrong in (None, ["a", None], ["a", ["b"]], "not split"):
        sentences, kind = [*texts(number, seed=2), wrong, *texts(5, seed=4)], Broken if wrong is None else ValueError
        sources = [breaking(sentences, number) if wrong is None else sentences for _ in range(2)]
        assert_same(results_until_it_fails(ours.embed_sentences(sources[0], size), kind),
                    results_until_it_fails(batches(plain, sources[1], size), kind))
        assert_same_states(ours, plain)


@pytest.mark.parametrize("state", ["zero", "warm"])
def test_streams_that_carry_nothing_leave_the_states_alone(state):
    ours, plain = embedders()
    for each in (ours, plain):
        each.embed_batch(texts(4))
    opened = ours.stream(texts(50, seed=1), 3, state)
    next(opened)
    assert_same(ours.embed_batch(texts(4, seed=2)), plain.embed_batch(texts(4, seed=2)))
    list(opened)
    assert_same_states(ours, plain)
    assert ours.elmo_bilm.state == "carry"
