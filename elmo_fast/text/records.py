"""Formats of input files, and the functions that read their texts. Lines and rows in errors count from 1.

A new format is a function and a row of `FORMATS`.
"""

import contextlib
import csv
import functools
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from elmo_fast.environment import extra
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.compressed import split_suffix
from elmo_fast.files.json import parse_json
from elmo_fast.text.fasta import parse_fasta

Record = tuple[str | None, str, Sequence[str] | None]  # key and tokens, None where the input gives none, and text

ID = "id"  # the key or column that names a text
_MOST_WORDS = 1 << 24  # of a sentence, which is read whole
_BATCH = 1024  # rows of a Parquet file at a time
_BUFFER = 1 << 20  # bytes of a column read at a time
_SKIPPED_ID = re.compile(r"[0-9]+[-.][0-9]+")
_CHOOSE = "--field NAME (in Python field=) selects another"


def read_text(lines: Iterable[str], name: str, field: str) -> Iterator[Record]:
    """One text per line, also for blank lines."""
    line = None
    for line in lines:
        yield None, line.strip(), None
    if line is None:
        raise ConfigurationError("input file: expected one tokenized sentence a line, got an empty file"
                                 f"{name and f': {name}'}")


def read_conllu(lines: Iterable[str], name: str, field: str) -> Iterator[Record]:
    """Sentences of CoNLL-U: the forms of their words, without multiword ranges, empty nodes and comments."""
    for tokens in conllu_column(lines, name):
        yield None, " ".join(tokens), tokens


def conllu_column(lines: Iterable[str], name: str, column: int = 1) -> Iterator[list[str]]:
    """One column of CoNLL-U, as a list of words per sentence: 1 for forms, 3 for parts of speech."""
    tokens: list[str] | None = None
    for number, line in enumerate(itertools.chain(lines, [""]), start=1):  # a blank line ends the last sentence
        line = line.rstrip("\n")
        if not line or line.isspace():
            if tokens is not None:
                yield tokens
            tokens = None
        elif not line.startswith("#"):
            tokens = [] if tokens is None else tokens
            columns = line.split("\t")
            if len(columns) != 10:
                raise ConfigurationError(f"CoNLL-U: expected 10 columns separated by tabs, got {len(columns)} at line "
                                         f"{number} of {name}")
            if len(tokens) >= _MOST_WORDS:
                raise ConfigurationError(f"CoNLL-U: expected sentences of at most {_MOST_WORDS:,} words, got a longer "
                                         f"one at line {number} of {name}")
            if columns[0].isdecimal() and columns[1].strip():
                tokens.append(columns[column])
            elif not _SKIPPED_ID.fullmatch(columns[0]):
                raise ConfigurationError(f"CoNLL-U: expected a number and a form, got {columns[0]!r:.20} and "
                                         f"{columns[1]!r:.20} at line {number} of {name}")


def read_fasta(lines: Iterable[str], name: str, field: str) -> Iterator[Record]:
    """Sequences, one token per letter; the key is the first word of the header."""
    for header, sequence in parse_fasta(lines, name):
        yield next(iter(header.split()), None), sequence, list(sequence)


def read_json_lines(lines: Iterable[str], name: str, field: str) -> Iterator[Record]:
    """Objects with a string or a list of tokens in `field`, and perhaps `id`. Blank lines are skipped."""
    for number, line in enumerate(lines, start=1):
        if line.isspace():
            continue
        where = f"at line {number} of {name}"
        record = parse_json(line, f"JSON lines: expected an object on every line, got {line.strip()[:40]!r} {where}")
        if not isinstance(record, dict):
            raise ConfigurationError(f"JSON lines: expected an object on every line, got {line.strip()!r:.40} {where}")
        if field not in record:
            raise ConfigurationError(f"JSON lines: expected the key {field!r}, got {list(record)!s:.80} {where}; "
                                     f"{_CHOOSE}")
        row = _record(record.get(ID), record[field], field, where)
        if "\\u" in line:
            try:
                f"{row[0]}{row[1]}".encode()
            except UnicodeEncodeError as error:
                raise ConfigurationError(f"JSON lines: expected text, got half of a surrogate pair {where}") from error
        yield row


def read_table(lines: Iterable[str], name: str, field: str, *, title: str, separators: str) -> Iterator[Record]:
    """Rows below a header of column names: the string in the column `field`, and perhaps `id`. Blank lines are skipped.

    Columns are separated by the first of `separators` that is in the header, and quoted as in RFC 4180.
    """
    lines = iter(lines)
    first = next(lines, "")
    separator = next((mark for mark in separators if mark in first), separators[0])
    rows = csv.reader(itertools.chain([first], lines), delimiter=separator, strict=True)
    try:
        header = [column.strip() for column in next(rows, ())]
        if header.count(field) != 1:
            raise ConfigurationError(f"{title}: expected one column {field!r} in the first line, got {header!s:.80} in "
                                     f"{name}; {_CHOOSE}")
        for row in filter(None, rows):
            where = f"at line {rows.line_num} of {name}"
            if len(row) != len(header):
                raise ConfigurationError(f"{title}: expected the {len(header)} columns of the first line, got "
                                         f"{len(row)} {where}; a text that contains the separator is quoted")
            columns = dict(zip(header, row))
            yield _record(columns.get(ID) or None, columns[field], field, where)
    except csv.Error as error:
        raise ConfigurationError(f"{title}: expected columns quoted as in RFC 4180, found others at line "
                                 f"{rows.line_num} of {name} ({error}); JSON lines holds any text") from error


