import copy
import json

import pytest

from elmo_fast import ConfigurationError, Options
from tests.support.files import tiny

MISSING = object()
COUNTS = ["lstm__dim", "lstm__projection_dim", "char_cnn__max_characters_per_token", "char_cnn__embedding__dim"]
DEFAULTS = {"lstm__n_layers": 1, "char_cnn__n_highway": 0, "n_tokens_vocab": None}
NAME = "options_file some.json"


def refusal(content):
    with pytest.raises(ConfigurationError) as caught:
        Options.from_dict(content, NAME)
    return str(caught.value)


def changed(path, value):
    content = tiny(**{path: value})
    *sections, key = path.split("__")
    section = content
    for name in sections:
        section = section[name]
    if value is MISSING:
        del section[key]
    return content


@pytest.mark.parametrize("value", [MISSING, None])
@pytest.mark.parametrize("path, default", [*DEFAULTS.items(), ("lstm__cell_clip", None), ("lstm__proj_clip", None)])
def test_defaults(path, value, default):
    option = Options.from_dict(changed(path, value))
    for name in path.split("__"):
        option = getattr(option, name)
    assert option == default


CLIP, PAIRS = "a number above 0, or null for no clipping", "pairs of two integers above 0, [width, count]"
COUNT = "an integer of at least 1"
NOT_COUNTS = [-1, True, "3", 2.5, float("nan"), float("inf"), [3]]
REFUSED = [  # path, values, expectation in the message
    ("lstm__cell_clip", [0, -1, True, False, float("nan"), 10**400], CLIP),
    ("lstm__proj_clip", [0.0, "3", float("inf"), [3]], CLIP),
    ("lstm__use_skip_connections", [None, 1, "true", [True]], "true or false"),
    ("char_cnn__activation", [None, "gelu", "ReLU", 1, ["relu"]], "one of relu, tanh"),
    ("char_cnn__n_characters", [None, 260, 263, True, "262"], "one of 261, 262"),
    ("char_cnn__filters", [None, [], "12", {"1": 2}], "a list of [width, count] pairs"),
    ("lstm", [None, 3, [], "x"], "a JSON object"),
    ("char_cnn", [None, 3], "a JSON object"),
    ("char_cnn__embedding", [[], "x"], "a JSON object"),
    ("bidirectional", [False, None, 0, "yes"], "true (a two-direction model)"),
    *((path, [None, 0, *NOT_COUNTS], COUNT) for path in COUNTS if not path.endswith("max_characters_per_token")),
    ("char_cnn__max_characters_per_token", [None, 0, 2, *NOT_COUNTS], "an integer of at least 3"),
    ("lstm__n_layers", [0, *NOT_COUNTS], COUNT),
    ("n_tokens_vocab", [0, *NOT_COUNTS], COUNT),
    ("char_cnn__n_highway", NOT_COUNTS, "an integer of at least 0"),
    # larger than any model
    *((path, [2**31, 2**63], "at most 1,000") for path in ("lstm__n_layers", "char_cnn__n_highway")),
    *((path, [2**40, 10**30, 1e300], "at most 1,048,576") for path in ("lstm__dim", "char_cnn__embedding__dim")),
    ("char_cnn__max_characters_per_token", [2**31 - 1], "at most 10,000"),
    ("n_tokens_vocab", [2**70], "at most 2,147,483,647"),
]


@pytest.mark.parametrize("path, value, expected", [
    (path, value, expected) for path, values, expected in REFUSED for value in values])
def test_a_wrong_value_is_refused_with_its_key(path, value, expected):
    place = path.replace("__", ": ")
    assert refusal(tiny(**{path: value})) == f"{NAME}: {place}: expected {expected}, got {value!r:.80}"


@pytest.mark.parametrize("pair, expected", [
    *((pair, PAIRS) for pair in (1, [1], [1, 2, 3], [0, 4], [1, -4], [True, 4], ["1", 4], [1, 4.5])),
    ([51, 4], "widths of at most max_characters_per_token (50)"), ([1, 2**62], "counts of at most 1,048,576"),
])
def test_bad_filters_are_refused(pair, expected):
    content = tiny(char_cnn__filters=[[1, 4], pair])
    assert refusal(content) == f"{NAME}: char_cnn: filters: expected {expected}, got {pair!r}"


def test_options_and_unknown_keys_round_trip_through_to_dict():
    content = tiny(n_tokens_vocab=77, dropout=0.1, lstm__note="x")
    before = json.dumps(content)
    written = Options.from_dict(content).to_dict()
    assert written == content and Options.from_dict(written) == Options.from_dict(content)
    written["lstm"]["dim"] = 99
    assert json.dumps(content) == before


@pytest.mark.parametrize("content, message", [
    (json.dumps(tiny()).encode("utf-8-sig"), None), (json.dumps(tiny(lstm__dim=0)).encode(), "lstm: dim: expected"),
    *((content, "expected JSON, got something else") for content in (
        b"", b"hello", b"{", b"\xff\xfe{}", b"\x89HDF\r\n", b"[" * 100_000, b'{"lstm": ' + b"9" * 5000 + b"}"))],
    ids=range(9))
def test_a_file_is_read_or_refused_by_name(tmp_path, content, message):
    path = tmp_path / "options.json"
    path.write_bytes(content)
    if message is None:
        assert Options.from_file(path) == Options.from_dict(tiny())
    else:
        with pytest.raises(ConfigurationError, match=f"^options_file {path}: {message}"):
            Options.from_file(path)


def test_a_dictionary_that_is_edited_later_changes_no_options():
    content = tiny(training={"rates": [1, 2]})
    options, before = Options.from_dict(content), copy.deepcopy(content)
    written = options.to_dict()
    for edited in (content, options.to_dict()):
        edited["lstm"]["dim"] = 99
        edited["char_cnn"]["embedding"]["dim"] = 99
        edited["training"]["rates"].append(3)
    assert options.to_dict() == written and options == Options.from_dict(before)
