"""FASTA files: sequences under header lines that begin with `>`."""

import functools
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from elmo_fast.arguments import check_file
from elmo_fast.files.compressed import MOST_LINE, check_line, open_text


class FastaRecord(NamedTuple):
    """A header without its `>` and outer whitespace, and a sequence without any whitespace."""

    header: str
    sequence: str


def read_fasta(path: str | os.PathLike) -> Iterator[FastaRecord]:
    """Records of a FASTA file in order; the file is UTF-8, compressed if its name ends in .gz, .bz2, .xz or .zst.

    Raises `ValueError`, which names the file and if possible the line, for text before the first header, a record
    without a sequence, a file without records, a truncated file, and undecodable bytes.
    """
    name = check_file("FASTA file", path)
    with open_text(name, "FASTA file") as file:
        lines = iter(functools.partial(file.readline, MOST_LINE), "")
        yield from parse_fasta((check_line(line, "FASTA file", name) for line in lines), name)


def parse_fasta(lines: Iterable[str], name: str) -> Iterator[FastaRecord]:
    """Records of the lines of a file; `name` is the file's name in errors, which are those of `read_fasta`."""
    header: str | None = None
    pieces: list[str] = []
    length = 0
    for number, line in enumerate(lines, start=1):
        if line.startswith(">"):
            if header is not None:
                yield _record(header, pieces, name)
            header, pieces, length = line[1:].strip(), [], 0
        elif header is not None:
            pieces.append("".join(line.split()))
            length += len(pieces[-1])
            if length > MOST_LINE or len(pieces) > MOST_LINE >> 4:
                raise ValueError(f"FASTA file: expected sequences of at most {MOST_LINE:,} letters, got a longer one "
                                 f"under {header!r:.60} in {name}")
        elif line.strip():
            raise ValueError(f"FASTA file: expected a header that begins with '>', got {line.strip()!r:.40} "
                             f"at line {number} of {name}")
    if header is None:
        raise ValueError(f"FASTA file: expected at least one record, got none in {name}")
    yield _record(header, pieces, name)


def _record(header: str, pieces: list[str], name: str) -> FastaRecord:
    if not any(pieces):
        raise ValueError(f"FASTA file: expected a sequence under every header, got none under {header!r:.60} in {name}")
    return FastaRecord(header, "".join(pieces))
