"""Bodies of answers in pieces, so that an answer never stands in memory a second time."""

import base64
import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

_PIECE = 1 << 18  # bytes, about
_VALUES = 1 << 13  # of an array, turned into text at a time


def json_body(head: dict[str, Any], lists: Mapping[str, Iterable[Any]]) -> Iterator[bytes]:
    """An object: the fields of `head`, and those of `lists`, of arrays or of plain values."""
    return _gathered(_json_parts(head, lists))


def npz_body(arrays: Iterable[np.ndarray]) -> Iterator[bytes]:
    """An `.npz` file of the arrays, named by number from "0"; not compressed."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for number, array in enumerate(arrays):
            name = zipfile.ZipInfo(f"{number}.npy")  # without the time: equal arrays, equal bytes
            with archive.open(name, "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, np.lib.format.header_data_from_array_1_0(array))
                values = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
                for begin in range(0, len(values), _PIECE):
                    member.write(values[begin : begin + _PIECE])
                    yield from sink.take(_PIECE)
    yield from sink.take()


def base64_of(vector: np.ndarray) -> str:
    """Little-endian float32 values, as OpenAI's clients read them."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _json_parts(head: dict[str, Any], lists: Mapping[str, Iterable[Any]]) -> Iterator[str]:
    yield json.dumps(head)[:-1]
    for name, items in lists.items():
        yield f", {json.dumps(name)}: ["
        for number, item in enumerate(items):
            if number:
                yield ", "
            yield from _nested(item) if isinstance(item, np.ndarray) else [json.dumps(item)]
        yield "]"
    yield "}"


def _nested(array: np.ndarray) -> Iterator[str]:
    if array.ndim < 2 or array.size <= _VALUES:
        yield json.dumps(array.tolist())
        return
    yield "["
    for number, inner in enumerate(array):
        if number:
            yield ", "
        yield from _nested(inner)
    yield "]"


def _gathered(parts: Iterable[str]) -> Iterator[bytes]:
    gathered = io.StringIO()
    for part in parts:
        gathered.write(part)
        if gathered.tell() >= _PIECE:
            yield gathered.getvalue().encode("ascii")
            gathered = io.StringIO()
    yield gathered.getvalue().encode("ascii")


class _Sink(io.RawIOBase):
    """A file to write to, without positions, whose bytes are taken off."""

    def __init__(self):
        self._bytes = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self._bytes += data
        return len(data)

    def take(self, least: int = 1) -> Iterator[bytes]:
        """What was written, if it is at least `least` bytes."""
        if len(self._bytes) >= least:
            taken, self._bytes = bytes(self._bytes), bytearray()
            yield taken
