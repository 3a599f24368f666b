"""One model, called by several threads and by open streams: every call has the result of a single call."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from elmo_fast import ElmoEmbedder, batch_to_ids
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.explore.comparison import compare
from elmo_fast.explore.contexts import ContextIndex
from elmo_fast.testing import SAME_MODEL
from tests.support.files import read_hdf5
from tests.support.grid import mostly_long
from tests.support.models import bilm, texts

TEXTS = texts(30, seed=5)[1:]
BACKENDS = ["auto", "torch", "reference"]


def load(**arguments):
    return LoadedElmo(bilm(state="warm", **arguments))


def at_once(calls, repeats=1):
    """Results of calls in their order; a call runs `repeats` times in its own thread."""
    with ThreadPoolExecutor(len(calls)) as pool:
        runs = [pool.submit(lambda call=call: [call() for _ in range(repeats)]) for call in calls]
        return [run.result() for run in runs]


def assert_close(actual, expected):
    for array, truth in zip(actual, expected, strict=True):
        np.testing.assert_allclose(array, truth, rtol=0, atol=SAME_MODEL)


@pytest.mark.parametrize("backend", mostly_long(BACKENDS))
def test_a_mix_of_calls_from_threads(tmp_path, backend):
    def save(elmo, state):
        elmo.save_vectors(tmp_path / f"{state}.h5", TEXTS, state=state)
        arrays = read_hdf5(tmp_path / f"{state}.h5")
        return [arrays[str(number)] for number in range(len(TEXTS))]

    calls = [
        lambda elmo: elmo.embed(TEXTS[:7], state="zero"), lambda elmo: elmo.embed(TEXTS[:7]),
        lambda elmo: list(elmo.stream(TEXTS, state="zero", batch_size=3)), lambda elmo: save(elmo, "zero"),
        lambda elmo: save(elmo, "warm"), lambda elmo: [elmo.similarity("word1 word2", "word3")],
        lambda elmo: [compare(elmo, "word1 word2", "word3", state="zero").mixed([1, 1, 1])],
        lambda elmo: [ContextIndex.build(elmo, TEXTS[:5], state="zero").vectors],
        lambda elmo: [each.numpy() for each in elmo.bilm(batch_to_ids(TEXTS[:4]))["activations"]]]
    expected = [call(load(backend=backend)) for call in calls]
    shared = load(backend=backend)
    with torch.no_grad():
        for actual, single in zip(at_once([lambda call=call: call(shared) for call in calls], 3), expected):
            for each in actual:
                assert_close(each, single)
    assert shared.bilm.state == "warm" and shared.bilm._elmo_lstm._states is None


@pytest.mark.parametrize("backend", mostly_long(BACKENDS))
@pytest.mark.parametrize("to_the_end", [True, False])
def test_open_streams_change_nothing(backend, to_the_end):
    elmo, ids = load(backend=backend), batch_to_ids(TEXTS[:4])
    activations = [each.numpy() for each in elmo.bilm(ids)["activations"]]
    expected = {state: load(backend=backend).embed(TEXTS, state=state) for state in ("zero", "warm")}
    streams = {state: elmo.stream(TEXTS, state=state, batch_size=2) for state in expected}
    results = {state: [] for state in streams}
    for _ in range(len(TEXTS) if to_the_end else 5):  # interleaved
        for state, stream in streams.items():
            results[state].append(next(stream))
            assert elmo.bilm.state == "warm"
        assert_close((each.numpy() for each in elmo.bilm(ids)["activations"]), activations)
        assert_close(elmo.embed(TEXTS[:2], state="zero"), expected["zero"][:2])
    for state, arrays in results.items():
        assert_close(arrays, expected[state][: len(arrays)])
    streams["zero"].close()
    assert elmo.bilm.state == "warm" and elmo.bilm._elmo_lstm._states is None


def test_a_stream_keeps_its_initial_choice_of_state():
    embedder = ElmoEmbedder.from_bilm(bilm(state="zero"))
    expected, results = list(embedder.embed_sentences(TEXTS, 2)), embedder.embed_sentences(TEXTS, 2)
    vectors = [next(results)]
    embedder.elmo_bilm.state = "carry"
    assert_close([*vectors, *results], expected)
    assert embedder.elmo_bilm._elmo_lstm._states is None
