"""Directories of Parquet or Arrow files, which pyarrow, DuckDB, polars and Spark read as one data set."""

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from elmo_fast.arguments import listed
from elmo_fast.errors import ConfigurationError
from elmo_fast.vectors.layouts.embeddings import Embeddings
from elmo_fast.vectors.layouts.table import IN_PARTS, LAYOUTS

_MOST_OPENED = 64  # files, since a process may open about a thousand


def part_name(layout: str, number: int) -> str:
    """The name of a part in its directory."""
    return f"{number:05}{LAYOUTS[layout].suffixes[0]}"


class PartsSource(Embeddings):
    """A directory of parts, in the order of their names; the last parts read stay open.

    As in pyarrow, files whose names begin with `_` or `.` do not belong to the data.
    """

    def __init__(self, folder: str | os.PathLike, open_part: Callable[[Path], Embeddings]):
        self._name, self._open = os.fspath(folder), open_part
        suffixes = [suffix for layout in IN_PARTS for suffix in LAYOUTS[layout].suffixes]
        self._paths = sorted(path for path in Path(folder).iterdir()
                             if path.suffix in suffixes and not path.name.startswith(("_", ".")))
        if not self._paths:
            raise ConfigurationError(f"embeddings {folder}: expected a directory of files that end in "
                                     f"{listed(suffixes)}, found none")
        self._opened: dict[int, Embeddings] = {}
        lengths = []
        for number, path in enumerate(self._paths):
            part = self._part(number)
            if not number:
                self.layout, self.form, self.fingerprint = part.layout, part.form, part.fingerprint
            if (part.layout, part.form) != (self.layout, self.form):
                raise ConfigurationError(f"embeddings {path}: expected {self.layout} of {self.form}, as in the first "
                                         f"file of its directory, found {part.layout} of {part.form}")
            lengths.append(len(part))
        self._starts = np.cumsum([0, *lengths])

    @cached_property
    def keys(self) -> list[str]:
        return [key for number in range(len(self._paths)) for key in self._part(number).keys]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _vectors(self, number: int) -> np.ndarray:
        return self._call("_vectors", number)

    def _text(self, number: int) -> str:
        return self._call("_text", number)

    def _tokens(self, number: int) -> list[str]:
        return self._call("_tokens", number)

    def _positions(self, number: int) -> np.ndarray | None:
        return self._call("_positions", number)

    def close(self) -> None:
        for part in self._opened.values():
            part.close()
        self._opened = {}

    def __reduce__(self):
        return PartsSource, (self._name, self._open)

    def _call(self, method: str, number: int) -> Any:
        part = int(np.searchsorted(self._starts, number, side="right")) - 1
        return getattr(self._part(part), method)(number - int(self._starts[part]))

    def _part(self, number: int) -> Embeddings:
        if number not in self._opened:
            if len(self._opened) >= _MOST_OPENED:
                self._opened.pop(next(iter(self._opened))).close()
            self._opened[number] = self._open(self._paths[number])
        return self._opened[number]
