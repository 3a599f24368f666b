"""AllenNLP's character mapper and indexer, and its registry where AllenNLP is installed."""

import copy
import textwrap
from types import SimpleNamespace

import pytest

from elmo_fast import ConfigurationError, batch_to_ids
from elmo_fast.compat.allennlp import ELMoCharacterMapper, ELMoTokenCharactersIndexer
from tests.support.files import start


class Long(ELMoCharacterMapper):
    max_word_length = 80


def padded(*ids, size=50):
    return [*ids, *[261] * (size - len(ids))]


@pytest.mark.parametrize("mapper, word, expected", [
    (ELMoCharacterMapper(), "<S>", padded(259, 257, 260)),
    (ELMoCharacterMapper(), "</S>", padded(259, 258, 260)),
    (ELMoCharacterMapper(), "", padded(259, 260)),
    (ELMoCharacterMapper(), "Ā1", padded(259, 197, 129, 50, 260)),
    (ELMoCharacterMapper(), "\ud800a", padded(259, 98, 260)),
    (ELMoCharacterMapper(), "x" * 60, [259, *[121] * 48, 260]),
    (Long(), "x" * 60, padded(259, *[121] * 60, 260, size=80)),
])
def test_mapper(mapper, word, expected):
    assert mapper.convert_word_to_char_ids(word) == expected
    assert batch_to_ids([[word]], mapper.max_word_length)[0, 0].tolist() == expected


@pytest.mark.parametrize("name, value", [
    ("max_word_length", 50), ("bos_token", "<S>"), ("eos_token", "</S>"), ("beginning_of_sentence_character", 256),
    ("end_of_sentence_character", 257), ("beginning_of_word_character", 258), ("end_of_word_character", 259),
    ("padding_character", 260), ("beginning_of_sentence_characters", [258, 256, 259, *[260] * 47]),
    ("end_of_sentence_characters", [258, 257, 259, *[260] * 47])])
def test_mapper_constants(name, value):
    assert getattr(ELMoCharacterMapper, name) == value


def test_tokens_to_add():
    mapper = ELMoCharacterMapper({"<first>": 1, "<S>": 7})
    for word, character in (("<first>", 2), ("<S>", 8), ("</S>", 258)):
        assert mapper.convert_word_to_char_ids(word) == padded(259, character, 260)
    assert mapper == ELMoCharacterMapper({"<S>": 7, "<first>": 1}) != ELMoCharacterMapper()


def test_indexer():
    indexer, empty = ELMoTokenCharactersIndexer(), ELMoTokenCharactersIndexer(token_min_padding_length=4)
    tokens = [SimpleNamespace(text="Second"), SimpleNamespace(text=".")]
    ids = indexer.tokens_to_indices(tokens, None, "characters")
    assert ids == {"characters": [padded(259, 84, 102, 100, 112, 111, 101, 260), padded(259, 47, 260)]}
    assert indexer.tokens_to_indices(["Second", "."]) == {"elmo_tokens": ids["characters"]}
    assert indexer.tokens_to_indices([], None, "none") == {"none": []}
    three = indexer.as_padded_tensor(ids, {"characters": 3}, {})["characters"]
    assert str(three.dtype) == "torch.int64" and three.tolist() == [*ids["characters"], [0] * 50]
    assert indexer.as_padded_tensor(ids, {"characters": 1}, {})["characters"].tolist() == ids["characters"][:1]
    assert indexer.as_padded_tensor({"none": []}, {"none": 2}, {})["none"].tolist() == [[0] * 50] * 2
    assert indexer.as_padded_tensor_dict(ids, {"characters": 3})["characters"].equal(three)
    counter = {"words": {}}
    indexer.count_vocab_items(tokens[0], counter)
    assert counter == {"words": {}}
    assert empty.get_token_min_padding_length() == 4 and empty.get_padding_lengths([259, 260]) == {}
    for count, length in ((3, 4), (6, 6)):
        assert empty.get_padding_lengths({"elmo_tokens": [[1]] * count}) == {"elmo_tokens": length}
    assert empty.get_empty_token_list() == {"elmo_tokens": []} and empty.get_keys("a") == ["a"]


def test_indexers_that_do_the_same_are_equal():
    indexer = ELMoTokenCharactersIndexer(tokens_to_add={"<x>": 3})
    assert indexer == copy.deepcopy(indexer) == ELMoTokenCharactersIndexer.from_params({"tokens_to_add": {"<x>": "3"}})
    assert indexer != ELMoTokenCharactersIndexer()


