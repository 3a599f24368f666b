"""AllenNLP's character mapper and indexer, and its registry where AllenNLP is installed."""

import copy
import textwrap
from types import SimpleNamespace

import pytest

from elmo_fast import ConfigurationError, batch_to_ids
from elmo_fast.compat.allennlp import ELMoCharacterMapper, ELMoTokenCharactersIndexer
from tests.support.allennlp import STAND_IN
from tests.support.files import start
from tests.support.grid import mostly_long


class Long(ELMoCharacterMapper):
    max_word_length = 80


PLAIN, ADDED = ELMoCharacterMapper(), ELMoCharacterMapper({"<first>": 1, "<S>": 7})


def padded(*ids, size=50):
    return [*ids, *[261] * (size - len(ids))]


@pytest.mark.parametrize("mapper, word, expected", [
    (PLAIN, "Ā1", padded(259, 197, 129, 50, 260)),
    (Long(), "x" * 60, padded(259, *[121] * 60, 260, size=80)),
    (ADDED, "<first>", padded(259, 2, 260)),
    (ADDED, "<S>", padded(259, 8, 260)),
    (ADDED, "</S>", padded(259, 258, 260)),
])
def test_mapper(mapper, word, expected):
    assert mapper.convert_word_to_char_ids(word) == expected
    if mapper is not ADDED:
        assert batch_to_ids([[word]], mapper.max_word_length)[0, 0].tolist() == expected


@pytest.mark.parametrize("mapper", [ELMoCharacterMapper, Long], ids=lambda mapper: mapper.__name__)
def test_a_word_is_converted_by_the_class_too(mapper):
    """As in AllenNLP before 0.9, and as programs call it with an instance in place of `self`."""
    expected = mapper().convert_word_to_char_ids("cat")
    assert len(expected) == mapper.max_word_length
    assert mapper.convert_word_to_char_ids("cat") == mapper.convert_word_to_char_ids(word="cat") == expected
    assert mapper.convert_word_to_char_ids(mapper(), "cat") == expected
    added = mapper({"cat": 7})
    assert mapper.convert_word_to_char_ids(added, "cat") == added.convert_word_to_char_ids("cat") != expected
    assert [*map(mapper.convert_word_to_char_ids, ["cat"])] == [expected] and copy.deepcopy(added) == added
    with pytest.raises(ValueError, match="token: expected a string, got int"):
        mapper.convert_word_to_char_ids(3)


class Changed(ELMoCharacterMapper):
    def convert_word_to_char_ids(self, word):
        return super().convert_word_to_char_ids(word.lower())


def test_a_subclass_may_change_the_conversion():
    assert Changed().convert_word_to_char_ids("CAT") == PLAIN.convert_word_to_char_ids("cat")


def test_mapper_constants():
    constants = {
        "max_word_length": 50, "bos_token": "<S>", "eos_token": "</S>", "padding_character": 260,
        "beginning_of_sentence_character": 256, "end_of_sentence_character": 257, "beginning_of_word_character": 258,
        "end_of_word_character": 259, "beginning_of_sentence_characters": [258, 256, 259, *[260] * 47],
        "end_of_sentence_characters": [258, 257, 259, *[260] * 47]}
    assert {name: getattr(ELMoCharacterMapper, name) for name in constants} == constants


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
    for token in (tokens[0], "Second"):
        assert indexer.count_vocab_items(token, counter := {"words": {}}) is None and counter == {"words": {}}
    assert empty.get_token_min_padding_length() == 4 and empty.get_padding_lengths([259, 260]) == {}
    for count, length in ((3, 4), (6, 6)):
        assert empty.get_padding_lengths({"elmo_tokens": [[1]] * count}) == {"elmo_tokens": length}
    assert empty.get_empty_token_list() == {"elmo_tokens": []} and empty.get_keys("a") == ["a"]


def test_indexers_that_do_the_same_are_equal():
    assert ADDED == ELMoCharacterMapper({"<S>": 7, "<first>": 1}) != PLAIN
    indexer = ELMoTokenCharactersIndexer(tokens_to_add={"<x>": 3})
    assert indexer == copy.deepcopy(indexer) == ELMoTokenCharactersIndexer.from_params({"tokens_to_add": {"<x>": "3"}})
    assert indexer != ELMoTokenCharactersIndexer()


@pytest.mark.parametrize("call, message", [
    *((lambda wrong=wrong: ELMoCharacterMapper({"<first>": wrong}),
       "tokens_to_add: expected a character from 0 to 260") for wrong in (261, -1, "a", None)),
    (lambda: ELMoTokenCharactersIndexer().tokens_to_indices([SimpleNamespace(text="a"), SimpleNamespace(text=None)]),
     "tokens: expected tokens with their text"),
    (lambda: ELMoTokenCharactersIndexer.from_params({"surplus": 1}),
     "ELMoTokenCharactersIndexer: expected only .*, got surplus"),
])
def test_refuses(call, message):
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        call()


BROKEN = """
    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "allennlp":
                raise {}
    sys.meta_path.insert(0, Finder())
    from elmo_fast.compat.allennlp import ELMoTokenCharactersIndexer, ElmoTokenEmbedder
    assert len(ELMoTokenCharactersIndexer().tokens_to_indices(["a"])["elmo_tokens"][0]) == 50
    assert "allennlp" not in sys.modules
    """


@pytest.mark.parametrize("code, logged", mostly_long([
    (STAND_IN, ""),
    *((BROKEN.format(error), logged) for error, logged in (
        ("ModuleNotFoundError('no AllenNLP', name='allennlp')", ""),
        ("ModuleNotFoundError('no spacy', name='spacy')", "(ModuleNotFoundError: no spacy)"))),
    (BROKEN.format("TypeError('old code')"), "(TypeError: old code)"),
]))
def test_registry_with_allennlp_present_absent_or_broken(files, code, logged):
    process = start(f"import sys\nsys.argv[1:] = {files!r}\n" + textwrap.dedent(code))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    for module in ("data.token_indexers.token_indexer", "modules.token_embedders.token_embedder") if logged else ():
        assert f"allennlp.{module} cannot be imported {logged}: ELMo classes are not registered with AllenNLP" in err
    assert bool(err) == bool(logged)
