"""`read_lines` and `scan` of open files: lines and tokens, encodings, blank lines, pipes and refusals."""

import io

import pytest

from elmo_fast import ConfigurationError
from elmo_fast.text.readers import read_lines, scan


def text(content, stream=io.BytesIO):
    """A file as from `open(path, encoding="utf-8")`."""
    return io.TextIOWrapper(stream(content), encoding="utf-8")


class Pipe(io.BytesIO):
    """A stream that cannot be rewound."""

    def seekable(self):
        return False


@pytest.mark.parametrize("content, expected", [
    (b"a b\nc\n", [("a b", ["a", "b"]), ("c", ["c"])]),
    (b"a b\nc", [("a b", ["a", "b"]), ("c", ["c"])]),
    (b"a b\r\nc\r\n", [("a b", ["a", "b"]), ("c", ["c"])]),
    (b"  a \t b  \n", [("a \t b", ["a", "b"])]),
    (b"a\n\n  \n", [("a", ["a"]), ("", []), ("", [])]),
    ("a\u00a0b\u3000c\u2028d\n".encode(), [("a\u00a0b\u3000c\u2028d", ["a", "b", "c", "d"])]),
    ("a\u200bb \u00adc\n".encode(), [("a\u200bb \u00adc", ["a\u200bb", "\u00adc"])]),
    (b"a\x00b c\n", [("a\x00b c", ["a\x00b", "c"])]),
    ("\ufeffa b\n\ufeffc\n".encode(), [("a b", ["a", "b"]), ("\ufeffc", ["\ufeffc"])]),
])
def test_lines_and_tokens(content, expected):
    blank = ("", []) in expected
    for file in (text(content), io.StringIO(content.decode()), text(content, Pipe)):
        assert scan(file, blank) == (len(expected) if file.seekable() else None)
        assert [line[1:] for line in read_lines(file, blank)] == expected


UTF_8 = "^input file: expected UTF-8 text, got undecodable bytes"
EMPTY = "^input file: expected one tokenized sentence a line, got an empty file"


@pytest.mark.parametrize("content, allow_blank, by_scan, by_reading", [
    (b"", False, EMPTY, EMPTY), (b"", True, EMPTY, EMPTY), ("\ufeff".encode(), True, EMPTY, EMPTY),
    (b"a\n\nb\n \t\n", False, *["got none on line 2; remove it, or allow texts without tokens .--allow-bl"] * 2),
    *((b"caf\xc3\xa9\n" * lines + b"caf\xe9\n" + b"more\n" * 9000, True, f"{UTF_8} at line {lines + 1} ", UTF_8)
      for lines in (0, 1, 5000)),
    *(("café .\n".encode(encoding), False, UTF_8, UTF_8) for encoding in ("utf-16", "latin-1")),
])
def test_a_bad_file_is_refused(content, allow_blank, by_scan, by_reading):
    with pytest.raises(ConfigurationError, match=by_scan):
        scan(text(content), allow_blank)
    for stream in (io.BytesIO, Pipe):
        with pytest.raises(ConfigurationError, match=by_reading):
            list(read_lines(text(content, stream), allow_blank))
