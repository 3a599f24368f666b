"""Sentences from text files."""

from collections.abc import Iterator
from typing import IO, NamedTuple

from elmo_fast import stops
from elmo_fast.model.options import ConfigurationError


class Line(NamedTuple):
    """A line without its outer whitespace, and its tokens."""

    text: str
    tokens: list[str]


def read_lines(file: IO[str], allow_blank: bool = False) -> Iterator[Line]:
    """Lines of a file, split on whitespace; refuses a file without lines and, unless allowed, blank lines."""
    number = -1
    for number, line in enumerate(_decoded(file)):
        text = line.strip()
        if not text and not allow_blank:
            raise ConfigurationError(f"input file: expected a sentence on every line, got a blank line at index "
                                     f"{number}; remove it, or allow blank lines")
        yield Line(text, text.split())
    if number < 0:
        raise ConfigurationError("input file: expected one tokenized sentence a line, got an empty file")


def scan(file: IO[str], allow_blank: bool = False) -> int | None:
    """The number of lines, before they are read; None for a file that cannot be rewound. Refuses as `read_lines`."""
    if not file.seekable():
        return None
    start = file.tell()
    blank, count = [], 0
    for count, line in enumerate(read_lines(file, allow_blank=True), start=1):
        if not line.text:
            blank.append(count - 1)
    file.seek(start)
    if blank and not allow_blank:
        shown = ", ".join(map(str, blank[:10])) + (", ..." if len(blank) > 10 else "")
        raise ConfigurationError(f"input file: expected a sentence on every line, got blank lines at indexes {shown}; "
                                 "remove them, or allow blank lines")
    return count


def _decoded(file: IO[str]) -> Iterator[str]:
    try:
        read = file.readline if file.seekable() else stops.interruptible(file.readline)
        for number, line in enumerate(iter(read, "")):
            if not isinstance(line, str):
                raise ConfigurationError("input file: expected a file opened as text (encoding='utf-8'), got one "
                                         f"opened for {type(line).__name__}")
            # Some editors put a byte order mark in front of UTF-8 text; it is no part of the first word, and no line.
            if text := line if number else line.removeprefix("\ufeff"):
                yield text
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"input file: expected UTF-8 text, got undecodable bytes{_position(file)} "
                                 f"({error})") from error


def _position(file: IO[str]) -> str:
    """The first undecodable line: the decoder reads whole blocks, and its error does not say which line it was."""
    if not file.seekable() or not hasattr(file, "buffer"):
        return ""
    file.buffer.seek(0)
    for number, line in enumerate(file.buffer):
        try:
            line.decode(file.encoding)
        except UnicodeDecodeError:
            return f" at line index {number}"
    return ""
