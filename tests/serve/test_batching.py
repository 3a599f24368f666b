"""The queue and the engine thread: results to the bit, turns, limits, ends and errors. The engine waits at a gate."""

import threading

import numpy as np
import pytest

from elmo_fast.embed.api import LoadedElmo
from elmo_fast.serve import batching as module
from elmo_fast.serve.batching import Batching, Draining, QueueFull, SharedElmo, TooLarge
from tests.support import models
from tests.support.serving import SECONDS, Gate, equal, texts_of

LENGTHS = [3, 1, 0, 40, 7, 300, 2, 2, 19, 5]


@pytest.fixture(params=["warm", "zero"])
def bilm(request):
    return models.bilm(state=request.param)


@pytest.fixture
def warm():
    return models.bilm(state="warm")


def expected(bilm, texts):
    """By `LoadedElmo`, with a model of its own."""
    return LoadedElmo(models.bilm()).embed(texts, state=bilm.state)


@pytest.mark.parametrize("slots", [1, 3, 64])
def test_vectors_are_those_of_embed(bilm, slots):
    texts = texts_of(LENGTHS)
    with Batching(bilm, slots=slots) as batching:
        jobs = [batching.submit(some) for some in (texts[:4], texts[4:5], [], texts[5:])]
        found = [vectors for job in jobs for vectors in job.future.result(SECONDS)]
        assert equal(found, expected(bilm, texts))
        for job in jobs:
            job.release()
        assert (batching.held_tokens, batching.waiting_texts, batching.running_texts) == (0, 0, 0)


def test_many_threads_get_their_own(bilm):
    texts = texts_of(np.random.default_rng(1).integers(1, 60, 120))
    numbers = np.random.default_rng(2).permutation(len(texts))
    found = {}
    with Batching(bilm, slots=5) as batching:
        elmo = SharedElmo(batching)

        def ask(own):
            for number in own:
                found[number] = elmo.embed([texts[number]], "average", pool="mean")[0]

        threads = [threading.Thread(target=ask, args=(own,)) for own in np.array_split(numbers, 24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        assert batching.held_tokens == 0
    assert equal([found[number] for number in range(len(texts))],
                 [vectors.mean(axis=0).mean(axis=-2) for vectors in expected(bilm, texts)])


def test_a_long_text_holds_up_no_short_one(warm):
    gate = Gate(warm)
    with Batching(warm, slots=2) as batching:
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
    with Batching(warm, slots=4) as batching:
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
    """Texts of 4096 steps fill a slot's chunk: one begins at a time."""
    gate = Gate(warm)
    with Batching(warm, slots=1) as batching:
        many = batching.submit(texts_of([4094] * 4))
        gate.wait()
        few = batching.submit(texts_of([4094]))
        for _ in range(3):  # of the many; of the many, whose turn was before; the few
            gate.let_pass()
            if not few.future.done():
                gate.wait()
        assert few.future.result(SECONDS) and many.unfinished >= 1
        gate.open()
        many.future.result(SECONDS)


def test_a_full_queue_says_when_to_come_back(warm, monkeypatch):
    gate = Gate(warm)
    with Batching(warm, slots=1, queue_tokens=20) as batching:
        with pytest.raises(TooLarge, match="at most 20 tokens in a request, got 21"):
            batching.submit(texts_of([19]))
        job = batching.submit(texts_of([10]))
        gate.wait()
        with pytest.raises(QueueFull, match="20 tokens has no room for 9 more") as refused:
            batching.submit(texts_of([7]))
        assert refused.value.retry_after == 1  # nothing measured
        batching._rate.add(30, 60)
        with pytest.raises(QueueFull) as refused:
            batching.submit(texts_of([7]))
        assert refused.value.retry_after == 2  # 1 token too many at half a token a second
        batching.submit(texts_of([6])).release()
        gate.open()
        job.future.result(SECONDS)
        with pytest.raises(QueueFull):
            batching.submit(texts_of([7]))  # the vectors still take memory
        job.release()
        batching.submit(texts_of([7])).future.result(SECONDS)


def test_a_released_job_stops(warm):
    gate = Gate(warm)
    with Batching(warm, slots=1) as batching:
        dropped = batching.submit(texts_of([9000, 9000, 9000]))
        gate.wait()
        kept = batching.submit(texts_of([5]))
        dropped.release()
        dropped.release()
        assert batching.held_tokens == 7 and batching.waiting_texts == 1
        gate.let_pass()
        gate.wait()  # the kept text's chunk: the slot is free
        assert batching.running_texts == 1
        gate.open()
        assert equal(kept.future.result(SECONDS), expected(warm, texts_of([5])))
        with pytest.raises(Draining):
            dropped.future.result(0)


def test_an_error_fails_the_text_that_has_it_alone(warm):
    gate = Gate(warm)
    texts = texts_of([3, 4, 5])
    with Batching(warm, slots=4) as batching:
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


def test_an_engine_that_always_fails_is_failing(warm):
    gate = Gate(warm)
    gate.open()
    gate.errors = [RuntimeError("broken")] * 3
    with Batching(warm) as batching:
        for number in range(3):
            assert not batching.is_failing
            with pytest.raises(RuntimeError, match="broken"):
                batching.submit(texts_of([number])).future.result(SECONDS)
        assert batching.is_failing
        batching.submit(texts_of([1])).future.result(SECONDS)
        batching.submit(texts_of([1])).future.result(SECONDS)
        assert not batching.is_failing


def test_what_a_failed_job_had_waiting_is_gone(warm):
    gate = Gate(warm)
    gate.errors = [RuntimeError("broken")]
    with Batching(warm, slots=1) as batching:
        job = batching.submit(texts_of([4094] * 5))
        gate.wait()
        gate.open()
        with pytest.raises(RuntimeError):
            job.future.result(SECONDS)
        assert (batching.waiting_texts, batching.running_texts) == (0, 0)
        batching.submit(texts_of([1])).future.result(SECONDS)


def test_draining_refuses_and_finishes(warm):
    gate = Gate(warm)
    with Batching(warm, slots=1) as batching:
        job = batching.submit(texts_of([5] * 3))
        gate.wait()
        batching.drain()
        with pytest.raises(Draining, match="shutting down"):
            batching.submit(texts_of([1]))
        gate.open()
        assert equal(job.future.result(SECONDS), expected(warm, texts_of([5] * 3)))


def test_the_end_fails_what_is_open(warm):
    gate = Gate(warm)
    with Batching(warm, slots=1) as batching:
        job = batching.submit(texts_of([9000] * 3))
        gate.wait()
        batching.cut_off()
        gate.open()
    with pytest.raises(Draining):
        job.future.result(0)


def test_a_model_that_carries_states_is_refused():
    with pytest.raises(ValueError, match="state: expected zero or warm"):
        Batching(models.bilm(state="carry"))
    with pytest.raises(ValueError, match="backend: expected auto, torch or native"):
        Batching(models.bilm(state="warm", backend="reference"))


def test_words_outside_a_vocabulary_fail_their_text_only():
    bilm = models.word_bilm(state="warm")
    with Batching(bilm) as batching, pytest.raises(ValueError):
        batching.submit([["never seen"]]).future.result(SECONDS)


def test_rate_forgets():
    rate = module._Rate()
    rate.add(1000, 1)
    assert rate.seconds_for(2500) == 3
    for _ in range(1000):
        rate.add(10, 1)
    assert rate.seconds_for(25) == 3 and rate.seconds_for(10**9) == 600
