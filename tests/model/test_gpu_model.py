"""The model of a GPU, on the CPU: vectors of streams against NumPy in float64, and how chunks are collected."""

import copy
import itertools
import os
import pickle
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from elmo_fast import load
from elmo_fast.embed.embedder import Embedder
from elmo_fast.engine import stream as slot_stream
from elmo_fast.engine.precision import OPERANDS
from elmo_fast.engine.reference import NumpyModel
from elmo_fast.engine.stream import SlotStream
from elmo_fast.nn.gpu import chunks
from elmo_fast.nn.gpu.chunks import DeviceChunks
from elmo_fast.nn.gpu.model import TorchModel
from elmo_fast.ops.device import HostCopy
from elmo_fast.testing import SAME_MODEL
from tests.support.grid import grid
from tests.support.models import SENTENCES, SHAPES, WORD_IDS, files, texts, weights

TEXTS = [*SENTENCES[:5], ["long"] * 40, *texts(12), ["w"] * 31]
SHAPE = SHAPES["clips that fire"]
THREAD = "elmo-fast-collect"


class Small(TorchModel):
    """A model whose chunks have few steps, and hold sentences of up to `held` tokens in all slots."""

    held, steps = 1 << 15, 3

    def chunks(self, slots):
        found = DeviceChunks(self, slots, self.held)
        found.least_steps = self.steps
        return found


def model(shape=SHAPE, of=Small, device="cpu", **attributes):
    made = of(shape, weights(shape), torch.device(device), backend="auto" if device == "cuda" else "torch")
    vars(made).update(attributes)
    return made


@pytest.fixture
def few_rows(monkeypatch):
    """The steps of a chunk are the least."""
    monkeypatch.setattr(slot_stream, "_ROWS_PER_CHUNK", 1)


def check(actual, expected, tolerance=OPERANDS["ieee"].tolerance):
    """Within the relative Frobenius error, sentence by sentence."""
    for number, (one, other) in enumerate(itertools.zip_longest(actual, expected)):
        assert one.shape == other.shape and one.dtype == np.float32 and one.flags.c_contiguous, number
        assert np.linalg.norm(one - other) <= tolerance * np.linalg.norm(other), number


def exact(state, slots, shape=SHAPE):
    return Embedder(NumpyModel(shape, weights(shape), dtype=np.float64), state).stream(TEXTS, slots)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("state", ["zero", "warm", "carry"])
def test_vectors_are_those_of_numpy(shape, state):
    options = SHAPES[shape]
    check(Embedder(model(options, TorchModel), state).stream(TEXTS, 5), exact(state, 5, options))


@pytest.mark.parametrize("state, held, slots_and_steps", grid(
    ["zero", "warm", "carry"], [0, 20, 60, 1 << 15], [(1, 7), (4, 3), (3, 1), (64, 2)], together=1))
def test_sentences_cut_by_chunks(few_rows, state, held, slots_and_steps):
    """Long ones are copied piece by piece, others when they end. Carried states go on from stream to stream."""
    slots, steps = slots_and_steps
    small, whole = (Embedder(each, state) for each in (model(held=held, steps=steps), model(of=TorchModel)))
    for _ in range(1 + (state == "carry")):
        streams = [SlotStream(each.model, slots, state) for each in (small, whole)]
        for each, stream in zip((small, whole), streams):
            stream.carried = each.carried
        check(*(stream.run(TEXTS) for stream in streams))
        for each, stream in zip((small, whole), streams):
            each.carried = stream.carried
        if state == "carry":
            check(*([np.ascontiguousarray(values) for values in each.carried] for each in (small, whole)))


def test_vectors_of_a_chunk_are_views_of_one_array():
    first, second, *_ = Embedder(model(), "zero").stream([["a", "b"], ["c"], ["d"] * 9], 3)
    assert first.base is not None and first.base is second.base


def test_token_vectors_and_words():
    check(model().encode(["a", "naïve", "<S>"])[None],
          NumpyModel(SHAPE, weights(SHAPE), dtype=np.float64).encode(["a", "naïve", "<S>"])[None])
    ids = np.array([1, 9, 4], np.int32)
    np.testing.assert_array_equal(model(WORD_IDS)._encode(ids), weights(WORD_IDS)["embedding"][ids - 1])


def test_inference_mode_leaves_nothing_that_a_later_call_cannot_use():
    embedder = Embedder(model(), "warm")
    with torch.inference_mode():
        first = list(embedder.stream(TEXTS[:7], 3))
    later = list(embedder.stream(TEXTS, 3))
    check(first, later[:7])
    check(later, exact("warm", 3))