@pytest.mark.parametrize("call, named", [
    *((lambda wrong=wrong: ELMoCharacterMapper({"<first>": wrong}),
       "tokens_to_add: expected a character from 0 to 260") for wrong in (261, -1, "a", None)),
    (lambda: ELMoTokenCharactersIndexer().tokens_to_indices([SimpleNamespace(text="a"), SimpleNamespace(text=None)]),
     "tokens: expected tokens with their text"),
    (lambda: ELMoTokenCharactersIndexer.from_params({"surplus": 1}),
     "ELMoTokenCharactersIndexer: expected nothing but .*, got surplus"),
])
def test_refuses(call, named):
    with pytest.raises(ConfigurationError, match=f"^{named}"):
        call()


ALLENNLP = {  # a stand-in, which registers classes of its own where AllenNLP does
    **dict.fromkeys(["__init__.py", "data/__init__.py", "modules/__init__.py"], ""),
    "common.py": """
        from collections import UserDict

        class Registrable:
            registry = {}

            @classmethod
            def register(cls, name, exist_ok=False):
                def add(subclass):
                    assert exist_ok or (cls, name) not in Registrable.registry, f"{name} is taken"
                    Registrable.registry[cls, name] = subclass
                    return subclass
                return add

        class Params(UserDict):
            def add_file_to_archive(self, name):
                self.archived = getattr(self, "archived", []) + [self[name]]
        """,
    "data/token_indexers/__init__.py": """
        from allennlp.data.token_indexers.token_indexer import TokenIndexer
        TokenIndexer.register("elmo_characters")(object)
        """,
    "data/token_indexers/token_indexer.py": """
        from allennlp.common import Registrable
        class TokenIndexer(Registrable):
            def __init__(self, token_min_padding_length=0):
                raise AssertionError
        """,
    "modules/token_embedders/__init__.py": """
        from allennlp.modules.token_embedders.token_embedder import TokenEmbedder
        TokenEmbedder.register("elmo_token_embedder")(object)
        """,
    "modules/token_embedders/token_embedder.py": """
        import torch
        from allennlp.common import Registrable
        class TokenEmbedder(torch.nn.Module, Registrable):
            pass
        """,
}
BUILDS_OURS = """
    import elmo_fast.compat.allennlp as ours
    from allennlp.common import Params, Registrable
    from allennlp.data.token_indexers.token_indexer import TokenIndexer
    from allennlp.modules.token_embedders.token_embedder import TokenEmbedder
    assert Registrable.registry[TokenIndexer, "elmo_characters"] is ours.ELMoTokenCharactersIndexer
    assert Registrable.registry[TokenEmbedder, "elmo_token_embedder"] is ours.ElmoTokenEmbedder
    params = Params(options_file={options!r}, weight_file={weights!r}, projection_dim=3)
    embedder = ours.ElmoTokenEmbedder.from_params(params=params, vocab=None, constructor_to_call=None)
    assert params == {{}} and params.archived == [{options!r}, {weights!r}]
    assert isinstance(embedder, TokenEmbedder) and embedder.get_output_dim() == 3
    assert embedder(ours.batch_to_ids([["a", "b"]])).shape == (1, 2, 3)
    indexer = ours.ELMoTokenCharactersIndexer.from_params(params=Params(namespace="n"))
    assert isinstance(indexer, TokenIndexer) and len(indexer.tokens_to_indices(["a"])["elmo_tokens"]) == 1
    """
DOES_WITHOUT = """
    from elmo_fast.compat.allennlp import ELMoTokenCharactersIndexer, ElmoTokenEmbedder
    assert len(ELMoTokenCharactersIndexer().tokens_to_indices(["a"])["elmo_tokens"][0]) == 50
    """
ABSENT = """
    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "allennlp":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.meta_path.insert(0, Absent())
    import elmo_fast.compat.allennlp
    assert "allennlp" not in sys.modules
    """


@pytest.mark.parametrize("changes, code, logged", [
    ({}, BUILDS_OURS, []),
    ({"data/token_indexers/__init__.py": "import spacy_of_2019"}, DOES_WITHOUT,
     ["token_indexer does not import (ModuleNotFoundError: ", "not registered with AllenNLP"]),
    ({"modules/__init__.py": "raise TypeError('old code')"}, DOES_WITHOUT,
     ["token_embedder does not import (TypeError: old code): ELMo classes are not registered with AllenNLP"]),
    ({}, ABSENT, []),
])
def test_allennlp_that_is_there_broken_or_absent(tmp_path, files, changes, code, logged):
    for name, text in {**ALLENNLP, **changes}.items():
        path = tmp_path / "allennlp" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    process = start(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
                    + textwrap.dedent(code.format(options=files[0], weights=files[1]) if code is BUILDS_OURS else code))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert all(words in err for words in logged) and bool(err) == bool(logged)
