import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from elmo_fast.text import characters

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)  # lone surrogates too


def expected_ids(token, max_characters, marks):
    """One token's raw ids, character by character."""
    body = [marks[token]] if token in marks else []
    if not body:
        for character in token:
            if not 0xD800 <= ord(character) <= 0xDFFF:
                body.extend(character.encode("utf-8"))
    bounded = [258, *body[: max_characters - 2], 259]
    return bounded + [260] * (max_characters - len(bounded))


@given(st.lists(ANY_TEXT | st.sampled_from(["<S>", "</S>", "<UNK>", "[MASK]", ""]), max_size=5), st.integers(3, 60),
       st.sampled_from([{"<S>": 256, "</S>": 257}, {"[MASK]": 7}]))
@example(["", "Ā", "\ud800", "a\udfffb", "\0", "<S>", "</S>", "<s>"], 50, {"<S>": 256, "</S>": 257})
@example(["aé"], 4, {})  # a character is cut between its bytes
@example(["x" * 47, "x" * 48, "x" * 49, "x" * 300], 50, {})
def test_any_text_maps_as_a_loop_over_its_characters(tokens, max_characters, marks):
    ids = characters.encode_tokens(tokens, max_characters, marks)
    assert ids.tolist() == [expected_ids(token, max_characters, marks) for token in tokens]
    assert ids.shape == (len(tokens), max_characters) and ids.dtype == np.int32


def test_fifty_characters_and_the_sentence_marks_by_default():
    assert characters.encode_tokens(["<S>", "</S>", "Ā"]).tolist() == [
        head + [260] * (50 - len(head)) for head in ([258, 256, 259], [258, 257, 259], [258, 196, 128, 259])]


@pytest.mark.parametrize("size", [2, 0, -1, 3.0, "50", None, True])
def test_a_size_without_room_for_a_mark_is_refused(size):
    with pytest.raises(ValueError, match="max_characters_per_token: expected an integer of at least 3"):
        characters.encode_tokens(["a"], size)


@pytest.mark.parametrize("token", [None, b"a", 3, ["a"]])
def test_a_token_that_is_no_string_is_refused(token):
    with pytest.raises(ValueError, match=f"token: expected a string, got {type(token).__name__}"):
        characters.encode_tokens([token])


def test_decoded_tokens():
    cut = "é" * 30  # 60 bytes: cut after 48, between two letters
    inside = "x" + "é" * 30  # cut inside a letter
    raw = characters.encode_tokens(["word", "<S>", "</S>", "🙂", "", cut, inside])
    assert characters.decode_tokens(raw) == ["word", "<S>", "</S>", "🙂", "", "é" * 24, None]
    assert characters.decode_tokens(np.full((1, 50), 6, np.int32)) == [None]
