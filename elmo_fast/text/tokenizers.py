"""Tokenizers, which split a text into tokens: `auto`, `whitespace`, `penn`, `simple`, a function, or
`package.module:function`; and `is_tokenized`, by which `auto` decides.
"""

import functools
import os
import pkgutil
import re
import sys
import unicodedata
from collections.abc import Callable, Sequence

from elmo_fast.arguments import TOKENIZERS, shown
from elmo_fast.errors import parsing
from elmo_fast.text.batching import check_sentence

Tokenizer = Callable[[str], Sequence[str]]
_JUDGED = 1 << 16  # characters by which `is_tokenized` judges a text
# Characters matched at a time: other threads wait for the GIL meanwhile. A longer word is divided.
_AT_ONCE = 1 << 15
# Ends before whitespace, but not behind a period, since the pattern of an initial (`J. Smith`) looks at the next word.
_PIECE = re.compile(rf"(?s).{{1,{_AT_ONCE}}}(?:\Z|(?<![\s.])(?=\s))|.{{1,{_AT_ONCE}}}")

_END = r"(?:\b|(?=[nN]['\u2019][tT]))"
_CONTRACTION = rf"['\u2019](?:[sSmMdD]|ll|LL|re|RE|ve|VE){_END}"
_NOT = rf"[nN]['\u2019][tT]{_END}"
# Abbreviations and initials that keep their period, as in the Penn Treebank.
_INITIALS = r"(?:[^\W\d_]\.){2,}"
_ABBREVIATION = (r"(?:Mr|Mrs|Ms|Messrs|Mme|Mlle|Drs?|Prof|Rev|Hon|Sts?|Sr|Jr|Gen|Col|Maj|Capt|Cmdr|Lt|Sgt|Cpl|Pvt|Adm|"
                 r"Gov|Sens?|Reps?|Inc|Ltd|Corp|Cos?|Bros|Ph\.D|Ave|Blvd|Rd|Mt|Ft|[Vv]ols?|pp|[Ff]igs?|"
                 r"[Nn]os?(?=\.\s*\d)|vs|etc|al|cf|viz|ca|approx|ext|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\.")
_KEPT_PERIOD = re.compile(rf"{_INITIALS}|[^\W\d_I]\.|{_ABBREVIATION}")
_OPENING, _CLOSING = r"(\[{\u201c\xab\u201e" + '"', r",;:!?)\]}\u201d\xbb\u2026\u060c\u061b\u061f\u0964\u0965" + '"'
_IN_WORD = r"[^\s!-/:-@\[-`{-~\u2000-\u206f\xab\xbb]"  # also combining marks, which `\w` does not match
# A single character class at the beginning, which `re` searches for fast.
_ATTACHED = re.compile(rf"""(?x)[{_OPENING}{_CLOSING}.\u2014'\u2019] (?:
      (?<={_IN_WORD}[{_CLOSING}]) [{_CLOSING}.'\u2019]* (?!\S)  | (?<={_IN_WORD}\.) [{_CLOSING}.'\u2019]+ (?!\S)
    | (?<=[{_OPENING}]) (?<!\S.) [{_OPENING}.'\u2018]* \w | (?<={_IN_WORD}\u2014) )""")
_ENTITY_PATTERN = r"&(?:[a-z]+|\#[0-9]+);"  # as Moses writes quotes and brackets
_ENTITY, _WORD, _WORD_CHARACTER = re.compile(_ENTITY_PATTERN), re.compile(r"\S+"), re.compile(r"\w")
_STRAIGHT = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2026": "..."})
# All apostrophes except inside a word of another script, where they are letters.
_TYPOGRAPHIC_APOSTROPHE = re.compile(r"\u2019(?!(?<=[^\W\d_a-zA-Z].)(?!(?:[smdt]|ll|re|ve)\b)\w)")
_MAY_HAVE_MARKS = "[\u0300-\u1fff\u200c\u200d\u2070-\U0010ffff]"  # marks take 0.2 s to compile, this 10 ms
_ASCII_TOKEN = re.compile(r"\w+|[^\w\s]")


def find_tokenizer(tokenizer: str | Tokenizer) -> Tokenizer:
    """The function that a name or `package.module:function` (also in the working directory) stands for, or a function.

    The result of a function is copied; a `ValueError` names the text unless it is a list or generator of strings.
    """
    if callable(tokenizer):
        return _checked(tokenizer)
    if isinstance(tokenizer, str) and tokenizer in TOKENIZERS:
        return {"auto": _auto, "whitespace": _whitespace, "penn": _penn, "simple": _simple}[tokenizer]
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
        name = f"tokenizer, of {text!r:.60}"
        with parsing(name, "a function of a string, got one that failed"):
            tokens = function(text)
        tokens = list(check_sentence(tokens, name))
        if not all(isinstance(token, str) for token in tokens):
            raise ValueError(f"{name}: expected strings, got {shown(tokens)}")
        return tokens
    return tokenize


