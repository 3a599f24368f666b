"""Texts of input files as one stream: `open_texts`; and the lines of an open file: `read_lines`."""

import contextlib
import functools
import glob
import io
import itertools
import logging
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

from elmo_fast.arguments import check_choice, check_path, shown
from elmo_fast.errors import ConfigurationError, undecodable
from elmo_fast.files import stops
from elmo_fast.files.compressed import MOST_LINE, STDIN, check_line, find_zstd, open_text, split_suffix
from elmo_fast.text.records import FORMATS, Record, read_text
from elmo_fast.text.tokenizers import Tokenizer, find_tokenizer, is_tokenized

_JUDGED_TEXTS = 200  # the first texts, by which raw text is recognized
_REMEDY = "remove it, or allow texts without tokens (--allow-blank; in Python allow_blank=True)"
_logger = logging.getLogger(__name__)


class Text(NamedTuple):
    """A text of an input.

    `key` is its number in the stream, from 0, the first word of a FASTA header, or the `id` of a JSON object or a row.
    `text` has no outer whitespace; a list of tokens is joined by spaces.
    """

    key: str
    text: str
    tokens: Sequence[str]


def open_texts(inputs: Sequence[str | os.PathLike] | str | os.PathLike, *, format: str | None = None,
               field: str | None = None, tokenizer: str | Tokenizer = "whitespace",
               allow_blank: bool = False) -> "Texts":
    """Texts of files in their order, as one stream.

    `inputs` are paths, globs, whose files are sorted, and `-` for stdin. The format of a file is that of its suffix,
    below one of .gz, .bz2, .xz and .zst if there is one, unless `format` names it: `text` (a text per line), `conllu`,
    `fasta` (a token per letter), `csv`, `tsv`, `jsonl` or `parquet`. `field` is the column or key of the last four, by
    default "text": a string or, in the last two, a list of tokens. `tokenizer` splits strings, as in
    `LoadedElmo.embed`; with `whitespace` a warning is logged if most of the first texts are not tokenized. Texts
    without tokens are refused unless `allow_blank`.

    Raises `ConfigurationError` and `OSError` for inputs that are absent, directories, or at odds with the arguments;
    while texts are read, `ValueError` naming the file, and the line if any, for text that cannot be read.
    """
    names = find_files(inputs)
    if names.count(STDIN) > 1:
        raise ConfigurationError("input: expected stdin (-) once, got it twice")
    if format is not None:
        check_choice("format", format, tuple(FORMATS), ConfigurationError)
    sources = [_Source(name, format or format_of(name)) for name in names]
    if field is not None:
        fits = [kind for kind, row in FORMATS.items() if row.has_field]
        _check_formats(sources, fits, f"field: expected files of {', '.join(fits)} beside {field!r}")
    if tokenizer != "whitespace":
        fits = [kind for kind, row in FORMATS.items() if not row.has_tokens]
        _check_formats(sources, fits, f"tokenizer: expected files of {', '.join(fits)}")
    for source in sources:
        source.check()
    return Texts(sources, field or "text", find_tokenizer(tokenizer), allow_blank, tokenizer == "whitespace")


