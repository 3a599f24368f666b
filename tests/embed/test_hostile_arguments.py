"""Every public class, of `compat` too, refuses wrong texts, ids and choices by a one-line error."""

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
    TokenBatcher,
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
from elmo_fast.compat.allennlp.commands.elmo import ElmoEmbedder as AllenNlpEmbedder
from elmo_fast.compat.allennlp.data.token_indexers import ELMoTokenCharactersIndexer
from elmo_fast.compat.allennlp.data.token_indexers.elmo_indexer import ELMoCharacterMapper
from elmo_fast.compat.allennlp.modules.elmo import Elmo as AllenNlpElmo
from elmo_fast.compat.bilm import Batcher, BidirectionalLanguageModel, LayerWeights, weight_layers
from elmo_fast.compat.elmoformanylangs import Embedder
from elmo_fast.compat.simple_elmo import ElmoModel
from elmo_fast.text.vocabulary import UnicodeCharsVocabulary
from elmo_fast.train.evaluate import perplexity_of
from tests.support.files import paths, tiny
from tests.support.manylangs import write_manylangs
from tests.support.softmax import head_of, write_softmax_model

SENTENCE = ["the", "cat"]
NO_LISTS = [None, 3, 3.5, True, ..., "a b", b"a b", np.array(3.0), torch.tensor(3.0)]
NESTED = [[None], [3], [[3]], [[None]], [["a", 3]], [["a"], [["b"]]], [[["a"]]], [[["a", "b"], ["c"]]], [[{"a": 1}]],
          [[b"a"]], np.zeros((2, 3)), [np.array(3.0)], [[torch.zeros(2, 3)], [["a"]]]]


class Api:
    """Every public class that takes text, on one model; calls with more arguments are methods with one."""

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


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    return Api(tmp_path_factory.mktemp("made"))


# of a batch; of a sentence
BATCHES = ["loaded.embed", "reference.embed", "loaded_many.embed", "save_vectors", "bilm.embed_tokens", "warm_text",
           "embedder.embed_batch", "embedder.batch_to_embeddings", "embed_sentences", "allennlp.embed_batch",
           "simple.get_elmo_vectors", "simple.get_elmo_vector_average", "many.sents2elmo", "head.score", "batch_to_ids",
           "batcher.batch_sentences", "token_batcher.batch_sentences", "without_unk.batch_sentences"]
SENTENCES = ["loaded.encode_words", "loaded_many.encode_words", "bilm.encode", "vocab_to_cache",
             "embedder.embed_sentence", "substitutes", "head.logits", "indexer.tokens_to_indices", "build_token_table"]


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("value, message", [
    *((value, f": expected a list of (tokenized sentences|texts|tokens), got (one |the )?{type(value).__name__}")
      for value in NO_LISTS),
    *((value, r"(\[0\])?: expected a (string|(string or a )?list of tokens), got") for value in NESTED)], ids=repr)
def test_values_that_are_no_tokenized_sentences_are_refused(api, name, value, message):
    with pytest.raises(ValueError, match=rf"^\w+{message}.*\Z"):
        operator.attrgetter(name)(api)(value)
    assert not api.path.exists()


@pytest.mark.parametrize("value", [value for value in NO_LISTS if not isinstance(value, (str, bytes))] + [
    [None], [3], [["a"]], [b"a"], [[torch.zeros(2, 3)]]], ids=repr)
@pytest.mark.parametrize("name", SENTENCES)
def test_values_that_are_no_tokens_are_refused(api, name, value):
    with pytest.raises((ValueError, FileNotFoundError), match=r"\A.*expected.*\Z"):
        operator.attrgetter(name)(api)(value)


