import numpy as np
import pytest
from hypothesis import given
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


@given(st.lists(ANY_TEXT | st.sampled_from(["<S>", "</S>", "<UNK>", ""]), max_size=5), st.integers(3, 60))
def test_any_text_maps_as_a_loop_over_its_characters(tokens, max_characters):
    marks = {"<S>": 256, "</S>": 257}
    ids = characters.encode_tokens(tokens, max_characters)
    assert ids.tolist() == [expected_ids(token, max_characters, marks) for token in tokens]
    assert ids.shape == (len(tokens), max_characters) and ids.dtype == np.int32


@pytest.mark.parametrize("token, head", [
    ("", [258, 259, 260]),
    ("Ā", [258, 196, 128, 259]),
    ("\ud800", [258, 259, 260]),
    ("a\udfffb", [258, 97, 98, 259]),
    ("\0", [258, 0, 259]),
    ("<S>", [258, 256, 259, 260]),
    ("</S>", [258, 257, 259, 260]),
    ("<s>", [258, 60, 115, 62, 259]),
])
def test_one_token(token, head):
    ids = characters.encode_tokens([token])[0].tolist()
    assert ids == head + [260] * (50 - len(head))


def test_a_character_is_cut_between_its_bytes():
    assert characters.encode_tokens(["aé"], 4).tolist() == [[258, 97, 195, 259]]


def test_48_bytes_fit_and_the_49th_is_cut():
    assert characters.encode_tokens(["x" * 48])[0].tolist() == characters.encode_tokens(["x" * 300])[0].tolist()
    assert characters.encode_tokens(["x" * 47])[0].tolist() == [258] + [120] * 47 + [259, 260]


def test_other_marks():
    marks = {"[MASK]": 7}
    ids = characters.encode_tokens(["[MASK]", "<S>"], 6, marks)
    assert ids.tolist() == [[258, 7, 259, 260, 260, 260], [258, 60, 83, 62, 259, 260]]


def test_model_ids_leave_0_for_no_token():
    assert characters.to_model_ids(np.array([0, 255, 260])).tolist() == [1, 256, 261]


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