class Recorded(HostCopy):
    """Copies that write down when they are made and when they are waited for."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.number = sum(name == "made" for name, _, _ in self.log)
        self.log.append(("made", self.number, threading.current_thread().name))

    def result(self):
        self.log.append(("collected", self.number, threading.current_thread().name))
        return super().result()


@pytest.fixture
def log(monkeypatch):
    monkeypatch.setattr(Recorded, "log", [], raising=False)
    monkeypatch.setattr(chunks, "HostCopy", Recorded)
    return Recorded.log


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREAD)]


def no_thread_is_left():
    end = time.monotonic() + 20
    while threads() and time.monotonic() < end:
        time.sleep(0.01)
    return not threads()


def test_no_chunk_is_waited_for_before_the_next_is_queued(few_rows, log):
    stream = Embedder(model(), "zero").stream(TEXTS, 4)
    next(stream)
    assert sum(name == "made" for name, _, _ in log) >= 3
    list(stream)
    made = {number: place for place, (name, number, _) in enumerate(log) if name == "made"}
    collected = {number: (place, by) for place, (name, number, by) in enumerate(log) if name == "collected"}
    assert len(made) > 9 and made.keys() == collected.keys()
    for number, (place, by) in collected.items():
        if number + 1 in made:
            assert place > made[number + 1] and by.startswith(THREAD)
    assert no_thread_is_left()


def test_a_single_chunk_needs_no_thread(log):
    list(Embedder(model(of=TorchModel), "zero").stream(TEXTS[:3], 4))
    assert [(name, by) for name, _, by in log] == [(name, threading.current_thread().name) for name in (
        "made", "collected")]


@pytest.mark.parametrize("end", [lambda stream: stream.close(), lambda stream: None], ids=["closed", "dropped"])
def test_an_abandoned_stream_ends_its_thread_and_frees_its_memory(few_rows, end):
    stream = Embedder(model(), "zero").stream(TEXTS, 4)
    memory = weakref.ref(next(stream).base)
    assert threads()
    end(stream)
    del stream
    assert no_thread_is_left() and memory() is None


@pytest.mark.parametrize("failing", [0, 2, 5])
def test_an_error_of_the_device_reaches_the_caller(few_rows, log, monkeypatch, failing):
    def result(copy):
        if copy.number == failing:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return HostCopy.result(copy)

    embedder = Embedder(model(), "carry")
    stream = SlotStream(embedder.model, 4, "carry")
    with monkeypatch.context() as context:
        context.setattr(Recorded, "result", result)
        with pytest.raises(RuntimeError, match="illegal memory access"):
            list(stream.run(TEXTS))
    assert no_thread_is_left() and stream.carried is None
    check(stream.run(TEXTS), exact("carry", 4))


def test_streams_at_once(few_rows):
    embedder, expected = Embedder(model(), "warm"), list(exact("warm", 3))
    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(lambda slots=slots: list(embedder.stream(TEXTS, slots))) for slots in (1, 3, 5)]
        interleaved = list(zip(embedder.stream(TEXTS, 2), embedder.stream(TEXTS, 4), strict=True))
        for found in ([first for first, _ in interleaved], [second for _, second in interleaved],
                      *[run.result() for run in runs]):
            check(found, expected)


def test_a_run_as_they_come_gives_every_text_but_those_dropped(few_rows):
    sentences = iter(TEXTS)
    stream, found = SlotStream(model(), 4, "zero"), {}
    for _, finished in stream.run_as_they_come(lambda: next(sentences, None)):
        found.update(finished)
        stream.drop({5, 9})
    left = set(range(len(TEXTS))) - found.keys()
    assert left <= {5, 9} and 5 in left  # the long one
    expected = list(exact("zero", 4))
    check([found[number] for number in sorted(found)], [expected[number] for number in sorted(found)])


@pytest.mark.parametrize("most", [1, 2, 9])
@pytest.mark.parametrize("state", ["zero", "carry"])
def test_without_memory_chunks_are_smaller(state, most):
    """Also with fewer slots at a time than sentences that have begun."""
    class Little(Small):
        steps = 8

        def run_tensors(self, vectors, rows, *arguments):
            if rows.shape[1] > most and self.calls >= 2:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            self.calls += 1
            return super().run_tensors(vectors, rows, *arguments)

    check(Embedder(model(of=Little, calls=0), state).stream(TEXTS, 4), exact(state, 4))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_computes_and_goes_on_with_a_stream(few_rows):
    embedder, expected = Embedder(model(), "zero"), list(exact("zero", 4))
    stream = embedder.stream(TEXTS, 4)
    first = [next(stream) for _ in range(3)]
    if not (child := os.fork()):
        status = 1
        try:
            check([*first, *stream], expected)
            check(embedder.stream(TEXTS, 3), expected)
            status = 0
        finally:
            os._exit(status)
    check([*first, *stream], expected)
    end = time.monotonic() + 60
    while not (status := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.05)
    if not status[0]:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert status == (child, 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize("state", ["zero", "warm", "carry"])
def test_on_a_gpu(few_rows, state):
    vectors = list(Embedder(model(device="cuda", held=60), state).stream(TEXTS, 4))
    check(vectors, exact(state, 4))
    assert torch.from_numpy(vectors[0]).is_pinned()


def test_load_with_the_backend_torch(tmp_path):
    folder = files(tmp_path / "model", SHAPE)[0].parent
    native, plain = load(folder), load(folder, backend="torch")
    expected = native.embed(TEXTS)
    for elmo in (plain, pickle.loads(pickle.dumps(plain)), copy.deepcopy(plain)):
        assert (elmo.model.backend, str(elmo.model.device)) == ("torch", "cpu")
        for one, other in zip(elmo.embed(TEXTS), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=SAME_MODEL)
    np.testing.assert_allclose(plain.encode_words(["a"]), native.encode_words(["a"]), rtol=0, atol=SAME_MODEL)
    plain.bilm.half()  # a module of its own
    np.testing.assert_allclose(plain.embed(TEXTS[:1])[0], expected[0], rtol=0, atol=SAME_MODEL)