@pytest.mark.parametrize("call, message", [
    *((lambda api, texts=texts: api.loaded.similarity(*texts),
       f"sentences.{number}.: expected a string or a list of tokens, got {kind}") for texts, number, kind in (
           ((None, ["a"]), 0, "NoneType"), ((["a"], np.array(3)), 1, "ndarray"))),
    *((lambda api, layers=layers: api.loaded.embed([["a"]], layers=layers), "layers: expected one of all, top")
      for layers in ([["a"], 3], ["a"], {"a": 1}, ..., b"top", [1, 1e300], [1, np.nan], [1, 10**400])),
    (lambda api: api.loaded.embed([["a"]], pool=np.zeros(3)), "pool: expected None or one of mean, max"),
    (lambda api: api.loaded.embed([["a"]], state=np.zeros(3)), "state: expected one of carry, zero, warm"),
    *((lambda api, text=text: api.simple.get_elmo_substitutes(text), "data: expected a list of sentences")
      for text in (None, 3, ..., np.array(3.0), [["a"]], "a b")),
    (lambda api: api.many.sents2elmo([["a"]], np.zeros(3)), "output_layer: expected -1 for the mean"),
    *((lambda api, at=at: api.head.substitutes(SENTENCE, at), "positions: expected 0 to 1, got")
      for at in (None, "0", True, 0.5, [0], float("nan"), 2, -1)),
    *((lambda api, at=at: api.head.substitutes_at(SENTENCE, at), "positions: expected ") for at in (None, 3, "a")),
    *((lambda api, ids=ids: Elmo(*api.files, 1)(ids), "inputs: expected a tensor of ids .batch_to_ids., got")
      for ids in (None, [["a"]], 3, np.zeros((1, 2, 50), int))),
    (lambda api: api.tf([[[1]], [[1, 2], [3]]]), "ids: expected an array of integers"),
    (lambda api: weight_layers("a", {"lm_embeddings": [[1], [1, 2]], "mask": [1]}), "bilm_ops: expected"),
    (lambda api: ELMoCharacterMapper([1]), "tokens_to_add: expected a mapping, got"),
    (lambda api: AllenNlpElmo.from_params(3), "Elmo: expected a mapping of arguments"),
    (lambda api: api.words.encode(["a"]), "sentence: expected a string, or a list of tokens with"),
    (lambda api: api.characters.encode_chars([3], split=False), "token: expected a string, got int"),
    *((lambda api, text=text: corpus_words(text), "sentences.*: expected a list of token")
      for text in (None, 3, "a b", ["a b"], [3], [None])),
    *((lambda api, text=text: corpus_words(text), "token: expected a string")
      for text in ([[3]], [[["a"]]], [[None]])),
    (lambda api: api.loaded.embed([["a"]], batch_size=np.zeros((9, 9))), "batch_size: expected .*, got array.*$"),
], ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_arguments(api, call, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        call(api)


PATHS = {
    "load": ("model", lambda api, value: load(value)),
    "BiLm.from_model": ("model", lambda api, value: BiLm.from_model(value)),
    "Elmo": ("options_file", lambda api, value: Elmo(value, 4, 1)),
    "ElmoEmbedder, weights": ("weight_file", lambda api, value: ElmoEmbedder(api.files[0], value)),
    "BiLm, token_table": ("token table", lambda api, value: BiLm.from_files(*api.files, token_table=value)),
    "TokenTable.open": ("token table", lambda api, value: TokenTable.open(value)),
    "write_token_table": ("token table", lambda api, value: write_token_table(api.bilm, SENTENCE, value)),
    "embed_file, input": ("input_file", lambda api, value: api.embedder.embed_file(value, api.path)),
    "embed_file, output": ("output file", lambda api, value: api.embedder.embed_file(io.StringIO("a"), value)),
    "save_vectors": ("output", lambda api, value: api.loaded.save_vectors(value, [SENTENCE])),
    "save_vectors, layout": ("output", lambda api, value: api.loaded.save_vectors(value, [], layout="allennlp")),
    "open_embeddings": ("embeddings", lambda api, value: open_embeddings(value)),
    "open_texts": ("input", lambda api, value: open_texts([value])),
    "read_fasta": ("FASTA file", lambda api, value: next(read_fasta(value))),
    "Vocabulary": ("vocabulary", lambda api, value: Vocabulary(value)),
    "Batcher": ("vocabulary", lambda api, value: Batcher(value, 50)),
    "Options.from_file": ("options_file", lambda api, value: Options.from_file(value)),
    "read_weights": ("weight_file", lambda api, value: read_weights(value, api.bilm.options)),
    "write_weights": ("weight file", lambda api, value: write_weights(value, api.bilm.weights())),
    "ContextIndex.load": ("index", lambda api, value: ContextIndex.load(value)),
    "simple_elmo": ("directory", lambda api, value: ElmoModel().load(value)),
    "elmoformanylangs": ("model_dir", lambda api, value: Embedder(value)),
    "bilm-tf": ("options_file", lambda api, value: BidirectionalLanguageModel(value, value)),
}


@pytest.mark.parametrize("value", [3, 3.5, None, b"a", ["a"], ...], ids=repr)
@pytest.mark.parametrize("name", PATHS)
def test_no_path(api, name, value):
    if value is None and name == "BiLm, token_table":
        return
    argument, call = PATHS[name]
    with pytest.raises(ValueError, match=rf"\A{argument}: expected (a path|paths|a file).*, got .*\Z"):
        call(api, value)
    assert not api.path.exists()


@pytest.mark.parametrize("device", ["nonsense", "", "cuda:99", 99, 3.5, ["cpu"], ...], ids=repr)
def test_no_device(api, device):
    for call in (lambda: load(api.folder, device=device), lambda: perplexity_of(api.folder, "text", device=device)):
        with pytest.raises(ValueError, match=r"\Adevice: expected an available device, got .*\Z"):
            call()


@pytest.mark.parametrize("number", [2**31, 2**70])
def test_sizes(api, number):
    with pytest.raises(ConfigurationError, match="num_output_representations: expected an integer of at most 1,000"):
        Elmo(*api.files, number)
    with pytest.raises(ValueError, match="n_layers: expected an integer of at most 1,000"):
        LayerWeights(number)
    for call in (lambda: batch_to_ids([["a"]], number), lambda: Batcher(api.vocabulary, number)):
        with pytest.raises(ValueError, match="max_characters_per_token: expected at most 10,000, got"):
            call()


def test_accepted_values(api):
    """Arrays of words, tuples, generators of sentences, and records."""
    expected = api.loaded.embed([SENTENCE])[0]
    for value in (np.array([SENTENCE]), (tuple(SENTENCE),), iter([SENTENCE]), ["the cat"], [np.array(SENTENCE)]):
        np.testing.assert_array_equal(api.loaded.embed(value)[0], expected)
    assert api.loaded.embed([FastaRecord("a", "MK")])[0].shape[1] == 2
    assert api.head.substitutes(SENTENCE, np.int64(1), 1) and api.head.substitutes_at(SENTENCE, np.array([0]), 1)
    assert list(api.words.encode("the cat")) == list(api.words.encode(np.array(SENTENCE), split=False))
    assert Elmo(*api.files, 1, vocab_to_cache=np.array(["", "a"]))(None, torch.tensor([[1]]))["mask"].item() == 1
