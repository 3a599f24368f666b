"""Every public class that takes text, for `tests/embed/test_hostile_arguments.py`."""



from elmo_fast import (
    Batcher,
    BiLm,
    Elmo,
    ElmoEmbedder,
    TokenBatcher,
    Vocabulary,
    batch_to_ids,
    build_token_table,
    load,
)
from elmo_fast.compat.allennlp.commands.elmo import ElmoEmbedder as AllenNlpEmbedder
from elmo_fast.compat.allennlp.data.token_indexers import ELMoTokenCharactersIndexer
from elmo_fast.compat.bilm import BidirectionalLanguageModel
from elmo_fast.compat.elmoformanylangs import Embedder
from elmo_fast.compat.simple_elmo import ElmoModel
from elmo_fast.testing import tiny
from elmo_fast.text.vocabulary import UnicodeCharsVocabulary
from tests.support.files import paths
from tests.support.manylangs import write_manylangs
from tests.support.softmax import head_of, write_softmax_model

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
