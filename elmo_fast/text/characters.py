"""Tokens to character ids, as bilm-tf's `UnicodeCharsVocabulary` and AllenNLP's `ELMoCharacterMapper` map them.

A token is its UTF-8 bytes between a begin-word and an end-word mark, padded on the right.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from elmo_fast.arguments import shown

BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = range(256, 261)
MAX_CHARACTERS_PER_TOKEN, MOST_CHARACTERS_PER_TOKEN = 50, 10_000
BEGIN_SENTENCE_TOKEN = "<S>"
END_SENTENCE_TOKEN = "</S>"
SENTENCE_MARKS: Mapping[str, int] = {BEGIN_SENTENCE_TOKEN: BEGIN_SENTENCE, END_SENTENCE_TOKEN: END_SENTENCE}


def to_model_ids(raw_ids):
    """Raw character ids (0 to 260) to the ids a model reads (1 to 261), where 0 means "no token here"."""
    return raw_ids + 1


def mark_ids(mark: int, max_characters_per_token: int = MAX_CHARACTERS_PER_TOKEN) -> np.ndarray:
    """Raw ids of a token that consists of a mark, such as `BEGIN_SENTENCE`: int32 [max_characters_per_token]."""
    ids = np.full(max_characters_per_token, PADDING, dtype=np.int32)
    ids[:3] = BEGIN_WORD, mark, END_WORD
    return ids


def encode_tokens(tokens: Sequence[str], max_characters_per_token: int = MAX_CHARACTERS_PER_TOKEN,
                  marks: Mapping[str, int] = SENTENCE_MARKS) -> np.ndarray:
    """Raw character ids of each token: int32 [len(tokens), max_characters_per_token].

    `marks` maps each token that stands for a special character to the character's raw id. Bytes beyond
    `max_characters_per_token - 2` and lone surrogates are dropped, as in both original systems.
    Raises `ValueError` when a token is not a string.
    """
    limit = check_max_characters(max_characters_per_token) - 2
    for token in tokens:
        if not isinstance(token, str):
            raise ValueError(f"token: expected a string, got {type(token).__name__} ({shown(token)})")
    encoded = [token.encode("utf-8", "ignore")[:limit] for token in tokens]
    count = len(encoded)
    lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=count)
    ids = np.full((count, max_characters_per_token), PADDING, dtype=np.int32)  # [N, C]
    ids[:, 0] = BEGIN_WORD
    characters = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    row = np.repeat(np.arange(count), lengths)
    column = np.arange(characters.size) - np.repeat(np.cumsum(lengths) - lengths, lengths) + 1
    ids[row, column] = characters
    ids[np.arange(count), lengths + 1] = END_WORD
    for index, token in enumerate(tokens):
        if token in marks:
            ids[index] = mark_ids(marks[token], max_characters_per_token)
    return ids


def decode_tokens(raw_ids: np.ndarray) -> list[str | None]:
    """The tokens of raw character ids [N, C]; None for ids that `encode_tokens` gives for no token.

    A token that was truncated inside a character also becomes None.
    """
    ends = (raw_ids == END_WORD).argmax(1)
    tokens = [_decode(row[1:end]) for row, end in zip(raw_ids, ends)]
    encoded = encode_tokens([token or "" for token in tokens], raw_ids.shape[1])
    exact = (encoded == raw_ids).all(1)
    return [token if is_exact else None for token, is_exact in zip(tokens, exact)]


def check_max_characters(max_characters_per_token: int) -> int:
    """Return the argument; `ValueError` unless a token of that many characters can hold a mark."""
    if not isinstance(max_characters_per_token, (int, np.integer)) or max_characters_per_token < 3:
        raise ValueError("max_characters_per_token: expected an integer of at least 3 (begin-word, one character, "
                         f"end-word), got {shown(max_characters_per_token)}")
    if max_characters_per_token > MOST_CHARACTERS_PER_TOKEN:
        raise ValueError(f"max_characters_per_token: expected at most {MOST_CHARACTERS_PER_TOKEN:,}, got "
                         f"{max_characters_per_token:,}")
    return int(max_characters_per_token)


def _decode(inner: np.ndarray) -> str | None:
    """The token of the raw ids between the begin-word and end-word ids."""
    marks = [token for token, raw in SENTENCE_MARKS.items() if inner.tolist() == [raw]]
    if marks or (inner > 255).any() or (inner < 0).any():
        return marks[0] if marks else None
    return inner.astype(np.uint8).tobytes().decode("utf-8", "replace")
