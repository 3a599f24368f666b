"""Public calls of Python with arguments of every kind: what `fuzz` draws its cases of arguments from."""

import functools
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elmo_fast import (
    Batcher,
    BiLm,
    Elmo,
    ElmoEmbedder,
    TokenBatcher,
    Vocabulary,
    batch_to_ids,
    build_token_table,
    corpus_words,
    load,
)
from elmo_fast.compat.allennlp.commands.elmo import ElmoEmbedder as AllenNlpEmbedder
from elmo_fast.compat.allennlp.data.token_indexers import ELMoTokenCharactersIndexer
from elmo_fast.compat.allennlp.modules.elmo import Elmo as AllenNlpElmo
from elmo_fast.compat.bilm import BidirectionalLanguageModel, LayerWeights, weight_layers
from elmo_fast.compat.elmoformanylangs import Embedder
from elmo_fast.compat.simple_elmo import ElmoModel
from elmo_fast.testing import tiny
from elmo_fast.text.vocabulary import UnicodeCharsVocabulary
from tests.robustness.damage import HOSTILE
from tests.support.files import paths
from tests.support.manylangs import write_manylangs
from tests.support.softmax import head_of, write_softmax_model

_ATOMS = (*HOSTILE, "a", "the", b"a", b"", np.array(3.0), np.zeros((2, 3)), np.zeros((1, 4, 50), np.int64),
          np.array("a"), torch.zeros(2, 3), torch.zeros(1, 4, 50, dtype=torch.int64), object(), len, {"a"}, range(3),
          "a\0b", "\u2028")
SENTENCE = ["the", "cat"]


class Made:
    """Every public class that takes text, of one model, and as methods of one argument the calls that take more."""

    def __init__(self, folder):
        self.folder = write_softmax_model(folder / "model", tiny(lstm__dim=12))
        self.files, self.vocabulary = paths(self.folder), self.folder / "vocab.txt"
        self.path = folder / "out.h5"
        self.loaded, self.embedder = load(self.folder), ElmoEmbedder(*self.files)
        self.reference = load(self.folder, backend="reference")
        self.bilm, self.allennlp, self.head = self.loaded.bilm, AllenNlpEmbedder(*self.files), head_of(self.folder)
        self.simple = ElmoModel()
        self.simple.load(self.folder, full=True)
        many = write_manylangs(folder / "many")
        self.many, self.loaded_many = Embedder(many), load(many)
        self.words, self.characters = Vocabulary(self.vocabulary), UnicodeCharsVocabulary(self.vocabulary, 50)
        self.tf = BidirectionalLanguageModel(*self.files)
        (folder / "plain.txt").write_text("<S>\n</S>\na\n")
        self.batcher, self.token_batcher = Batcher(self.vocabulary, 50), TokenBatcher(self.vocabulary)
        self.without_unk, self.indexer = TokenBatcher(folder / "plain.txt"), ELMoTokenCharactersIndexer()
        self.batch_to_ids = batch_to_ids

    def save_vectors(self, value):
        self.loaded.save_vectors(self.path, value)

    def warm_text(self, value):
        BiLm.from_files(*self.files, state="warm", warm_text=value).embed_tokens([SENTENCE])

    def embed_sentences(self, value):
        list(self.embedder.embed_sentences(value))

    def vocab_to_cache(self, value):
        Elmo(*self.files, 1, vocab_to_cache=[None] if value is None else value)

    def substitutes(self, value):
        self.head.substitutes(value, 0)

    def build_token_table(self, value):
        build_token_table(self.bilm, value)


@functools.cache
def calls(folder: Path) -> Mapping[str, Callable[[Any], Any]]:
    """Calls of one argument, by name, on a model that is written into `folder`."""
    made = Made(folder)
    files, loaded, head, simple, words = made.files, made.loaded, made.head, made.simple, made.characters
    return {
        "embed": loaded.embed, "encode": loaded.encode, "similarity": lambda value: loaded.similarity(value, value),
        "layers": lambda value: loaded.embed([SENTENCE], layers=value),
        "pool": lambda value: loaded.embed([SENTENCE], pool=value),
        "state": lambda value: loaded.embed([SENTENCE], state=value),
        "batch_size": lambda value: loaded.embed([SENTENCE], batch_size=value),
        "embed_batch": made.embedder.embed_batch, "embed_sentence": made.embedder.embed_sentence,
        "embed_sentences": made.embed_sentences,
        "get_elmo_vectors": simple.get_elmo_vectors, "get_elmo_substitutes": simple.get_elmo_substitutes,
        "topn": lambda value: simple.get_elmo_substitutes(["the cat"], value),
        "sents2elmo": made.many.sents2elmo, "output_layer": lambda value: made.many.sents2elmo([SENTENCE], value),
        "score": head.score, "substitutes": made.substitutes,
        "position": lambda value: head.substitutes(SENTENCE, value),
        "k": lambda value: head.substitutes(SENTENCE, 0, value),
        "BidirectionalLanguageModel": made.tf,
        "weight_layers": lambda value: weight_layers("a", value),
        "lm_embeddings": lambda value: weight_layers("a", {"lm_embeddings": value, "mask": value}),
        "LayerWeights": LayerWeights, "Elmo": Elmo(*files, 1), "allennlp Elmo": AllenNlpElmo(*files, 1),
        "num_output_representations": lambda value: Elmo(*files, value),
        "vocab_to_cache": lambda value: Elmo(*files, 1, vocab_to_cache=value),
        "warm_text": made.warm_text, "embed_tokens": loaded.bilm.embed_tokens, "BiLm.encode": loaded.bilm.encode,
        "batch_to_ids": batch_to_ids, "max_characters_per_token": lambda value: batch_to_ids([SENTENCE], value),
        "TokenBatcher": made.token_batcher.batch_sentences, "Vocabulary.encode": words.encode,
        "encode_chars": lambda value: words.encode_chars(value, split=False),
        "tokens_to_indices": made.indexer.tokens_to_indices, "corpus_words": corpus_words,
        "build_token_table": made.build_token_table,
    }


def hostile(rng: random.Random) -> Any:
    """A value of any type, or a list of such values, nested up to three times."""
    value = rng.choice(_ATOMS)
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3))):
        value = [value] + [rng.choice(_ATOMS) for _ in range(rng.randrange(3))]
    return value
