"""AllenNLP's character mapper and indexer, and its registry where AllenNLP is installed."""

import copy
import textwrap

import numpy as np
import pytest

from elmo_fast import ConfigurationError, batch_to_ids
from elmo_fast.compat.allennlp import ELMoCharacterMapper, ELMoTokenCharactersIndexer
from elmo_fast.text import characters
from tests.support.files import paths, start, write_model


class Token:
    def __init__(self, text):
        self.text = text


def padded(*ids):
    return [*ids, *[261] * (50 - len(ids))]


@pytest.mark.parametrize("word, expected", [
    ("<S>", padded(259, 257, 260)),
    ("</S>", padded(259, 258, 260)),
    ("", padded(259, 260)),
    ("Ā1", padded(259, 197, 129, 50, 260)),
    ("\ud800a", padded(259, 98, 260)),
    ("x" * 60, [259, *[121] * 48, 260]),
])
def test_mapper(word, expected):
    assert ELMoCharacterMapper().convert_word_to_char_ids(word) == expected
    assert batch_to_ids([[word]])[0, 0].tolist() == expected


def test_mapper_constants():
    mapper = ELMoCharacterMapper
    assert (mapper.max_word_length, mapper.bos_token, mapper.eos_token) == (50, "<S>", "</S>")
    assert mapper.beginning_of_sentence_character == 256 and mapper.end_of_sentence_character == 257
    assert mapper.beginning_of_word_character == 258 and mapper.end_of_word_character == 259
    assert mapper.padding_character == 260
    assert mapper.beginning_of_sentence_characters == [258, 256, 259, *[260] * 47]
    assert mapper.end_of_sentence_characters == [258, 257, 259, *[260] * 47]


def test_tokens_to_add():
    mapper = ELMoCharacterMapper({"<first>": 1, "<S>": 7})
    assert mapper.convert_word_to_char_ids("<first>") == padded(259, 2, 260)
    assert mapper.convert_word_to_char_ids("<S>") == padded(259, 8, 260)
    assert mapper.convert_word_to_char_ids("</S>") == padded(259, 258, 260)
    assert mapper == ELMoCharacterMapper({"<S>": 7, "<first>": 1}) != ELMoCharacterMapper()
    for wrong in (261, -1, "a", None):
        with pytest.raises(ConfigurationError, match="tokens_to_add: expected a character from 0 to 260"):
            ELMoCharacterMapper({"<first>": wrong})


def test_longer_words_in_a_subclass():
    class Long(ELMoCharacterMapper):
        max_word_length = 80

    assert Long().convert_word_to_char_ids("x" * 60) == [259, *[121] * 60, 260, *[261] * 18]


def test_indexer():
    indexer = ELMoTokenCharactersIndexer()
    tokens = [Token("Second"), Token(".")]
    ids = indexer.tokens_to_indices(tokens, None, "characters")
    assert ids == {"characters": [padded(259, 84, 102, 100, 112, 111, 101, 260), padded(259, 47, 260)]}
    assert indexer.tokens_to_indices(["Second", "."]) == {"elmo_tokens": ids["characters"]}
    assert indexer.tokens_to_indices([], None, "none") == {"none": []}
    three = indexer.as_padded_tensor(ids, {"characters": 3}, {})["characters"]
    assert three.shape == (3, 50) and str(three.dtype) == "torch.int64"
    assert three.tolist() == [*ids["characters"], [0] * 50]
    assert indexer.as_padded_tensor(ids, {"characters": 1}, {})["characters"].tolist() == ids["characters"][:1]
    assert not indexer.as_padded_tensor({"none": []}, {"none": 2}, {})["none"].any()
    assert indexer.as_padded_tensor_dict(ids, {"characters": 3})["characters"].equal(three)
    counter = {"words": {}}
    indexer.count_vocab_items(tokens[0], counter)
    assert counter == {"words": {}}
    with pytest.raises(ConfigurationError, match="tokens: expected tokens with their text"):
        indexer.tokens_to_indices([Token("a"), Token(None)], None, "x")


