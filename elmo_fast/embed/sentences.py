"""Tokenized sentences from a text file, one a line."""

from collections.abc import Iterator
from typing import IO, NamedTuple

from elmo_fast.model.options import ConfigurationError


class Line(NamedTuple):
    """A line without its outer whitespace, and its tokens."""

    text: str
    tokens: list[str]


def read_lines(file: IO[str], allow_blank: bool = False) -> Iterator[Line]:
    """Lines of a file, split on whitespace. `ConfigurationError` names the blank line unless those are allowed."""
    for number, line in enumerate(_decoded(file)):
        text = line.strip()
        if not text and not allow_blank:
            raise ConfigurationError(f"input file: expected a sentence on every line, got a blank line at index "
                                     f"{number}; remove it, or allow blank lines")
        yield Line(text, text.split())


def scan(file: IO[str], allow_blank: bool = False) -> int | None:
    """Count the lines of a file that can be rewound, and refuse it before any work is done; None if it cannot be."""
    if not file.seekable():
        return None
    start = file.tell()
    blank, count = [], 0
    for count, line in enumerate(_decoded(file), start=1):
        if not line.strip():
            blank.append(count - 1)
    file.seek(start)
    if blank and not allow_blank:
        shown = ", ".join(map(str, blank[:10])) + (", ..." if len(blank) > 10 else "")
        raise ConfigurationError(f"input file: expected a sentence on every line, got blank lines at indexes {shown}; "
                                 "remove them, or allow blank lines")
    if count == 0:
        raise ConfigurationError("input file: expected one tokenized sentence a line, got an empty file")
    return count


def _decoded(file: IO[str]) -> Iterator[str]:
    number = -1
    try:
        for number, line in enumerate(iter(file.readline, "")):
            yield line
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"input file: expected UTF-8 text, got undecodable bytes after line index {number} "
                                 f"({error})") from error
