"""FASTA files: sequences under header lines that begin with `>`."""

import gzip
import itertools
import os
import zlib
from collections.abc import Iterator
from typing import NamedTuple


class FastaRecord(NamedTuple):
    """A header without its `>` and outer whitespace, and a sequence without any whitespace."""

    header: str
    sequence: str


def read_fasta(path: str | os.PathLike) -> Iterator[FastaRecord]:
    """Records of a FASTA file in its order; the file is UTF-8, gzip-compressed when its name ends in `.gz`.

    Raises `ValueError` for text before the first header, a record without a sequence, a file without records, one
    cut short and undecodable bytes, naming the file and, where there is one, the line.
    """
    name = os.fspath(path)
    found = False
    try:
        with gzip.open(name, "rt", encoding="utf-8") if name.endswith(".gz") else open(name, encoding="utf-8") as file:
            for record in _records(file, name):
                found = True
                yield record
    except UnicodeDecodeError as error:
        raise ValueError(f"FASTA file: expected UTF-8 text, got undecodable bytes in {name} ({error})") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"FASTA file: expected a complete gzip file, got {name} ({error})") from error
    if not found:
        raise ValueError(f"FASTA file: expected at least one record, got none in {name}")


def _records(lines, name: str) -> Iterator[FastaRecord]:
    header: str | None = None
    pieces: list[str] = []
    for number, line in enumerate(itertools.chain(lines, [">"]), start=1):  # a last header ends the last record
        line = line.removeprefix("\ufeff") if number == 1 else line
        if line.startswith(">"):
            if header is not None and not any(pieces):
                raise ValueError(f"FASTA file: expected a sequence under every header, got none under {header!r:.60} "
                                 f"in {name}")
            if header is not None:
                yield FastaRecord(header, "".join(pieces))
            header, pieces = line[1:].strip(), []
        elif header is not None:
            pieces.append("".join(line.split()))
        elif line.strip():
            raise ValueError(f"FASTA file: expected a header that begins with '>', got {line.strip()!r:.40} "
                             f"at line {number} of {name}")
