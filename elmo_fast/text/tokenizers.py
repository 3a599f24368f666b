"""What splits a text into tokens: `whitespace`, `simple`, a function, or a function's place in a module."""

import functools
import os
import pkgutil
import re
import sys
import unicodedata
from collections.abc import Callable, Sequence

from elmo_fast.arguments import TOKENIZERS, shown

Tokenizer = Callable[[str], Sequence[str]]
_AT_ONCE = 1 << 16  # letters; of a longer text the tokens are found one by one, so that other threads get their turns


def find_tokenizer(tokenizer: str | Tokenizer) -> Tokenizer:
    """The function of a name, of `package.module:function` (also in the working directory), or a function, checked.

    What a function gives must be a list or tuple of strings, else `ValueError` names the text.
    """
    if callable(tokenizer):
        return _checked(tokenizer)
    if tokenizer == "whitespace":
        return str.split
    if tokenizer == "simple":
        return _simple
    if not isinstance(tokenizer, str) or ":" not in tokenizer:
        raise ValueError(f"tokenizer: expected {', '.join(TOKENIZERS)}, a function or package.module:function, got "
                         f"{shown(tokenizer)}")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        function = pkgutil.resolve_name(tokenizer)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"tokenizer: expected package.module:function, got {tokenizer!r:.80} ({error})") from error
    if not callable(function):
        raise ValueError(f"tokenizer: expected a function, got {tokenizer} of type {type(function).__name__}")
    return _checked(function)


def _checked(function: Tokenizer) -> Tokenizer:
    def tokenize(text: str) -> Sequence[str]:
        tokens = function(text)
        if not isinstance(tokens, (list, tuple)) or not all(isinstance(token, str) for token in tokens):
            raise ValueError(f"tokenizer: expected a list of strings for {text!r:.60}, got {shown(tokens)}")
        return tokens
    return tokenize


_of_ascii = re.compile(r"\w+|[^\w\s]")


def _simple(text: str) -> list[str]:
    r"""Runs of `\w` (letters, digits, underscores) are words, and any other character but whitespace is a token.

    Marks and joiners, which are none of Python's `\w`, stay with the character before them.
    """
    pattern = _of_ascii if text.isascii() else _with_marks()
    return pattern.findall(text) if len(text) <= _AT_ONCE else [found.group() for found in pattern.finditer(text)]


@functools.cache
def _with_marks() -> re.Pattern[str]:
    """`re` has a table for characters up to U+FFFF, and walks a list for those beyond: no others are sought there."""
    low, high = ("".join(map(re.escape, map(chr, filter(_is_mark, codes)))) for codes in (
        range(0x10000), (*range(0x10000, 0x20000), *range(0xE0100, 0xE01F0))))
    marks = rf"(?:[{low}]|(?=[\U00010000-\U0010ffff])[{high}])"
    return re.compile(rf"\w++(?:{marks}++\w*+)*+|[^\w\s]{marks}*+")


def _is_mark(code: int) -> bool:
    return unicodedata.category(chr(code)).startswith("M") or code in (0x200C, 0x200D)