def is_tokenized(text: str) -> bool:
    """Whether `auto` takes a string as tokenized: no word in it has punctuation attached.

    Attached marks are a comma, semicolon, colon, exclamation or question mark, closing quote or bracket behind a word,
    an opening quote or bracket before it, a dash, and a period behind the last word unless that is an abbreviation. A
    text of more than 65,536 characters is judged by its beginning.
    """
    text = text.strip()
    if len(text) > _JUDGED:
        text = text[:_JUDGED].rsplit(None, 1)[0]
    if _ATTACHED.search(_ENTITY.sub("", text) if "&" in text else text):
        return False
    last = text.rsplit(None, 1)[-1] if text.rstrip().endswith(".") else ""
    return not _WORD_CHARACTER.search(last) or _KEPT_PERIOD.fullmatch(last) is not None


def _auto(text: str) -> list[str]:
    """Split a tokenized string at whitespace, any other string by `penn`."""
    return _whitespace(text) if is_tokenized(text) else _penn(text)


def _whitespace(text: str) -> list[str]:
    return text.split() if len(text) <= _AT_ONCE else [match.group() for match in _WORD.finditer(text)]


def _penn(text: str) -> list[str]:
    """Tokens as in the Penn Treebank and the bundled model's corpus: `They did n't see Mr. Fink-Nottle 's play .`

    Abbreviations, hyphenated words, numbers and `...` stay whole, typographic quotes become straight ones.
    """
    return _in_pieces(_penn_piece, text)


def _penn_piece(text: str) -> list[str]:
    if not text.isascii():
        text = _TYPOGRAPHIC_APOSTROPHE.sub("'", text.translate(_STRAIGHT))
    may_have_marks = not text.isascii() and re.search(_MAY_HAVE_MARKS, text) is not None
    return _penn_token(may_have_marks).findall(text)


@functools.cache
def _penn_token(may_have_marks: bool) -> re.Pattern[str]:
    letters, marks = _with_marks() if may_have_marks else (r"\w+", "")
    word = rf"{letters}(?!(?<=[nN])['\u2019][tT]{_END})"
    return re.compile(rf"""(?x)
          (?:https?://|www\.) \S* [\w/] | {_ENTITY_PATTERN} | </?\w+>
        | (?=\w{{1,6}}\.) (?: {_INITIALS}(?![\w.]) | [A-HJ-Z]\.(?=\s+\S) | {_ABBREVIATION}(?![\w.]) )
        | {_NOT} | {_CONTRACTION}
        | {word} (?: (?: [-.&@] | (?<=\d)[,:/](?=\d) | (?!{_CONTRACTION}|(?<=[nN])['\u2019][tT]\b)['\u2019] ) {word} )*
        | \.{{2,}} | [!?]+ | -+ | =+ | \*+ | [^\w\s]{marks}""")


def _simple(text: str) -> list[str]:
    r"""Runs of `\w` (letters, digits, underscores) are words, and any other character but whitespace is a token.

    Combining marks and joiners, which `\w` does not match, stay with the character before them.
    """
    return _in_pieces(lambda piece: (_ASCII_TOKEN if piece.isascii() else _simple_token()).findall(piece), text)


def _in_pieces(split: Callable[[str], list[str]], text: str) -> list[str]:
    if len(text) <= _AT_ONCE:
        return split(text)
    return [token for piece in _PIECE.finditer(text) for token in split(piece.group())]


@functools.cache
def _simple_token() -> re.Pattern[str]:
    letters, marks = _with_marks()
    return re.compile(rf"{letters}|[^\w\s]{marks}")


@functools.cache
def _with_marks() -> tuple[str, str]:
    """Patterns of letters with combining marks, and of a possibly empty run of marks.

    `re` looks characters up to U+FFFF up in a table, but searches a list for characters above. So the patterns compare
    only characters above U+FFFF with that list.
    """
    low, high = ("".join(map(re.escape, map(chr, filter(_is_mark, codes)))) for codes in (
        range(0x10000), (*range(0x10000, 0x20000), *range(0xE0100, 0xE01F0))))
    high = rf"(?=[\U00010000-\U0010ffff])[{high}]"
    return rf"(?=\w)(?:[\w{low}]+|{high})+", rf"(?:[{low}]+|{high})*"


def _is_mark(code: int) -> bool:
    return unicodedata.category(chr(code)).startswith("M") or code in (0x200C, 0x200D)
