"""Tokenizers, which split a text into tokens: `whitespace`, `simple`, a function, or `package.module:function`."""

import functools
import os
import pkgutil
import re
import sys
import unicodedata
from collections.abc import Callable, Sequence

from elmo_fast.arguments import TOKENIZERS, shown

Tokenizer = Callable[[str], Sequence[str]]
_AT_ONCE = 1 << 16  # characters; a longer text is matched token by token, so that other threads can run in between


def find_tokenizer(tokenizer: str | Tokenizer) -> Tokenizer:
    """The function that a name or `package.module:function` (also in the working directory) stands for, or a function.

    The result of a function must be a list or tuple of strings, otherwise a `ValueError` names the text.
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


_ASCII_TOKEN = re.compile(r"\w+|[^\w\s]")


def _simple(text: str) -> list[str]:
    r"""Runs of `\w` (letters, digits, underscores) are words, and any other character but whitespace is a token.

    Combining marks and joiners, which `\w` does not match, stay with the character before them.
    """
    pattern = _ASCII_TOKEN if text.isascii() else _with_marks()
    return pattern.findall(text) if len(text) <= _AT_ONCE else [match.group() for match in pattern.finditer(text)]


@functools.cache
def _with_marks() -> re.Pattern[str]:
    """The pattern of a token with combining marks.

    `re` looks characters up to U+FFFF up in a table, but searches a list for characters above. So the pattern compares
    only characters above U+FFFF with that list.
    """
    low, high = ("".join(map(re.escape, map(chr, filter(_is_mark, codes)))) for codes in (
        range(0x10000), (*range(0x10000, 0x20000), *range(0xE0100, 0xE01F0))))
    marks = rf"(?:[{low}]|(?=[\U00010000-\U0010ffff])[{high}])"
    return re.compile(rf"\w++(?:{marks}++\w*+)*+|[^\w\s]{marks}*+")


def _is_mark(code: int) -> bool:
    return unicodedata.category(chr(code)).startswith("M") or code in (0x200C, 0x200D)
