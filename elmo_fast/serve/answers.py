"""Writes the bodies of answers piece by piece, so that memory never holds a second copy of an answer."""

import base64
import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

_PIECE_BYTES = 1 << 18  # approximate
_VALUES_PER_PIECE = 1 << 13  # values of an array that are formatted at a time
_DIGITS = {"float32": "%.9g", "float16": "%.5g"}


def json_body(head: dict[str, Any], lists: Mapping[str, Iterable[Any]]) -> Iterator[bytes]:
    """Yield a JSON object: the fields of `head`, then those of `lists`, whose items are arrays or plain values."""
    return _join_into_pieces(_json_parts(head, lists))


def npz_body(arrays: Iterable[np.ndarray]) -> Iterator[bytes]:
    """Yield an uncompressed `.npz` file of the arrays, which are named "0", "1", ..."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for number, array in enumerate(arrays):
            name = zipfile.ZipInfo(f"{number}.npy")  # without a timestamp, so that equal arrays give equal bytes
            with archive.open(name, "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, np.lib.format.header_data_from_array_1_0(array))
                values = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
                for begin in range(0, len(values), _PIECE_BYTES):
                    member.write(values[begin : begin + _PIECE_BYTES])
                    yield from sink.take(_PIECE_BYTES)
    yield from sink.take()


def base64_of(vector: np.ndarray) -> str:
    """Encode a vector as base64 of little-endian float32, as OpenAI's clients read it."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _json_parts(head: dict[str, Any], lists: Mapping[str, Iterable[Any]]) -> Iterator[str]:
    yield json.dumps(head)[:-1]
    for name, items in lists.items():
        yield f", {json.dumps(name)}: ["
        for number, item in enumerate(items):
            if number:
                yield ", "
            yield from _item_parts(item)
        yield "]"
    yield "}"


def _item_parts(item: Any) -> Iterator[str]:
    if isinstance(item, np.ndarray):
        yield from _array_parts(item)
    elif isinstance(item, dict):
        yield "{"
        for number, (name, value) in enumerate(item.items()):
            yield f"{', ' if number else ''}{json.dumps(name)}: "
            yield from _item_parts(value)
        yield "}"
    else:
        yield json.dumps(item)


def _array_parts(array: np.ndarray) -> Iterator[str]:
    if array.ndim < 2 or array.size <= _VALUES_PER_PIECE:
        yield _numbers(array)
        return
    yield "["
    for number, inner in enumerate(array):
        if number:
            yield ", "
        yield from _array_parts(inner)
    yield "]"


def _numbers(array: np.ndarray) -> str:
    """A small array as JSON, each number with as many digits as restore it."""
    if array.ndim != 1:
        return f"[{', '.join(map(_numbers, array))}]"
    if not np.isfinite(array).all():
        return json.dumps(array.tolist())
    return f"[{', '.join([_DIGITS[array.dtype.name]] * len(array))}]" % tuple(array.tolist())


def _join_into_pieces(parts: Iterable[str]) -> Iterator[bytes]:
    piece = io.StringIO()
    for part in parts:
        piece.write(part)
        if piece.tell() >= _PIECE_BYTES:
            yield piece.getvalue().encode("ascii")
            piece = io.StringIO()
    yield piece.getvalue().encode("ascii")


class _Sink(io.RawIOBase):
    """A write-only file that cannot seek; `take` removes the written bytes."""

    def __init__(self):
        self._bytes = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self._bytes += data
        return len(data)

    def take(self, min_bytes: int = 1) -> Iterator[bytes]:
        """Yield and remove the written bytes if there are at least `min_bytes`."""
        if len(self._bytes) >= min_bytes:
            taken, self._bytes = bytes(self._bytes), bytearray()
            yield taken
