"""Runs of `write_corpus` in many sections: texts, a run, its output, and a power cut after a commit."""

import contextlib
import json
from unittest import mock

import h5py
import numpy as np
import pytest

from elmo_fast import ElmoEmbedder, open_embeddings
from elmo_fast.embed.run import write_corpus
from elmo_fast.text.readers import Text
from elmo_fast.vectors.partial import PartialResult
from elmo_fast.vectors.spec import OutputSpec, Target
from tests.support.models import SHAPES, bilm

RNG = np.random.default_rng(0)
TEXTS = [[f"word{k}" for k in RNG.integers(0, 40, length)] for length in RNG.integers(0, 9, 40)]
TEXTS[3] = TEXTS[8] = TEXTS[9] = TEXTS[39] = []


class PowerCutError(Exception):
    """Ends a run in place of a kill."""


@contextlib.contextmanager
def power_cut(commits):
    """End the run in the `with` right after its commit number `commits`, which it must reach."""
    commit, calls = PartialResult.commit, []

    def committing(*arguments):
        commit(*arguments)
        calls.append(arguments)
        if len(calls) == commits:
            raise PowerCutError

    with mock.patch.object(PartialResult, "commit", committing), pytest.raises(PowerCutError):
        yield


def model(state="carry", seed=0, precision="highest"):
    return ElmoEmbedder.from_bilm(bilm(SHAPES["clips that fire"], seed, state=state, precision=precision,
                                       backend="native"))


def embed(output, state="carry", slots=3, texts=TEXTS, layout="allennlp", form=None, resume=False, seed=0,
          seconds=None, precision="highest"):
    embedder = model(state, seed, precision)
    items = (Text(str(number), " ".join(tokens), tokens) for number, tokens in enumerate(texts))
    form = form or OutputSpec()
    write_corpus(items, embedder.runner(slots), Target(output, layout, form), resume=resume, commit_seconds=seconds)
    return embedder.elmo_bilm._elmo_lstm._states


def content(path):
    """The values of every array, and of AllenNLP's index."""
    with open_embeddings(path) as embeddings:
        arrays = [values.tobytes() for values in embeddings]
        keys = list(embeddings.keys)
    index = None
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            index = json.loads(file["sentence_to_index"][0]) if "sentence_to_index" in file else None
    return keys, arrays, index
