"""Public calls of Python with arguments of every kind: what `fuzz` draws its cases of arguments from."""

import functools
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elmo_fast import BiLm, Elmo, ElmoEmbedder, TokenBatcher, batch_to_ids, build_token_table, corpus_words, load
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
_SENTENCE = ["the", "cat"]


@functools.cache
def calls(folder: Path) -> Mapping[str, Callable[[Any], Any]]:
    """Calls of one argument, by name, on a model that is written into `folder`."""
    model, many = write_softmax_model(folder / "model", tiny(lstm__dim=12)), write_manylangs(folder / "many")
    files, loaded, head, simple = paths(model), load(model), head_of(model), ElmoModel()
    simple.load(model, full=True)
    embedder, old = ElmoEmbedder(*files), Embedder(many)
    words = UnicodeCharsVocabulary(model / "vocab.txt", 50)
    return {
        "embed": loaded.embed, "encode": loaded.encode, "similarity": lambda value: loaded.similarity(value, value),
        "layers": lambda value: loaded.embed([_SENTENCE], layers=value),
        "pool": lambda value: loaded.embed([_SENTENCE], pool=value),
        "state": lambda value: loaded.embed([_SENTENCE], state=value),
        "batch_size": lambda value: loaded.embed([_SENTENCE], batch_size=value),
        "embed_batch": embedder.embed_batch, "embed_sentence": embedder.embed_sentence,
        "embed_sentences": lambda value: list(embedder.embed_sentences(value)),
        "get_elmo_vectors": simple.get_elmo_vectors, "get_elmo_substitutes": simple.get_elmo_substitutes,
        "topn": lambda value: simple.get_elmo_substitutes(["the cat"], value),
        "sents2elmo": old.sents2elmo, "output_layer": lambda value: old.sents2elmo([_SENTENCE], value),
        "score": head.score, "substitutes": lambda value: head.substitutes(value, 0),
        "position": lambda value: head.substitutes(_SENTENCE, value),
        "k": lambda value: head.substitutes(_SENTENCE, 0, value),
        "BidirectionalLanguageModel": BidirectionalLanguageModel(*files),
        "weight_layers": lambda value: weight_layers("a", value),
        "lm_embeddings": lambda value: weight_layers("a", {"lm_embeddings": value, "mask": value}),
        "LayerWeights": LayerWeights, "Elmo": Elmo(*files, 1), "allennlp Elmo": AllenNlpElmo(*files, 1),
        "num_output_representations": lambda value: Elmo(*files, value),
        "vocab_to_cache": lambda value: Elmo(*files, 1, vocab_to_cache=value),
        "warm_text": lambda value: BiLm.from_files(*files, state="warm", warm_text=value).embed_tokens([_SENTENCE]),
        "embed_tokens": loaded.bilm.embed_tokens, "BiLm.encode": loaded.bilm.encode, "batch_to_ids": batch_to_ids,
        "max_characters_per_token": lambda value: batch_to_ids([_SENTENCE], value),
        "TokenBatcher": TokenBatcher(model / "vocab.txt").batch_sentences, "Vocabulary.encode": words.encode,
        "encode_chars": lambda value: words.encode_chars(value, split=False),
        "tokens_to_indices": ELMoTokenCharactersIndexer().tokens_to_indices, "corpus_words": corpus_words,
        "build_token_table": lambda value: build_token_table(loaded.bilm, value),
    }


def hostile(rng: random.Random) -> Any:
    """A value of any type, or a list of such values, nested up to three times."""
    value = rng.choice(_ATOMS)
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3))):
        value = [value] + [rng.choice(_ATOMS) for _ in range(rng.randrange(3))]
    return value
