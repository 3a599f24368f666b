"""Vocabulary files and the classes that read them, with bilm-tf's names, shapes and dtypes (`bilm/data.py`)."""

import io
import os
from collections.abc import Iterable, Sequence

import numpy as np

from elmo_fast.arguments import check_file, shown
from elmo_fast.errors import undecodable
from elmo_fast.files.compressed import read_words
from elmo_fast.text import characters

UNKNOWN_TOKEN = "<UNK>"
SPECIAL_WORDS = (characters.BEGIN_SENTENCE_TOKEN, characters.END_SENTENCE_TOKEN, UNKNOWN_TOKEN)
SKIPPED_LINE = "!!!MAXTERMID"


class Vocabulary:
    """Words of a vocabulary file, one per line, and their ids in file order.

    `filename` is UTF-8 text, compressed when it ends in .gz, .bz2, .xz or .zst. `validate_file=True` refuses a file
    that lacks `<S>`, `</S>` or `<UNK>`. Special words that are absent have id -1. From bilm-tf's `Vocabulary`.
    """

    def __init__(self, filename: str | os.PathLike, validate_file: bool = False):
        self.filename = filename = check_file("vocabulary", filename)
        try:
            text = read_words(filename, "vocabulary").decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"vocabulary {filename}: expected UTF-8 text, got {undecodable(error)} ({error})"
                             ) from error
        words = [line.strip() for line in io.StringIO(text, newline=None)]
        self.words: Sequence[str] = [word for word in words if word != SKIPPED_LINE]  # in file order
        self.size = len(self.words)
        self._word_to_id = {word: index for index, word in enumerate(self.words)}
        self.bos, self.eos, self.unk = (self._word_to_id.get(word, -1) for word in SPECIAL_WORDS)
        if validate_file:
            self.require(*SPECIAL_WORDS)

    def __len__(self) -> int:
        return self.size

    def __contains__(self, word: str) -> bool:
        return word in self._word_to_id

    def require(self, *words: str) -> None:
        """Raise `ValueError` naming every one of `words` that the file lacks."""
        missing = [word for word in words if word not in self._word_to_id]
        if missing:
            raise ValueError(f"vocabulary {self.filename}: expected a line for each of {', '.join(words)}; "
                             f"missing {', '.join(missing)}")

    def word_to_id(self, word: str) -> int:
        """Id of `word`, or the id of `<UNK>` for a word outside the vocabulary."""
        return self._word_to_id.get(word, self.unk)

    def id_to_word(self, cur_id: int) -> str:
        """Word of an id."""
        return self.words[cur_id]

    def decode(self, cur_ids: Sequence[int]) -> str:
        """Words of the ids, joined by spaces."""
        return " ".join(self.id_to_word(cur_id) for cur_id in cur_ids)

    def encode(self, sentence: str | Sequence[str], reverse: bool = False, split: bool = True) -> np.ndarray:
        """Word ids between the ids of `<S>` and `</S>`: int32 [tokens + 2].

        `sentence` is split on whitespace unless `split=False` (then it is a list of tokens). `reverse=True`
        swaps the two sentence marks, for a sentence that is already reversed.
        """
        tokens = _tokens(sentence, split)
        first, last = (self.eos, self.bos) if reverse else (self.bos, self.eos)
        return np.array([first, *map(self.word_to_id, tokens), last], dtype=np.int32)


class UnicodeCharsVocabulary(Vocabulary):
    """A vocabulary that also maps words to raw character ids (no +1): int32 [max_word_length] a word.

    A token spelled `<S>` or `</S>` is the sentence mark. A file that lacks either is refused: bilm-tf would give the
    last word the characters of `</S>`. From bilm-tf's `UnicodeCharsVocabulary`.
    """

    bos_char = characters.BEGIN_SENTENCE
    eos_char = characters.END_SENTENCE
    bow_char = characters.BEGIN_WORD
    eow_char = characters.END_WORD
    pad_char = characters.PADDING

    def __init__(self, filename: str | os.PathLike, max_word_length: int, **kwargs):
        super().__init__(filename, **kwargs)
        self.require(*SPECIAL_WORDS[:2])
        self.max_word_length = characters.check_max_characters(max_word_length)
        self.bos_chars = characters.mark_ids(self.bos_char, max_word_length)
        self.eos_chars = characters.mark_ids(self.eos_char, max_word_length)
        self.word_char_ids = characters.encode_tokens(self.words, max_word_length)  # int32 [size, max_word_length]

    def word_to_char_ids(self, word: str) -> np.ndarray:
        """Raw character ids of one word, in the vocabulary or not: int32 [max_word_length]."""
        return characters.encode_tokens([word], self.max_word_length)[0]

    def encode_chars(self, sentence: str | Sequence[str], reverse: bool = False, split: bool = True) -> np.ndarray:
        """Raw character ids between those of the sentence marks: int32 [tokens + 2, max_word_length]."""
        tokens = _tokens(sentence, split)
        first, last = (self.eos_chars, self.bos_chars) if reverse else (self.bos_chars, self.eos_chars)
        words = characters.encode_tokens(tokens, self.max_word_length)
        return np.concatenate([first[None], words, last[None]])


def _tokens(sentence: str | Sequence[str], split: bool) -> list[str]:
    """The tokens of a sentence; `ValueError` for a token of another type, since a number would count as `<UNK>`."""
    if split:
        if not isinstance(sentence, str):
            raise ValueError(f"sentence: expected a string, or a list of tokens with split=False, got "
                             f"{type(sentence).__name__}")
        return sentence.split()
    if not isinstance(sentence, Iterable) or not getattr(sentence, "ndim", 1):
        raise ValueError(f"sentence: expected a list of tokens, got {type(sentence).__name__}")
    tokens = list(sentence)
    for token in tokens:
        if not isinstance(token, str):
            raise ValueError(f"token: expected a string, got {type(token).__name__} ({shown(token)})")
    return tokens
