import dataclasses
import json

import pytest

from elmo_fast import ConfigurationError, Options
from elmo_fast.model.options import CharCnnOptions, LstmOptions
from tests.support.files import tiny

MISSING = object()
NOT_COUNTS = [None, 0, -1, True, "3", 2.5, float("nan"), float("inf"), [3]]
COUNTS = ["lstm__dim", "lstm__projection_dim", "char_cnn__max_characters_per_token", "char_cnn__embedding__dim"]


def refusal(content):
    with pytest.raises(ConfigurationError) as caught:
        Options.from_dict(content, "options_file some.json")
    return str(caught.value)


def changed(path, value):
    content = tiny(**({} if value is MISSING else {path: value}))
    if value is MISSING:
        *sections, key = path.split("__")
        section = content
        for name in sections:
            section = section[name]
        del section[key]
    return content


def test_every_key_is_read():
    options = Options.from_dict(tiny(n_tokens_vocab=77))
    assert options.lstm == LstmOptions(8, 4, 2, True, 3.0, 3.0)
    assert options.char_cnn == CharCnnOptions(3, ((1, 4), (2, 6)), 50, "relu", 1)
    assert (options.n_tokens_vocab, options.n_layers, options.output_dim, options.char_cnn.n_filters) == (77, 3, 8, 10)


@pytest.mark.parametrize("path, value, default", [
    ("lstm__n_layers", MISSING, 1), ("lstm__n_layers", None, 1), ("char_cnn__n_highway", MISSING, 0),
    ("char_cnn__n_highway", None, 0), ("lstm__cell_clip", MISSING, None), ("lstm__cell_clip", None, None),
    ("lstm__proj_clip", MISSING, None), ("lstm__proj_clip", None, None),
])
def test_defaults(path, value, default):
    options = Options.from_dict(changed(path, value))
    section, key = path.split("__")
    assert getattr(getattr(options, section), key) == default


@pytest.mark.parametrize("path", [*COUNTS, "lstm__use_skip_connections", "char_cnn__filters", "char_cnn__activation",
                                  "char_cnn__embedding", "lstm"])
def test_a_missing_key_is_named_with_its_section(path):
    *sections, key = path.split("__")
    place = "".join(f": {name}" for name in sections)
    assert refusal(changed(path, MISSING)).startswith(f"options_file some.json{place}: the key {key} is missing; found")


REFUSED = [  # path, values, what is expected
    ("lstm__cell_clip", [0, -1, True, False, float("nan"), 10**400], "a number above 0, or null for no clipping"),
    ("lstm__proj_clip", [0.0, "3", float("inf"), [3]], "a number above 0, or null for no clipping"),
    ("lstm__use_skip_connections", [None, 1, "true", [True]], "true or false"),
    ("lstm__projection_dim", [9], "at most dim (8)"),
    ("char_cnn__activation", [None, "gelu", "ReLU", 1, ["relu"]], "one of relu, tanh"),
    ("char_cnn__n_characters", [None, 260, 263, True, "262"], "one of 261, 262"),
    ("char_cnn__max_characters_per_token", [2], "an integer of at least 3"),
    ("char_cnn__filters", [None, [], "12", {"1": 2}], "a list of [width, count] pairs"),
    ("lstm", [None, 3, [], "x"], "a JSON object"),
    ("char_cnn", [None, 3], "a JSON object"),
    ("char_cnn__embedding", [[], "x"], "a JSON object"),
    ("bidirectional", [False, None, 0, "yes"], "true (a two-direction model)"),
]


@pytest.mark.parametrize("path, value, expected", [
    (path, value, expected) for path, values, expected in REFUSED for value in values])
def test_a_wrong_value_is_refused_with_its_key(path, value, expected):
    place = path.replace("__", ": ")
    assert refusal(tiny(**{path: value})) == f"options_file some.json: {place}: expected {expected}, got {value!r:.80}"


@pytest.mark.parametrize("path", [*COUNTS, "lstm__n_layers", "char_cnn__n_highway", "n_tokens_vocab"])
@pytest.mark.parametrize("value", NOT_COUNTS)
def test_a_size_that_is_no_count_is_refused(path, value):
    has_default = path in ("lstm__n_layers", "char_cnn__n_highway", "n_tokens_vocab")
    if (value is None and has_default) or (value == 0 and path == "char_cnn__n_highway"):
        Options.from_dict(changed(path, value))
        return
    message = refusal(changed(path, value))
    assert message.startswith(f"options_file some.json: {path.replace('__', ': ')}: expected an integer of at least ")
    assert message.endswith(f"got {value!r}")


