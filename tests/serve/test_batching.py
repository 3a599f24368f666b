"""The queue and the engine thread: results to the bit, turns and errors. The engine waits at a gate."""

import pytest

from elmo_fast import ElmoEmbedder
from elmo_fast.embed.api import LoadedElmo
from tests.support import models
from tests.support.serving import SECONDS, Gate, equal, texts_of

batching_module = pytest.importorskip("elmo_fast.serve.batching", exc_type=ImportError)

LENGTHS = [3, 1, 0, 40, 7, 300, 2, 2, 19, 5]


@pytest.fixture(params=["warm", "zero"])
def bilm(request):
    return models.bilm(state=request.param)


@pytest.fixture
def warm():
    return models.bilm(state="warm")


def batching_of(bilm, slots):
    return batching_module.Batching(ElmoEmbedder.from_bilm(bilm), bilm.state, slots=slots)


def expected(bilm, texts):
    """Vectors of `LoadedElmo` with another copy of the model."""
    return LoadedElmo(models.bilm()).embed(texts, state=bilm.state)


@pytest.mark.parametrize("slots", [1, 3, 64])
def test_vectors_are_those_of_embed(bilm, slots):
    texts = texts_of(LENGTHS)
    with batching_of(bilm, slots=slots) as batching:
        jobs = [batching.submit(some) for some in (texts[:4], texts[4:5], [], texts[5:])]
        vectors_of_jobs = [vectors for job in jobs for vectors in job.future.result(SECONDS)]
        assert equal(vectors_of_jobs, expected(bilm, texts))
        for job in jobs:
            job.release()
        assert (batching.held_tokens, batching.waiting_texts, batching.running_texts) == (0, 0, 0)


def test_a_long_text_does_not_delay_a_short_text(warm):
    gate = Gate(warm)
    with batching_of(warm, slots=2) as batching:
        long = batching.submit(texts_of([9000]))
        gate.wait()  # its first chunk of many
        short = batching.submit(texts_of([4]))
        gate.let_pass()
        gate.wait()  # the chunk with the short text in it
        gate.let_pass()
        assert short.future.result(SECONDS)[0].shape[1] == 4
        assert not long.future.done()
        gate.open()
        assert long.future.result(SECONDS)[0].shape[1] == 9000


def test_long_texts_never_have_every_slot(warm):
    gate = Gate(warm)
    with batching_of(warm, slots=4) as batching:
        long = [batching.submit(texts_of([9000])) for _ in range(4)]
        gate.wait()
        first = batching.running_texts
        short = batching.submit(texts_of([4]))
        gate.let_pass()
        gate.wait()
        gate.let_pass()
        short.future.result(SECONDS)
        gate.open()
        assert first <= 3 and all(job.future.result(SECONDS)[0].shape[1] == 9000 for job in long)


def test_requests_take_turns(warm):
    """Texts of 4096 steps fill a slot's chunk: one text begins at a time."""
    gate = Gate(warm)
    with batching_of(warm, slots=1) as batching:
        many = batching.submit(texts_of([4094] * 4))
        gate.wait()
        few = batching.submit(texts_of([4094]))
        for _ in range(3):  # two texts of `many`, whose turn comes first; `few`
            gate.let_pass()
            if not few.future.done():
                gate.wait()
        assert few.future.result(SECONDS) and many.unfinished >= 1
        gate.open()
        many.future.result(SECONDS)


def test_an_error_fails_its_own_text_alone(warm):
    gate = Gate(warm)
    texts = texts_of([3, 4, 5])
    with batching_of(warm, slots=4) as batching:
        first = batching.submit(texts_of([2]))
        gate.wait()
        jobs = [batching.submit([text]) for text in texts]
        gate.errors = [None, RuntimeError("first"), None, RuntimeError("again"), None]
        gate.open()
        first.future.result(SECONDS)
        assert equal(jobs[0].future.result(SECONDS), expected(warm, texts[:1]))
        with pytest.raises(RuntimeError, match="again"):
            jobs[1].future.result(SECONDS)
        assert equal(jobs[2].future.result(SECONDS), expected(warm, texts[2:]))
        assert equal(batching.submit(texts).future.result(SECONDS), expected(warm, texts))
        assert not batching.is_failing
