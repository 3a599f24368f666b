import numpy as np
import pytest

from elmo_fast.text import characters


@pytest.mark.parametrize("size", [2, 0, -1, 3.0, "50", None, True])
def test_a_size_without_room_for_a_character_is_refused(size):
    with pytest.raises(ValueError, match="max_characters_per_token: expected an integer of at least 3"):
        characters.encode_tokens(["a"], size)


def test_decoded_tokens():
    cut = "é" * 30  # 60 bytes: cut after 48, between two letters
    inside = "x" + "é" * 30  # cut inside a letter
    raw = characters.encode_tokens(["word", "<S>", "</S>", "🙂", "", cut, inside])
    assert characters.decode_tokens(raw) == ["word", "<S>", "</S>", "🙂", "", "é" * 24, None]
    assert characters.decode_tokens(np.full((1, 50), 6, np.int32)) == [None]