class Texts:
    """The texts of `open_texts`, to be iterated over once, or as long as a `with` block leaves them open."""

    def __init__(self, sources: "Sequence[_Source]", field: str, tokenize: Tokenizer, allow_blank: bool, warns: bool):
        """`warns`: a warning is logged if most of the first texts are not tokenized."""
        self._sources, self._field, self._allow_blank = sources, field, allow_blank
        self._texts = self._read(tokenize, warns)

    @property
    def paths(self) -> list[str]:
        """The files, without stdin."""
        return [source.name for source in self._sources if source.name != STDIN]

    def count(self) -> int | None:
        """The number of texts; None where an input is a pipe. Reads all inputs, with the same errors."""
        if not all(source.is_regular() for source in self._sources):
            return None
        return sum(source.count(self._field, self._allow_blank) for source in self._sources)

    def close(self) -> None:
        """Close the open file; there are no further texts."""
        self._texts.close()

    def __iter__(self) -> Iterator[Text]:
        return self._texts

    def __enter__(self) -> "Texts":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _read(self, tokenize: Tokenizer, warns: bool):
        numbers, judged, raw = itertools.count(), 0, []
        for source in self._sources:
            for index, (key, text, tokens) in enumerate(source.read(self._field)):
                is_blank = not (text if tokens is None else tokens)
                if tokens is None:
                    tokens = tokenize(text)
                    judged += 1
                    if warns and judged <= _JUDGED_TEXTS and not is_tokenized(text):
                        raw.append(text)
                    if judged == _JUDGED_TEXTS:
                        _warn_of_raw_texts(raw, judged)
                if (is_blank or not tokens) and not self._allow_blank:
                    raise source.without_tokens(index, text)
                number = next(numbers)
                yield Text(str(number) if key is None else key, text, tokens)
        if judged < _JUDGED_TEXTS:
            _warn_of_raw_texts(raw, judged)


def _warn_of_raw_texts(raw: list[str], judged: int) -> None:
    if 2 * len(raw) > judged:
        _logger.warning("input file: expected tokens separated by spaces, but %d of the first %d texts have "
                        "punctuation attached to words, as in %s; --tokenizer auto separates it", len(raw), judged,
                        shown(raw[0]))


@dataclass(frozen=True)
class _Source:
    """An input's name and format."""

    name: str
    format: str

    def check(self) -> None:
        if self.name == STDIN and sys.stdin is None:
            raise ConfigurationError("input file: expected text on stdin, which is closed")
        if check := FORMATS[self.format].check:
            check(self.name)
        elif split_suffix(self.name)[1] == ".zst":
            find_zstd()

    def is_regular(self) -> bool:
        return stat.S_ISREG(os.stat(sys.stdin.fileno() if self.name == STDIN else self.name).st_mode)

    def read(self, field: str) -> Iterator[Record]:
        record = None
        for record in self._records(field):
            yield record
        if record is None:
            raise ConfigurationError(f"input file: expected at least one text, got none in {self.name}")

    def _records(self, field: str) -> Iterator[Record]:
        row = FORMATS[self.format]
        if row.is_binary:
            yield from row.read(self.name, field)
            return
        with open_text(self.name) as file:
            yield from row.read(_decoded(file, self.name), self.name, field)

    def count(self, field: str, allow_blank: bool) -> int:
        if count_texts := FORMATS[self.format].count_texts:
            return count_texts(self.name, field)
        with _rewound(self.name):
            texts = 0
            for texts, (_, text, tokens) in enumerate(stops.checked(self.read(field)), start=1):
                if not (text if tokens is None else tokens) and not allow_blank:
                    raise self.without_tokens(texts - 1, text)
            return texts

    def without_tokens(self, index: int, text: str) -> ConfigurationError:
        """The error for a text, by its number in the file."""
        if self.format == "text" and not text:
            return _blank_line(index, self.name)
        return ConfigurationError(f"input file: expected tokens in every text, got none in text {index + 1} of "
                                  f"{self.name}; {_REMEDY}")


def read_lines(file: IO[str], allow_blank: bool = False) -> Iterator[Text]:
    """Lines of a file, split on whitespace; refuses a file without lines and, unless allowed, blank lines."""
    for number, (_, text, _) in enumerate(read_text(_decoded(file), "", "")):
        if not text and not allow_blank:
            raise _blank_line(number)
        yield Text(str(number), text, text.split())


def scan(file: IO[str], allow_blank: bool = False) -> int | None:
    """The number of lines, before they are read; None for a file that cannot be rewound. Errors as in `read_lines`."""
    if not file.seekable():
        return None
    start = file.tell()
    try:
        return sum(1 for _ in stops.checked(read_lines(file, allow_blank)))
    finally:
        file.seek(start)