def test_indexer_lengths():
    indexer = ELMoTokenCharactersIndexer(token_min_padding_length=4)
    assert indexer.get_token_min_padding_length() == 4
    assert indexer.get_padding_lengths([259, 260]) == {}
    assert indexer.get_padding_lengths({"elmo_tokens": [[1]] * 3}) == {"elmo_tokens": 4}
    assert indexer.get_padding_lengths({"elmo_tokens": [[1]] * 6}) == {"elmo_tokens": 6}
    assert indexer.get_empty_token_list() == {"elmo_tokens": []} and indexer.get_keys("a") == ["a"]


def test_indexers_that_do_the_same_are_equal():
    indexer = ELMoTokenCharactersIndexer(tokens_to_add={"<x>": 3})
    assert indexer == copy.deepcopy(indexer) == ELMoTokenCharactersIndexer.from_params({"tokens_to_add": {"<x>": "3"}})
    assert indexer != ELMoTokenCharactersIndexer()
    with pytest.raises(ConfigurationError, match="ELMoTokenCharactersIndexer: expected nothing but .*, got surplus"):
        ELMoTokenCharactersIndexer.from_params({"surplus": 1})


def test_every_word_of_a_text_as_the_engine_reads_it():
    generator = np.random.default_rng(0)
    words = ["".join(map(chr, generator.choice([65, 233, 26481, 128578, 0xDC00, 32], size))) for size in range(30)]
    expected = characters.to_model_ids(characters.encode_tokens(words)).tolist()
    assert [ELMoCharacterMapper().convert_word_to_char_ids(word) for word in words] == expected


ALLENNLP = {
    "__init__.py": "",
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
    "data/__init__.py": "",
    "data/token_indexers/__init__.py": "from allennlp.data.token_indexers import token_indexer, elmo_indexer",
    "data/token_indexers/token_indexer.py": """
        from allennlp.common import Registrable
        class TokenIndexer(Registrable):
            def __init__(self, token_min_padding_length=0):
                raise AssertionError
        """,
    "data/token_indexers/elmo_indexer.py": """
        from allennlp.data.token_indexers.token_indexer import TokenIndexer
        TokenIndexer.register("elmo_characters")(object)
        """,
    "modules/__init__.py": "",
    "modules/token_embedders/__init__.py": "from allennlp.modules.token_embedders import token_embedder, elmo",
    "modules/token_embedders/token_embedder.py": """
        import torch
        from allennlp.common import Registrable
        class TokenEmbedder(torch.nn.Module, Registrable):
            pass
        """,
    "modules/token_embedders/elmo.py": """
        from allennlp.modules.token_embedders.token_embedder import TokenEmbedder
        TokenEmbedder.register("elmo_token_embedder")(object)
        """,
}
CHECK = """
    import sys
    sys.path.insert(0, {folder!r})
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
    print("done")
    """


def install(folder, files):
    for name, text in files.items():
        path = folder / "allennlp" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")


def outcome(code):
    process = start(textwrap.dedent(code))
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_allennlp_builds_ours_where_it_is_installed(tmp_path):
    install(tmp_path, ALLENNLP)
    options, weights = map(str, paths(write_model(tmp_path / "model")))
    status, out, err = outcome(CHECK.format(folder=str(tmp_path), options=options, weights=weights))
    assert (status, out.strip()) == (0, "done"), err


@pytest.mark.parametrize("name, reason", [
    ("data/token_indexers/elmo_indexer.py", "import spacy_of_2019"),
    ("modules/__init__.py", "raise TypeError('old code')"),
])
def test_an_allennlp_that_does_not_import_is_passed_over(tmp_path, name, reason):
    install(tmp_path, {**ALLENNLP, name: reason})
    status, out, err = outcome(f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        from elmo_fast.compat.allennlp import ELMoTokenCharactersIndexer, ElmoTokenEmbedder
        print(len(ELMoTokenCharactersIndexer().tokens_to_indices(["a"])["elmo_tokens"][0]))
        """)
    assert (status, out.strip()) == (0, "50"), err
    assert "does not import" in err and "not registered with AllenNLP" in err


def test_nothing_needs_allennlp():
    status, out, err = outcome("""
        import sys
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "allennlp":
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        sys.meta_path.insert(0, Absent())
        import elmo_fast.compat.allennlp
        print("allennlp" in sys.modules)
        """)
    assert (status, out.strip(), err) == (0, "False", "")
