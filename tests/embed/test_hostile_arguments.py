"""What is no text, no ids and no choice gets a one-line error from every public class, those of `compat` too."""

import io
import operator

import numpy as np
import pytest
import torch

from elmo_fast import (
    BiLm,
    ConfigurationError,
    ContextIndex,
    Elmo,
    ElmoEmbedder,
    FastaRecord,
    Options,
    TokenTable,
    Vocabulary,
    batch_to_ids,
    build_token_table,
    corpus_words,
    load,
    open_embeddings,
    open_texts,
    read_fasta,
    read_weights,
    write_token_table,
    write_weights,
)
from elmo_fast.compat.allennlp.data.token_indexers.elmo_indexer import ELMoCharacterMapper
from elmo_fast.compat.allennlp.modules.elmo import Elmo as AllenNlpElmo
from elmo_fast.compat.allennlp.modules.elmo import _ElmoCharacterEncoder
from elmo_fast.compat.bilm import Batcher, BidirectionalLanguageModel, LayerWeights, weight_layers
from elmo_fast.compat.elmoformanylangs import Embedder
from elmo_fast.compat.simple_elmo import ElmoModel
from elmo_fast.train.evaluate import perplexity_of
from tests.robustness.arguments import SENTENCE, Made

NO_LISTS = [None, 3, 3.5, True, ..., "a b", b"a b", np.array(3.0), torch.tensor(3.0)]
NESTED = [[None], [3], [[3]], [[None]], [["a", 3]], [["a"], [["b"]]], [[["a"]]], [[["a", "b"], ["c"]]], [[{"a": 1}]],
          [[b"a"]], np.zeros((2, 3)), [np.array(3.0)], [[torch.zeros(2, 3)], [["a"]]]]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Made(tmp_path_factory.mktemp("made"))


# of a batch; of a sentence
BATCHES = ["loaded.embed", "reference.embed", "loaded_many.embed", "save_vectors", "bilm.embed_tokens", "warm_text",
           "embedder.embed_batch", "embedder.batch_to_embeddings", "embed_sentences", "allennlp.embed_batch",
           "simple.get_elmo_vectors", "simple.get_elmo_vector_average", "many.sents2elmo", "head.score", "batch_to_ids",
           "batcher.batch_sentences", "token_batcher.batch_sentences", "without_unk.batch_sentences"]
SENTENCES = ["loaded.encode_words", "loaded_many.encode_words", "bilm.encode", "bilm.cache_words", "vocab_to_cache",
             "embedder.embed_sentence", "substitutes", "head.logits", "indexer.tokens_to_indices", "build_token_table"]


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("value, message", [
    *((value, f": expected a list of (tokenized sentences|texts|tokens), got (one |the )?{type(value).__name__}")
      for value in NO_LISTS),
    *((value, r"(\[0\])?: expected a (string|list of tokens), got") for value in NESTED)], ids=repr)
def test_what_is_no_list_of_tokenized_sentences_is_refused(made, name, value, message):
    with pytest.raises(ValueError, match=rf"^\w+{message}.*\Z"):
        operator.attrgetter(name)(made)(value)
    assert not made.path.exists()


@pytest.mark.parametrize("value", [value for value in NO_LISTS if not isinstance(value, (str, bytes))] + [
    [None], [3], [["a"]], [b"a"], [[torch.zeros(2, 3)]]], ids=repr)
@pytest.mark.parametrize("name", SENTENCES)
def test_no_list_of_tokens(made, name, value):
    with pytest.raises((ValueError, FileNotFoundError), match=r"\A.*expected.*\Z"):
        operator.attrgetter(name)(made)(value)