def _decoded(file: IO[str], name: str = "") -> Iterator[str]:
    may_have_mark = getattr(file, "encoding", None) != "utf-8-sig"  # else the decoder has removed it
    try:
        read = stops.interruptible(file.readline) if _waits(file) else file.readline
        for number, line in enumerate(iter(functools.partial(read, MOST_LINE), "")):
            if not isinstance(line, str):
                raise ConfigurationError("input file: expected a file opened as text (encoding='utf-8'), got one "
                                         f"opened for {type(line).__name__}")
            check_line(line, "input file", name)
            # Some editors put a byte order mark in front of UTF-8 text; it is no part of the first word, and no line.
            if text := line.removeprefix("\ufeff") if number == 0 and may_have_mark else line:
                yield text
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"input file: expected UTF-8 text, got {undecodable(error)}{_position(file)}"
                                 f"{_of(name)} ({error})") from error


def _waits(file: IO[str]) -> bool:
    """Whether reading may wait for another process, also below a decompressor."""
    try:
        return not stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, AttributeError):  # in memory
        return not file.seekable()


def _position(file: Any) -> str:
    """The first undecodable line: the decoder reads whole blocks, and its error does not name the line."""
    if not file.seekable() or not hasattr(file, "buffer"):
        return ""
    with contextlib.suppress(io.UnsupportedOperation):  # a compressed pipe
        file.buffer.seek(0)
        for number, line in enumerate(file.buffer, start=1):
            try:
                line.decode(file.encoding)
            except UnicodeDecodeError:
                return f" at line {number}"
    return ""


def find_files(inputs: Sequence[str | os.PathLike] | str | os.PathLike, what: str = "input") -> list[str]:
    """The files of paths and globs, in order, each glob's sorted; `-` is stdin. Errors call the argument `what`."""
    if isinstance(inputs, (str, os.PathLike, io.IOBase, Mapping)) or not isinstance(inputs, Iterable):
        inputs = [inputs]
    names = [name for path in inputs for name in _find(path, what)]
    if not names:
        raise ConfigurationError(f"{what}: expected at least one file, got none")
    return names


def _find(path: str | os.PathLike, what: str) -> list[str]:
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigurationError(f"{what}: expected paths, got {shown(path)}")
    name = check_path(what, path)
    if name == STDIN:
        return [name]
    if os.path.isdir(name):
        raise IsADirectoryError(f"{what}: expected a file or a glob, got the directory {name}; {name.rstrip('/')}/* "
                                "are its files")
    if os.path.exists(name):
        return [name]
    names = sorted(file for file in glob.glob(name, recursive=True) if not os.path.isdir(file))
    if not names:
        raise FileNotFoundError(f"{what}: expected files, found none at {name:.400}")
    return names


def format_of(name: str) -> str:
    """The format of a file, by its suffix. A tar, whose headers are UTF-8 too, is refused."""
    suffix = os.path.splitext(split_suffix(name)[0])[1].lower()
    if suffix in (".tar", ".tgz"):
        raise ConfigurationError(f"input: expected files of texts, got {name}; unpack it (tar -xf)")
    return next((kind for kind, row in FORMATS.items() if suffix in row.suffixes), "text")


def _check_formats(sources: Sequence[_Source], accepted: Sequence[str], expected: str) -> None:
    for source in sources:
        if source.format not in accepted:
            raise ConfigurationError(f"{expected}, got {source.name} of {source.format}")


@contextlib.contextmanager
def _rewound(name: str) -> Iterator[None]:
    """Restore the position of stdin, which must be a file, after the body; do nothing for other files."""
    start = os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR) if name == STDIN else 0
    try:
        yield
    finally:
        if name == STDIN:
            os.lseek(sys.stdin.fileno(), start, os.SEEK_SET)


def _blank_line(index: int, name: str = "") -> ConfigurationError:
    return ConfigurationError(f"input file: expected a sentence on every line, got none on line {index + 1}"
                              f"{_of(name)}; {_REMEDY}")


def _of(name: str) -> str:
    return f" of {name}" if name else ""
