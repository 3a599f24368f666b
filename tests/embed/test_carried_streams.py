"""States that a model carries while its streams are read, result by result, as in AllenNLP's loop over batches."""

import itertools

import numpy as np
import pytest

from elmo_fast import ElmoEmbedder
from elmo_fast.testing import SAME_MODEL
from tests.embed.test_stream import bound
from tests.support.grid import grid
from tests.support.models import SHAPES, bilm, texts


def embedders(backend="native", shape="clips that fire", **arguments):
    """Two embedders of one model: the first to be tested, the second for `batches`."""
    return [ElmoEmbedder.from_bilm(bilm(SHAPES[shape], backend=backend, **arguments)) for _ in range(2)]


def batches(embedder, sentences, size):
    """AllenNLP's `embed_sentences`: a batch is read, run and stored when its first result is requested."""
    sentences = iter(sentences)
    while batch := list(itertools.islice(sentences, size)):
        yield from embedder.embed_batch(batch)


def assert_same(actual, expected, backend="native"):
    assert len(actual) == len(expected)
    for array, truth in zip(actual, expected):
        assert array.shape == truth.shape
        if backend == "native":
            np.testing.assert_array_equal(array, truth)
        else:
            np.testing.assert_allclose(array, truth, atol=SAME_MODEL, rtol=1e-7)


def assert_same_states(ours, plain, backend="native"):
    actual, expected = (each.elmo_bilm.lstm._states or () for each in (ours, plain))
    assert_same([each.numpy() for each in actual], [each.numpy() for each in expected], backend)


class Broken(Exception):
    """Raised by sentences, and by readers of results."""


def breaking(sentences, number):
    """The sentences, with an error in place of one of them."""
    for at, sentence in enumerate(sentences):
        if at == number:
            raise Broken
        yield sentence


def read_until_broken(results, *_):
    arrays = []
    with pytest.raises(Broken):
        for vectors in results:
            arrays.append(vectors)
            if len(arrays) == 10:
                raise Broken
    return arrays


def close_after(count):
    def use(results, *_):
        arrays = list(itertools.islice(results, count))
        results.close()
        return arrays
    return use


def keep_open(results, *_, streams=[]):  # noqa: B006
    streams.append(results)
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
CHUNKS = {"whole": {}, "small": {"rows": 1, "tokens": 40}, "small, one ahead": {"rows": 32, "chunks_ahead": 1}}


@pytest.mark.parametrize("use, chunks, backend", grid(
    list(USES), list(CHUNKS), ["native", "torch", "reference"], together=1))
def test_three_calls_of_each_use(monkeypatch, use, chunks, backend):
    if CHUNKS[chunks]:
        bound(monkeypatch, **CHUNKS[chunks])
    ours, plain = embedders(backend)
    for call, count in enumerate((20, 19, 12)):
        sentences = texts(count, seed=call)
        assert_same(USES[use](ours.embed_sentences(sentences, 3), sentences),
                    USES[use](batches(plain, sentences, 3), sentences), backend)
    assert_same_states(ours, plain, backend)
    assert_same(ours.embed_batch(texts(4)), plain.embed_batch(texts(4)), backend)


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_calls(monkeypatch, seed):
    """Interleaved streams, batches, resets and new states: a batch continues from the last batch that was requested."""
    generator = np.random.default_rng(seed)
    bound(monkeypatch, *[(4096, 1 << 15), (16, 60), (1, 1)][seed % 3], chunks_ahead=seed % 2)
    ours, plain = embedders()
    open_streams = []
    for step in range(60):
        kind = generator.choice(["open", "next", "next", "next", "next", "batch", "reset", "set", "close", "free"])
        number = generator.integers(len(open_streams)) if open_streams else None
        sentences, size = texts(int(generator.integers(0, 25)), seed=100 * seed + step), int(generator.integers(1, 7))
        if kind == "open":
            open_streams.append((ours.embed_sentences(iter(sentences), size), batches(plain, sentences, size)))
        elif kind in ("next", "close") and number is not None:
            stream, reference = open_streams[number]
            if kind == "close":
                stream.close()
                open_streams.pop(number)
            else:
                actual, expected = ([*itertools.islice(each, int(size))] for each in (stream, reference))
                assert_same(actual, expected)
        elif kind == "batch":
            assert_same(ours.embed_batch(sentences), plain.embed_batch(sentences))
        elif kind == "reset":
            for each in (ours, plain):
                each.elmo_bilm.reset_states()
        elif kind == "set" and plain.elmo_bilm.lstm._states is not None:
            for each in (ours, plain):
                each.elmo_bilm.lstm._states = tuple(0.5 * values for values in each.elmo_bilm.lstm._states)
        elif kind == "free":
            next(ours.stream([["a", "b"]], 4, "zero"))
        if generator.random() < 0.3:
            assert_same_states(ours, plain)
    assert_same_states(ours, plain)


def results_until_failure(results, kind):
    arrays = []
    with pytest.raises(kind):
        for vectors in results:
            arrays.append(vectors)  # noqa: PERF402
    return arrays


@pytest.mark.parametrize("size, number, chunks", grid([1, 3, 8], [0, 1, 7, 8, 9, 23], list(CHUNKS)))
def test_errors_in_reading_come_after_the_whole_batches_before(monkeypatch, chunks, number, size):
    if CHUNKS[chunks]:
        bound(monkeypatch, **CHUNKS[chunks])
    ours, plain = embedders()
    for wrong in (None, ["a", None], ["a", ["b"]], "not split"):
        sentences, kind = [*texts(number, seed=2), wrong, *texts(5, seed=4)], Broken if wrong is None else ValueError
        sources = [breaking(sentences, number) if wrong is None else sentences for _ in range(2)]
        assert_same(results_until_failure(ours.embed_sentences(sources[0], size), kind),
                    results_until_failure(batches(plain, sources[1], size), kind))
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
