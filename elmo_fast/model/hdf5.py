"""HDF5 files opened to read: all they hold is inside the file and of a plausible size, and errors name the file."""

import contextlib
import mmap
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from elmo_fast.choices import check_path
from elmo_fast.model.atomic_file import HDF5_ERRORS, limit_cache
from elmo_fast.model.options import ConfigurationError

if TYPE_CHECKING:
    import h5py  # imported where it is used: the help of the command needs none

MOST_UNPACKED = 8 << 30  # bytes; more are accepted where the file itself has a tenth of them
MOST_EXPANSION = 10


@contextlib.contextmanager
def open_hdf5(path: str | os.PathLike, name: str) -> Iterator["h5py.File"]:
    """An HDF5 file to read; `name` is what it is.

    Raises `OSError` where there is no file that can be read, and `ConfigurationError` for damage found in the body, for
    links and datasets that lead out of the file, and for datasets that unpack to implausible sizes.
    """
    import h5py

    source = check_path(name, path)
    if os.path.isdir(source):
        raise IsADirectoryError(f"{name}: expected an HDF5 file, got the directory {source}")
    if not os.path.exists(source):
        raise FileNotFoundError(f"{name}: expected an HDF5 file, found nothing at {source}")
    if not os.access(source, os.R_OK):
        raise PermissionError(f"{name}: expected a file that can be read, got {source}")
    try:
        with h5py.File(source, "r") as file:
            limit_cache(file)
            _check_inside(file, f"{name} {source}")
            yield file
    except ConfigurationError:
        raise
    except HDF5_ERRORS as error:
        raise ConfigurationError(f"{name} {source}: expected an HDF5 file, got something else or a file cut short "
                                 f"or damaged ({error})") from error


def _check_inside(file: "h5py.File", where: str) -> None:
    """Refuse soft and external links, external storage and virtual datasets: they can read any file of the user's."""
    import h5py

    links: list[tuple[bytes, int]] = []
    file.id.links.visit(lambda link, info: links.append((link, info.type)), info=True)  # follows hard links alone
    stored, extents = os.path.getsize(file.filename), []
    for link, kind in links:
        shown = f"{where}: {link.decode(errors='replace')}"
        if kind != h5py.h5l.TYPE_HARD:
            raise ConfigurationError(f"{shown}: expected a dataset in the file itself, found a link to another place")
        item = h5py.h5o.open(file.id, link)
        if not isinstance(item, h5py.h5d.DatasetID):
            continue
        properties = item.get_create_plist()
        if properties.get_external_count() or properties.get_layout() == h5py.h5d.VIRTUAL:
            raise ConfigurationError(f"{shown}: expected values in the file itself, found them in other files")
        check_unpacked(shown, item.get_space().get_select_npoints() * item.get_type().get_size(), stored)
        if properties.get_layout() == h5py.h5d.CONTIGUOUS and item.get_offset() is not None:
            extents.append((item.get_offset(), item.get_storage_size()))
    _check_heaps(file.filename, sorted(extents))
    for attribute in file.attrs:
        if file.attrs.get_id(attribute).get_type().get_class() == h5py.h5t.VLEN:  # HDF5 crashes over damaged ones
            raise ConfigurationError(f"{where}: attribute {attribute}: expected numbers or strings, found sequences")


def _check_heaps(path: str, extents: list[tuple[int, int]]) -> None:
    """Raise `ValueError` for a damaged heap of strings outside the datasets' extents: HDF5 reads some for ever.

    A heap is `GCOL`, a version, its size, then objects: number u16, references u16, 4 bytes, size u64 and values;
    number 0 is the free space, whose size is that of all of it ("Global Heap" in HDF5's file format specification).
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        end = 0
        for offset, size in [*extents, (len(content), 0)]:
            while (heap := content.find(b"GCOL\1", end, offset)) >= 0:
                end = heap + int.from_bytes(content[heap + 8 : heap + 16], "little")
                at = heap + 16
                if not at <= end <= len(content):
                    raise ValueError("a heap of strings is cut short")
                while at + 16 <= end:
                    own = int.from_bytes(content[at + 8 : at + 16], "little")
                    own = 16 + (own + 7 & ~7) if any(content[at : at + 2]) else own
                    if not 16 <= own <= end - at:
                        raise ValueError("a heap of strings is damaged")
                    at += own
            end = max(end, offset + size)


def check_unpacked(name: str, size: int, stored: int, most: int | None = None) -> None:
    """Raise `ConfigurationError` when `size` bytes cannot be what a packed file of `stored` bytes holds in earnest.

    `most` bytes, by default 8 GB, are accepted of any file.
    """
    most = MOST_UNPACKED if most is None else most
    if size > max(most, MOST_EXPANSION * stored):
        raise ConfigurationError(f"{name}: expected at most {most >> 30} GB, or {MOST_EXPANSION} times the "
                                 f"{stored:,} bytes of the file, when unpacked, found {size:,} bytes")
