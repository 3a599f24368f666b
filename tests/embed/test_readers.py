import io
import os

import pytest

from elmo_fast import ConfigurationError
from elmo_fast.embed.files import read_lines, scan


def text(content):
    """A file as `open(path, encoding="utf-8")` gives it."""
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8")


def pipe(content):
    """The same, from something that cannot be rewound."""
    ends = os.pipe()
    with open(ends[1], "wb") as writer:
        writer.write(content)
    return open(ends[0], encoding="utf-8")


@pytest.mark.parametrize("content, expected", [
    (b"a b\nc\n", [("a b", ["a", "b"]), ("c", ["c"])]),
    (b"a b\nc", [("a b", ["a", "b"]), ("c", ["c"])]),
    (b"a b\r\nc\r\n", [("a b", ["a", "b"]), ("c", ["c"])]),
    (b"  a \t b  \n", [("a \t b", ["a", "b"])]),
    ("a\u00a0b\u3000c\u2028d\n".encode(), [("a\u00a0b\u3000c\u2028d", ["a", "b", "c", "d"])]),
    ("a\u200bb \u00adc\n".encode(), [("a\u200bb \u00adc", ["a\u200bb", "\u00adc"])]),
    (b"a\x00b c\n", [("a\x00b c", ["a\x00b", "c"])]),
    ("\ufeffa b\n\ufeffc\n".encode(), [("a b", ["a", "b"]), ("\ufeffc", ["\ufeffc"])]),
])
def test_lines_and_tokens(content, expected):
    for file in (text(content), io.StringIO(content.decode())):
        assert scan(file) == len(expected)
        assert [(line.text, line.tokens) for line in read_lines(file)] == expected


def test_a_blank_line_is_named_by_its_index():
    file = text(b"a\n\nb\n \t\n")
    with pytest.raises(ConfigurationError, match="got blank lines at indexes 1, 3; remove them, or allow blank lines"):
        scan(file)
    with pytest.raises(ConfigurationError, match=r"indexes 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, \.\.\.;"):
        scan(text(b"\n" * 11))
    with pytest.raises(ConfigurationError, match="got a blank line at index 1; remove it"):
        list(read_lines(pipe(b"a\n\nb\n")))


def test_blank_lines_may_be_allowed():
    for file in (text(b"a\n\n  \n"), pipe(b"a\n\n  \n")):
        assert list(read_lines(file, allow_blank=True)) == [("a", ["a"]), ("", []), ("", [])]
    assert scan(text(b"a\n\n  \n"), allow_blank=True) == 3


def test_the_rest_of_a_file_is_read_from_where_it_stands():
    file = text(b"a\nb\nc\n")
    file.readline()
    assert scan(file) == 2 and [line.text for line in read_lines(file)] == ["b", "c"]


def test_what_cannot_be_rewound_is_not_counted():
    file = pipe(b"a\nb\n")
    assert scan(file) is None and [line.text for line in read_lines(file)] == ["a", "b"]


@pytest.mark.parametrize("allow_blank", [False, True])
@pytest.mark.parametrize("make", [text, pipe])
def test_an_empty_file_is_refused(make, allow_blank):
    with pytest.raises(ConfigurationError, match="expected one tokenized sentence a line, got an empty file"):
        file = make(b"")
        scan(file, allow_blank)
        list(read_lines(file, allow_blank))


@pytest.mark.parametrize("lines", [0, 1, 5000])
def test_the_line_with_undecodable_bytes_is_named(lines):
    with pytest.raises(ConfigurationError, match=f"expected UTF-8 text, got undecodable bytes at line index {lines} "):
        scan(text(b"caf\xc3\xa9\n" * lines + b"caf\xe9\n" + b"more\n" * 9000))


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_text_in_another_encoding_is_refused(encoding):
    for make in (text, pipe):
        with pytest.raises(ConfigurationError, match="input file: expected UTF-8 text, got undecodable bytes"):
            list(read_lines(make("café .\n".encode(encoding))))


@pytest.mark.parametrize("content", [b"", b"a\n"])
def test_a_file_opened_as_bytes_is_refused(content):
    for read in (scan, lambda file: list(read_lines(file))):
        with pytest.raises(ConfigurationError, match="expected a file opened as text .*, got one opened for bytes"):
            read(io.BytesIO(content))