@pytest.mark.parametrize("pair, expected", [
    *((pair, "pairs of two integers above 0, [width, count]")
      for pair in (1, [1], [1, 2, 3], [0, 4], [1, -4], [True, 4], ["1", 4], [1, 4.5])),
    ([51, 4], "widths of at most max_characters_per_token (50)"),
])
def test_bad_filters_are_refused(pair, expected):
    assert refusal(tiny(char_cnn__filters=[[1, 4], pair])).endswith(
        f": char_cnn: filters: expected {expected}, got {pair!r}")


@pytest.mark.parametrize("content", [None, [], "x", 3])
def test_content_that_is_no_object_is_refused(content):
    assert refusal(content) == f"options_file some.json: expected a JSON object, got {content!r}"


def test_values_at_the_limits_are_accepted():
    options = Options.from_dict(tiny(lstm__dim=8.0, char_cnn__filters=[[1.0, 4.0], [2, 6]]))
    assert options == Options.from_dict(tiny())
    assert isinstance(options.lstm.dim, int) and isinstance(options.char_cnn.filters[0][0], int)
    for value in (0.3, 3, 10):
        clip = Options.from_dict(tiny(lstm__cell_clip=value)).lstm.cell_clip
        assert clip == value and isinstance(clip, float)
    for value in (261, 262, 262.0):
        assert Options.from_dict(tiny(char_cnn__n_characters=value)) == Options.from_dict(tiny())
    assert Options.from_dict(tiny(char_cnn__filters=[[50, 4]])).char_cnn.filters == ((50, 4),)
    assert Options.from_dict(tiny(char_cnn__max_characters_per_token=3)).char_cnn.max_characters_per_token == 3
    assert not Options.from_dict(tiny(lstm__projection_dim=8)).lstm.is_projected


def test_neither_characters_nor_words_is_refused():
    content = {"lstm": tiny()["lstm"]}
    assert "expected the section char_cnn, or n_tokens_vocab" in refusal(content)
    assert Options.from_dict({**content, "n_tokens_vocab": 9}).char_cnn is None


def test_unknown_keys_are_kept_and_to_dict_gives_the_options_back():
    content = tiny(n_tokens_vocab=77, dropout=0.1, lstm__note="x")
    options = Options.from_dict(content)
    written = options.to_dict()
    assert written == json.loads(json.dumps(content))
    assert Options.from_dict(written) == options


@pytest.mark.parametrize("options", [
    Options(LstmOptions(8, 4, 1, False), None, 12),
    Options(LstmOptions(8, 8, 3, True, None, 2.5), CharCnnOptions(3, ((2, 4),), 20, "tanh"), None),
])
def test_options_made_in_python_are_written_and_read_again(options):
    assert Options.from_dict(json.loads(json.dumps(options.to_dict()))) == options


def test_a_replaced_value_is_written():
    options = Options.from_dict(tiny())
    fewer = dataclasses.replace(options, lstm=dataclasses.replace(options.lstm, n_layers=1, cell_clip=None))
    assert Options.from_dict(fewer.to_dict()) == fewer


def test_content_is_not_changed_by_reading_or_writing():
    content = tiny()
    Options.from_dict(content).to_dict()["lstm"]["dim"] = 99
    assert content == tiny()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_file_is_read(tmp_path, encoding):
    path = tmp_path / "options.json"
    path.write_text(json.dumps(tiny()), encoding=encoding)
    assert Options.from_file(path) == Options.from_dict(tiny())


@pytest.mark.parametrize("content", [b"", b"hello", b"{", b"\xff\xfe{}", b"\x89HDF\r\n"])
def test_a_file_that_is_no_json_is_refused_by_name(tmp_path, content):
    path = tmp_path / "options.json"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"^options_file {path}: expected JSON, got something else"):
        Options.from_file(path)


def test_an_error_in_a_file_names_it(tmp_path):
    path = tmp_path / "options.json"
    path.write_text(json.dumps(tiny(lstm__dim=0)), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=f"^options_file {path}: lstm: dim: expected an integer"):
        Options.from_file(path)