@pytest.mark.parametrize("call, message", [
    (lambda made: made.loaded.similarity(None, ["a"]), "sentences.0.: expected a list of tokens, got NoneType"),
    (lambda made: made.loaded.similarity(["a"], np.array(3)), "sentences.1.: expected a list of tokens, got ndarray"),
    *((lambda made, layers=layers: made.loaded.embed([["a"]], layers=layers), "layers: expected one of all, top")
      for layers in ([["a"], 3], ["a"], {"a": 1}, ..., b"top", [1, 1e300], [1, np.nan], [1, 10**400])),
    (lambda made: made.loaded.embed([["a"]], pool=np.zeros(3)), "pool: expected None or one of mean, max"),
    (lambda made: made.loaded.embed([["a"]], state=np.zeros(3)), "state: expected one of carry, zero, warm"),
    (lambda made: load(made.folder, precision=np.zeros(3)), "precision: expected one of highest, high, medium"),
    (lambda made: load(made.folder, backend=["auto"]), "backend: expected one of auto, reference"),
    *((lambda made, text=text: made.simple.get_elmo_substitutes(text), "data: expected a list of sentences")
      for text in (None, 3, ..., np.array(3.0), [["a"]], "a b")),
    (lambda made: made.many.sents2elmo([["a"]], np.zeros(3)), "output_layer: expected -1 for the mean"),
    *((lambda made, at=at: made.head.substitutes(SENTENCE, at), "positions: expected 0 to 1, got")
      for at in (None, "0", True, 0.5, [0], float("nan"), 2, -1)),
    *((lambda made, at=at: made.head.substitutes_at(SENTENCE, at), "positions: expected ") for at in (None, 3, "a")),
    *((lambda made, ids=ids: Elmo(*made.files, 1)(ids), "inputs: expected a tensor of ids .batch_to_ids., got")
      for ids in (None, [["a"]], 3, np.zeros((1, 2, 50), int))),
    (lambda made: AllenNlpElmo(*made.files, 1)(None), "inputs: expected a tensor of ids"),
    (lambda made: Elmo(*made.files, 1, vocab_to_cache=["", "a"])(None, [[1]]), "word_inputs: expected a tensor of ids"),
    (lambda made: _ElmoCharacterEncoder(*made.files)([[1]]), "inputs: expected a tensor of ids"),
    (lambda made: made.tf([[[1]], [[1, 2], [3]]]), "ids: expected an array of integers"),
    *((lambda made, ops=ops: weight_layers("a", ops), "bilm_ops: expected")
      for ops in (None, 3, b"ab", torch.zeros(2), {"lm_embeddings": "a", "mask": None}, {"lm_embeddings": [[1], [1, 2]],
                                                                                        "mask": [1]})),
    *((lambda made, text=text: made.words.encode(text), "sentence: expected a string, or a list of tokens with")
      for text in (None, 3, ["a"])),
    *((lambda made, text=text: made.words.encode(text, split=False), "(sentence|token): expected")
      for text in (None, 3, [3], [["a"]], [b"a"], np.array(3))),
    (lambda made: made.characters.encode_chars([3], split=False), "token: expected a string, got int"),
    (lambda made: made.characters.word_to_char_ids(["a"]), "token: expected a string, got list"),
    *((lambda made, text=text: corpus_words(text), "sentences.*: expected a list of token")
      for text in (None, 3, "a b", ["a b"], [3], [None])),
    *((lambda made, text=text: corpus_words(text), "token: expected a string")
      for text in ([[3]], [[["a"]]], [[None]])),
    (lambda made: made.loaded.embed([["a"]], batch_size=np.zeros((9, 9))), "batch_size: expected .*, got array.*$"),
    *((lambda made, words=words: ELMoCharacterMapper(words), "tokens_to_add: expected a mapping, got")
      for words in (3, "ab", [1])),
    *((lambda made, params=params: AllenNlpElmo.from_params(params), "Elmo: expected a mapping of arguments")
      for params in (3, ..., b"a")),
], ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_arguments(made, call, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        call(made)


PATHS = {
    "load": ("model", lambda made, value: load(value)),
    "BiLm.from_model": ("model", lambda made, value: BiLm.from_model(value)),
    "Elmo": ("options_file", lambda made, value: Elmo(value, 4, 1)),
    "ElmoEmbedder, weights": ("weight_file", lambda made, value: ElmoEmbedder(made.files[0], value)),
    "BiLm, token_table": ("token table", lambda made, value: BiLm.from_files(*made.files, token_table=value)),
    "TokenTable.open": ("token table", lambda made, value: TokenTable.open(value)),
    "write_token_table": ("token table", lambda made, value: write_token_table(made.bilm, SENTENCE, value)),
    "embed_file, input": ("input_file", lambda made, value: made.embedder.embed_file(value, made.path)),
    "embed_file, output": ("output file", lambda made, value: made.embedder.embed_file(io.StringIO("a"), value)),
    "save_vectors": ("output", lambda made, value: made.loaded.save_vectors(value, [SENTENCE])),
    "save_vectors, layout": ("output", lambda made, value: made.loaded.save_vectors(value, [], layout="allennlp")),
    "open_embeddings": ("embeddings", lambda made, value: open_embeddings(value)),
    "open_texts": ("input", lambda made, value: open_texts([value])),
    "read_fasta": ("FASTA file", lambda made, value: next(read_fasta(value))),
    "Vocabulary": ("vocabulary", lambda made, value: Vocabulary(value)),
    "Batcher": ("vocabulary", lambda made, value: Batcher(value, 50)),
    "Options.from_file": ("options_file", lambda made, value: Options.from_file(value)),
    "read_weights": ("weight_file", lambda made, value: read_weights(value, made.bilm.options)),
    "write_weights": ("weight file", lambda made, value: write_weights(value, made.bilm.weights())),
    "ContextIndex.load": ("index", lambda made, value: ContextIndex.load(value)),
    "simple_elmo": ("directory", lambda made, value: ElmoModel().load(value)),
    "elmoformanylangs": ("model_dir", lambda made, value: Embedder(value)),
    "bilm-tf": ("options_file", lambda made, value: BidirectionalLanguageModel(value, value)),
}


@pytest.mark.parametrize("value", [3, 3.5, None, b"a", ["a"], ...], ids=repr)
@pytest.mark.parametrize("name", PATHS)
def test_no_path(made, name, value):
    if value is None and name == "BiLm, token_table":
        return
    argument, call = PATHS[name]
    with pytest.raises(ValueError, match=rf"\A{argument}: expected (a path|paths|a file).*, got .*\Z"):
        call(made, value)
    assert not made.path.exists()


@pytest.mark.parametrize("device", ["nonsense", "", "cuda:99", 99, 3.5, ["cpu"], ...], ids=repr)
def test_no_device(made, device):
    table = made.path.with_name("table.h5")
    write_token_table(made.bilm, SENTENCE, table)
    for call in (lambda: load(made.folder, device=device), lambda: TokenTable.open(table, device=device),
                 lambda: build_token_table(made.bilm, SENTENCE, device=device),
                 lambda: perplexity_of(made.folder, "text", device=device)):
        with pytest.raises(ValueError, match=r"\Adevice: expected an available device, got .*\Z"):
            call()


@pytest.mark.parametrize("number", [2**31, 2**70])
def test_sizes(made, number):
    with pytest.raises(ConfigurationError, match="num_output_representations: expected an integer of at most 1,000"):
        Elmo(*made.files, number)
    with pytest.raises(ValueError, match="n_layers: expected an integer of at most 1,000"):
        LayerWeights(number)
    for call in (lambda: batch_to_ids([["a"]], number), lambda: Batcher(made.vocabulary, number)):
        with pytest.raises(ValueError, match="max_characters_per_token: expected at most 10,000, got"):
            call()


def test_what_is_accepted(made):
    """Arrays of words, tuples, generators of sentences, and records."""
    expected = made.loaded.embed([SENTENCE])[0]
    for value in (np.array([SENTENCE]), (tuple(SENTENCE),), iter([SENTENCE]), ["the cat"], [np.array(SENTENCE)]):
        np.testing.assert_array_equal(made.loaded.embed(value)[0], expected)
    assert made.loaded.embed([FastaRecord("a", "MK")])[0].shape[1] == 2
    assert made.head.substitutes(SENTENCE, np.int64(1), 1) and made.head.substitutes_at(SENTENCE, np.array([0]), 1)
    assert list(made.words.encode("the cat")) == list(made.words.encode(np.array(SENTENCE), split=False))
    assert Elmo(*made.files, 1, vocab_to_cache=np.array(["", "a"]))(None, torch.tensor([[1]]))["mask"].item() == 1
