"""Directories of shards: files of the same layout, and a `_manifest.json` with their checksums."""

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from elmo_fast.errors import ConfigurationError
from elmo_fast.files import stops
from elmo_fast.files.json import parse_json
from elmo_fast.files.manifest import StoredFile, is_file_name
from elmo_fast.vectors.layouts.embeddings import Embeddings
from elmo_fast.vectors.layouts.table import LAYOUTS, SHARDED

# Readers of Parquet take all files of a directory except those whose names begin so.
MANIFEST, _FORMER = "_manifest.json", "manifest.json"
FORMAT_VERSION = 1


def join(layout: str, segments: Sequence[Path], part: Path, open_shard: Callable[[Path], Embeddings]) -> None:
    """Create the directory `part` and move the segments, all of the same form, into it."""
    part.mkdir()
    shards = []
    for number, path in enumerate(segments):
        shard = part / file_name(layout, number)
        os.replace(path, shard)
        with contextlib.closing(open_shard(shard)) as source:
            shards.append(entry_of(StoredFile.of(shard, stops.check), len(source)))
    write_manifest(part, layout, source.form, source.fingerprint, shards)


def file_name(layout: str, number: int) -> str:
    """The name of a shard."""
    return f"{number:05}{LAYOUTS[layout].suffixes[0]}"


def entry_of(stored: StoredFile, texts: int) -> dict[str, Any]:
    """The manifest's entry of a shard."""
    return {"file": stored.name, "texts": texts, "bytes": stored.size, "crc32": stored.checksum}


def write_manifest(folder: Path, layout: str, form: dict, fingerprint: dict | None, shards: Sequence[dict]) -> None:
    """Write `_manifest.json`; it is the last file, so a directory without it is incomplete."""
    content = {"format": "elmo-fast shards", "format_version": FORMAT_VERSION, "layout": layout, "form": form,
               "fingerprint": fingerprint, "texts": sum(shard["texts"] for shard in shards), "shards": list(shards),
               "complete": True}
    content["checksum"] = _sum(content)
    (folder / MANIFEST).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _sum(content: dict) -> int:
    return zlib.crc32(json.dumps({**content, "checksum": None}, sort_keys=True).encode())


class ShardsSource(Embeddings):
    """A directory of shards. A shard is opened, and its checksum verified, when one of its texts is first read."""

    def __init__(self, folder: str | os.PathLike, open_shard: Callable[[Path], Embeddings]):
        self._name, self._folder, self._open = os.fspath(folder), Path(folder), open_shard
        manifest = _manifest(self._folder)
        self._check_version(manifest.get("format_version"), FORMAT_VERSION)
        self._describe(manifest)
        self.layout, self._shards = manifest["layout"], manifest["shards"]
        self._starts = np.cumsum([0, *(shard["texts"] for shard in self._shards)])
        self._opened: dict[int, Embeddings] = {}

    @cached_property
    def keys(self) -> list[str]:
        return [key for shard in range(len(self._shards)) for key in self._shard(shard).keys]

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
        for source in self._opened.values():
            source.close()
        self._opened = {}

    def __reduce__(self):
        return ShardsSource, (self._name, self._open)

    def _call(self, method: str, number: int) -> Any:
        shard = int(np.searchsorted(self._starts, number, side="right")) - 1
        return getattr(self._shard(shard), method)(number - int(self._starts[shard]))

    def _shard(self, shard: int) -> Embeddings:
        if shard not in self._opened:
            entry = self._shards[shard]
            stored = StoredFile(entry["file"], entry["bytes"], entry["crc32"])
            if stored.damage(self._folder, content=not LAYOUTS[self.layout].has_checksums):
                raise ConfigurationError(f"embeddings {self._folder}: expected the shard {stored.name} as it was "
                                         f"written ({stored.size:,} bytes), found it missing, cut or damaged")
            source = self._open(self._folder / stored.name)
            if len(source) != entry["texts"]:
                raise ConfigurationError(f"embeddings {self._folder}: expected {entry['texts']} texts in "
                                         f"{stored.name}, found {len(source)}")
            self._opened[shard] = source
        return self._opened[shard]


def _manifest(folder: Path) -> dict:
    path = next((path for path in (folder / MANIFEST, folder / _FORMER) if path.exists()), None)
    if path is None:
        raise ConfigurationError(f"embeddings {folder}: expected a directory of shards with {MANIFEST}, found none: "
                                 "it has no embeddings, or is incomplete")
    where = f"embeddings {path}"
    content = parse_json(path.read_bytes(), where)
    if not isinstance(content, dict) or content.get("complete") is not True or content.get("checksum") != _sum(content):
        raise ConfigurationError(f"{where}: expected its checksum to match, found damage")
    shards = content.get("shards")
    if content.get("layout") not in SHARDED or not isinstance(shards, list) or not all(map(_is_shard, shards)):
        raise ConfigurationError(f"{where}: expected a layout and shards with file, texts, bytes and crc32, "
                                 f"found {shards!r:.160}")
    return content


def _is_shard(value: Any) -> bool:
    """Whether `value` is an entry of a shard: the name of a file directly in the directory, and three counts."""
    return (isinstance(value, dict) and isinstance(value.get("file"), str) and is_file_name(value["file"])
            and all(type(value.get(name)) is int and 0 <= value[name] < 1 << 62
                    for name in ("texts", "bytes", "crc32")))
