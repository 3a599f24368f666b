"""Writes the bodies of answers piece by piece, so that memory never holds a second copy of an answer."""

import zipfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import orjson
from fastapi import Response

PIECE_BYTES = 1 << 18  # at least, of every piece but the last
_VALUES_PER_PIECE = 1 << 13  # values of an array that are formatted at a time


def json_response(content: Any) -> Response:
    """A JSON answer; the content may hold arrays."""
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


def json_body(head: dict[str, Any], lists: Mapping[str, Iterable[Any]]) -> Iterator[bytes]:
    """Yield a JSON object: the fields of `head`, then those of `lists`, whose items are arrays or plain values.

    Numbers have as many digits as restore them in float32: at most 9.
    """
    piece = bytearray()
    for part in _json_parts(head, lists):
        piece += part
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


def npz_body(arrays: Iterable[np.ndarray]) -> Iterator[bytes]:
    """Yield an uncompressed `.npz` file of the arrays, which are named "0", "1", ..."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for number, array in enumerate(arrays):
            name = zipfile.ZipInfo(f"{number}.npy")  # without a timestamp, so that equal arrays give equal bytes
            with archive.open(name, "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, np.lib.format.header_data_from_array_1_0(array))
                values = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
                for begin in range(0, len(values), PIECE_BYTES):
                    member.write(values[begin : begin + PIECE_BYTES])
                    if len(sink) >= PIECE_BYTES:
                        yield bytes(sink)
                        sink.clear()
    yield bytes(sink)


def _json_parts(head: dict[str, Any], lists: Mapping[str, Iterable[Any]]) -> Iterator[bytes]:
    yield orjson.dumps(head)[:-1]
    for name, items in lists.items():
        yield b"," + orjson.dumps(name) + b":"
        yield from _list_parts(items)
    yield b"}"


def _list_parts(items: Iterable[Any]) -> Iterator[bytes]:
    opening = b"["
    for item in items:
        yield opening
        opening = b","
        if isinstance(item, np.ndarray) and item.ndim > 1 and item.size > _VALUES_PER_PIECE:
            yield from _list_parts(item)
        else:
            yield orjson.dumps(item, option=orjson.OPT_SERIALIZE_NUMPY)
    yield b"]" if opening == b"," else b"[]"


class _Sink(bytearray):
    """A write-only file that cannot seek, and the bytes that were written to it."""

    def write(self, data) -> int:
        self += data
        return len(data)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""
