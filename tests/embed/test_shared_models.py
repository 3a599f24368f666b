"""One model, called by several threads and by streams that are open: every call gets what it would get alone."""

import itertools
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


def loaded(**arguments):
    return LoadedElmo(bilm(state="warm", **arguments))


def at_once(calls, repeats=1):
    """Results of calls, each `repeats` times in a thread of its own, in their order."""
    with ThreadPoolExecutor(len(calls)) as pool:
        runs = [pool.submit(lambda call=call: [call() for _ in range(repeats)]) for call in calls]
        return [run.result() for run in runs]


def assert_close(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=SAME_MODEL)


@pytest.mark.parametrize("backend", mostly_long(BACKENDS))
def test_a_mix_of_calls_from_threads(tmp_path, backend):
    def saved(elmo, state):
        elmo.save_vectors(tmp_path / f"{state}.h5", TEXTS, state=state)
        arrays = read_hdf5(tmp_path / f"{state}.h5")
        return [arrays[str(number)] for number in range(len(TEXTS))]

    calls = [
        lambda elmo: elmo.embed(TEXTS[:7], state="zero"), lambda elmo: elmo.embed(TEXTS[:7]),
        lambda elmo: list(elmo.stream(TEXTS, state="zero", batch_size=3)), lambda elmo: saved(elmo, "zero"),
        lambda elmo: saved(elmo, "warm"), lambda elmo: [elmo.similarity("word1 word2", "word3")],
        lambda elmo: [compare(elmo, "word1 word2", "word3", state="zero").mixed([1, 1, 1])],
        lambda elmo: [ContextIndex.build(elmo, TEXTS[:5], state="zero").vectors],
        lambda elmo: [each.numpy() for each in elmo.bilm(batch_to_ids(TEXTS[:4]))["activations"]]]
    expected = [call(loaded(backend=backend)) for call in calls]
    shared = loaded(backend=backend)
    with torch.no_grad():
        for found, alone in zip(at_once([lambda call=call: call(shared) for call in calls], 3), expected):
            for each in found:
                assert_close(each, alone)
    assert shared.bilm.state == "warm" and shared.bilm.lstm._states is None


@pytest.mark.parametrize("backend", mostly_long(BACKENDS))
@pytest.mark.parametrize("ended", [True, False])
def test_open_streams_change_nothing(backend, ended):
    elmo, ids = loaded(backend=backend), batch_to_ids(TEXTS[:4])
    own = [each.numpy() for each in elmo.bilm(ids)["activations"]]
    expected = {state: loaded(backend=backend).embed(TEXTS, state=state) for state in ("zero", "warm")}
    streams = {state: elmo.stream(TEXTS, state=state, batch_size=2) for state in expected}
    found = {state: [] for state in streams}
    for _ in range(len(TEXTS) if ended else 5):  # by turns
        for state, stream in streams.items():
            found[state].append(next(stream))
            assert elmo.bilm.state == "warm"
        assert_close((each.numpy() for each in elmo.bilm(ids)["activations"]), own)
        assert_close(elmo.embed(TEXTS[:2], state="zero"), expected["zero"][:2])
    for state, arrays in found.items():
        assert_close(arrays, expected[state][: len(arrays)])
    streams["zero"].close()
    assert elmo.bilm.state == "warm" and elmo.bilm.lstm._states is None


def test_a_stream_keeps_the_state_it_was_asked_for():
    embedder = ElmoEmbedder.from_bilm(bilm(state="zero"))
    expected, results = list(embedder.embed_sentences(TEXTS, 2)), embedder.embed_sentences(TEXTS, 2)
    found = [next(results)]
    embedder.elmo_bilm.state = "carry"
    assert_close([*found, *results], expected)
    assert embedder.elmo_bilm.lstm._states is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_of_threads_run_one_after_the_other(backend):
    """Equal batches have the results of a row of them, whichever thread each of them comes from."""
    shared, alone = (ElmoEmbedder.from_bilm(bilm(backend=backend)) for _ in range(2))
    batch = [["word1", "word2"]] * 2
    expected = [alone.embed_batch(batch)[0] for _ in range(24)]

    def stream():
        return list(shared.embed_sentences(batch * 3, 2))[::2]

    found = at_once([lambda: [shared.embed_batch(batch)[0]]] * 2 + [stream] * 2, 3)
    found = [vectors for calls in found for call in calls for vectors in call]
    assert len(found) == len(expected)
    order = [min(range(24), key=lambda k, one=one: np.abs(expected[k] - one).max()) for one in found]
    assert_close(found, [expected[k] for k in order])
    assert_close(*([each.numpy() for each in of.elmo_bilm.lstm._states] for of in (shared, alone)))
    steps = [np.abs(one - other).max() for one, other in itertools.pairwise(expected)]
    distinct = next((k for k, step in enumerate(steps) if step < SAME_MODEL), 24)  # then the states have converged
    assert sorted(k for k in order if k < distinct) == [*range(distinct)]