def read_parquet(name: str, field: str) -> Iterator[Record]:
    """Rows with a string or a list of strings in the column `field`, and perhaps a column `id`; a batch in memory."""
    with _parquet(name, field) as file:
        columns = [field, ID] if file.schema_arrow.get_field_index(ID) >= 0 else [field]
        rows = itertools.count(1)
        for batch in file.iter_batches(_BATCH, columns=columns, use_threads=False):
            texts = batch.column(field).to_pylist()
            keys = batch.column(ID).to_pylist() if ID in columns else [None] * len(texts)
            for key, text, row in zip(keys, texts, rows):
                yield _record(key, text, field, f"in row {row} of {name}")
        _check_rows(next(rows) - 1, file, name)


def count_parquet(name: str, field: str) -> int:
    """The number of rows of a file, after a check of its column."""
    with _parquet(name, field) as file:
        _check_rows(sum(file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)), file, name)
        return file.metadata.num_rows


def _check_rows(count: int, file: Any, name: str) -> None:
    if count != file.metadata.num_rows:
        raise ConfigurationError(f"Parquet: expected the {file.metadata.num_rows:,} rows of its metadata in {name}, "
                                 f"found {count:,}")


def check_parquet(name: str) -> None:
    """Refuse an input that is no file or compressed as a whole; `ImportError` without pyarrow."""
    if not os.path.isfile(name) or split_suffix(name)[1]:
        raise ConfigurationError(f"Parquet: expected a file, not compressed as a whole and no pipe, got {name}")
    _pyarrow()


def _pyarrow() -> Any:
    with extra("parquet"):
        import pyarrow.parquet
    return pyarrow


@contextlib.contextmanager
def _parquet(name: str, field: str) -> Iterator[Any]:
    """An open file whose column `field` fits; `ConfigurationError` for damage, in the body too."""
    pyarrow = _pyarrow()
    try:
        # With pre_buffer, pyarrow's default, all columns of a row group would be in memory.
        with pyarrow.parquet.ParquetFile(name, buffer_size=_BUFFER, pre_buffer=False,
                                         page_checksum_verification=True) as file:
            _check_column(file.schema_arrow, field, name, pyarrow.types)
            yield file
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = error.filename or name
            raise
        raise ConfigurationError(f"Parquet: expected a complete file, got {name} ({' '.join(str(error).split()):.160})"
                                 ) from error


def _check_column(schema: Any, field: str, name: str, types: Any) -> None:
    if schema.get_field_index(field) < 0:
        raise ConfigurationError(f"Parquet: expected a column {field!r}, got {schema.names!s:.80} in {name}; "
                                 f"{_CHOOSE}")
    actual = kind = schema.field(field).type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    if types.is_dictionary(kind):
        kind = kind.value_type
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise ConfigurationError(f"Parquet: expected strings or lists of strings in column {field!r}, got {actual} in "
                                 f"{name}")


def _record(key: Any, text: Any, field: str, where: str) -> Record:
    if key is not None and (isinstance(key, bool) or not isinstance(key, (str, int))):
        raise ConfigurationError(f"{ID}: expected a string or an integer, got {key!r:.40} {where}")
    key = None if key is None else str(key)
    if isinstance(text, str):
        return key, text.strip(), None
    if not isinstance(text, list) or not all(isinstance(token, str) for token in text):
        raise ConfigurationError(f"{field}: expected a string or a list of strings, got {text!r:.40} {where}")
    return key, " ".join(text), text


class Format(NamedTuple):
    """A format of input files.

    `read` takes the lines of a file, its name and the field of the texts; with `is_binary` the last two alone.

    Texts have tokens already, or are strings, which a tokenizer splits.
    """

    title: str
    suffixes: tuple[str, ...]
    read: Callable[..., Iterator[Record]]
    has_field: bool = False  # the key or column of the texts
    has_tokens: bool = False
    is_binary: bool = False
    check: Callable[[str], None] | None = None  # of a file's name, before anything is read
    count_texts: Callable[[str, str], int] | None = None  # of a file, by its name and `field`, without reading them


FORMATS = {
    "text": Format("text", (), read_text),
    "conllu": Format("CoNLL-U", (".conllu",), read_conllu, has_tokens=True),
    "fasta": Format("FASTA", (".fasta", ".fa", ".faa"), read_fasta, has_tokens=True),
    "csv": Format("CSV", (".csv",), functools.partial(read_table, title="CSV", separators=",;\t"), has_field=True),
    "tsv": Format("TSV", (".tsv",), functools.partial(read_table, title="TSV", separators="\t"), has_field=True),
    "jsonl": Format("JSON lines", (".jsonl", ".ndjson", ".json"), read_json_lines, has_field=True),
    "parquet": Format("Parquet", (".parquet",), read_parquet, has_field=True, is_binary=True, check=check_parquet,
                      count_texts=count_parquet)}
