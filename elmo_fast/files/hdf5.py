"""Write HDF5 files atomically, and read them with checks of sizes and links and with errors that name the file."""

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo_fast.arguments import check_file, shown
from elmo_fast.errors import ConfigurationError, parsing
from elmo_fast.files.atomic import DeferredErrorFile, atomic_path
from elmo_fast.files.strings import split

if TYPE_CHECKING:
    import h5py  # imported lazily, so that `elmo-fast --help` does not load it

MAGIC = b"\x89HDF\r\n\x1a\n"  # first bytes of an HDF5 file
MOST_UNPACKED = 8 << 30  # bytes; more are accepted for files of at least a tenth of the unpacked size
MOST_EXPANSION = 10
MOST_DEPTH = 256  # nested groups; a sentence used as a key has a group per slash
# Components of the paths of all links together; more are accepted if the file has 64 bytes per component.
_MOST_STEPS = 1 << 16
_KINDS = {"f": "floating-point numbers", "i": "signed integers", "u": "unsigned integers"}  # kinds of NumPy dtypes


@contextlib.contextmanager
def open_hdf5(path: str | os.PathLike, name: str) -> Iterator["h5py.File"]:
    """Open an HDF5 file for reading; errors call it `name`.

    Raises `OSError` if there is no readable file, and `ConfigurationError` for damage, also when the body detects it,
    for links and datasets that refer to other files, and for datasets with implausible unpacked sizes.
    """
    import h5py

    source = check_file(name, path)
    if not os.access(source, os.R_OK):
        raise PermissionError(f"{name}: expected a file that can be read, got {source}")
    expected = "an HDF5 file, got something else or a file cut short or damaged"
    with parsing(f"{name} {source}", expected), h5py.File(source, "r") as file:
        limit_cache(file)
        _check_inside(file, f"{name} {source}")
        yield file


def is_hdf5(path: str | os.PathLike) -> bool:
    """Whether a file has HDF5's signature; False for a pipe, and for a file that cannot be read."""
    import h5py

    return os.access(path, os.R_OK) and h5py.is_hdf5(path)


def _check_inside(file: "h5py.File", where: str) -> None:
    """Refuse soft and external links, external storage and virtual datasets: they can read any file of the user."""
    import h5py

    stored, extents = os.path.getsize(file.filename), []
    for link, kind in _links(file, where):
        shown = f"{where}: {_shown(link)}"
        if kind != h5py.h5l.TYPE_HARD:
            raise ConfigurationError(f"{shown}: expected a dataset in the file itself, found a soft or external link")
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
        if file.attrs.get_id(attribute).get_type().get_class() == h5py.h5t.VLEN:  # HDF5 crashes on damaged values
            raise ConfigurationError(f"{where}: attribute {_shown(attribute)}: expected numbers or strings, found "
                                     "sequences")


def _links(file: "h5py.File", where: str) -> list[tuple[bytes, int]]:
    """Path and type of every link, following hard links; `ConfigurationError` if paths are too deep or too many."""
    links: list[tuple[bytes, int]] = []
    budget = max(_MOST_STEPS, os.path.getsize(file.filename) >> 6)

    def visit(link: bytes, info) -> bool | None:
        """Return True to stop the visit: h5py would replace an exception raised here by another."""
        nonlocal budget
        depth = 1 + link.count(b"/")
        budget -= depth
        links.append((link, info.type))
        return depth > MOST_DEPTH or budget < 0 or None

    if file.id.links.visit(visit, info=True):
        raise ConfigurationError(f"{where}: {_shown(links[-1][0])}: expected at most {MOST_DEPTH} nested groups, "
                                 "and fewer paths in a file of this size, found more")
    return links


def _shown(name: bytes | str) -> str:
    """A name as text for a message, shortened to 80 characters."""
    text = name.decode(errors="backslashreplace") if isinstance(name, bytes) else name
    return f"{text[:80]}..." if len(text) > 80 else text


def _names(group: "h5py.Group") -> str:
    """The first eight names in a group, for a message."""
    names = [_shown(name) for name, _ in zip(group, range(8))]
    return ", ".join(names) + ("" if len(group) <= len(names) else f" and {len(group) - len(names):,} more")


def datasets_of(file: "h5py.File", where: str) -> dict[str, "h5py.Dataset"]:
    """All datasets by path; `ConfigurationError` for a name that is not UTF-8."""
    import h5py

    datasets: dict[str, h5py.Dataset] = {}
    for link, _ in _links(file, where):
        try:
            name = link.decode()
        except UnicodeDecodeError:
            raise ConfigurationError(f"{where}: {_shown(link)}: expected names in UTF-8, found other bytes") from None
        item = file[link]
        if isinstance(item, h5py.Dataset):
            datasets[name] = item
    return datasets


def dataset_of(file: "h5py.File", name: str, where: str, kinds: str = "", *shape: int | None) -> "h5py.Dataset":
    """Get a dataset and check its type, one of NumPy's `kinds`, and its `shape`, with None for any size of an axis.

    Without `kinds`, any type and shape are accepted. `ConfigurationError` names `where` and the dataset.
    """
    import h5py

    item = file.get(name)
    if not isinstance(item, h5py.Dataset):
        raise ConfigurationError(f"{where}: expected the dataset {name}, found "
                                 f"{f'[{_names(file)}]' if item is None else 'a group'}: another file, or damaged")
    actual = item.shape
    fits = actual is not None and (not kinds or (item.dtype.kind in kinds and len(actual) == len(shape) and all(
        size in (None, actual_size) for size, actual_size in zip(shape, actual))))
    if not fits:
        axes = ", ".join("any" if size is None else str(size) for size in shape)
        expected = f"{' or '.join(map(_KINDS.__getitem__, kinds))} of shape [{axes}]" if kinds else "values"
        raise ConfigurationError(f"{where}: {name}: expected {expected}, found {item.dtype!s:.80} of shape {actual}")
    return item


def strings_of(file: "h5py.File", name: str, ends: str, where: str) -> list[str]:
    """Read strings that `strings.joined` encoded into two datasets."""
    content, positions = (dataset_of(file, *key, None)[...] for key in ((name, where, "u"), (ends, where, "i")))
    expected = "strings in UTF-8 and their ends, found others: the file is damaged"
    with parsing(f"{where}: {name}, {ends}", expected):
        return split(content, positions)


def attribute_of(file: "h5py.File", name: str, where: str, kind: type, default: Any = None) -> Any:
    """A string or integer attribute of the file, or `default` if it is missing."""
    value = file.attrs.get(name)
    if isinstance(value, np.integer):
        value = int(value)
    if value is not None and type(value) is not kind:
        raise ConfigurationError(f"{where}: attribute {name}: expected {kind.__name__}, found {shown(value)}")
    return default if value is None else value


def _check_heaps(path: str, extents: list[tuple[int, int]]) -> None:
    """Raise `ValueError` for a damaged string heap outside the datasets' extents: some make HDF5 read without end.

    A heap is `GCOL`, a version, its size, then objects: number u16, references u16, 4 bytes, size u64 and values;
    number 0 is free space, whose size includes its header ("Global Heap" in HDF5's file format specification).
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        end = 0
        for offset, length in [*extents, (len(content), 0)]:
            while (heap := content.find(b"GCOL\1", end, offset)) >= 0:
                end = heap + int.from_bytes(content[heap + 8 : heap + 16], "little")
                position = heap + 16
                if not position <= end <= len(content):
                    raise ValueError("a heap of strings is cut short")
                while position + 16 <= end:
                    size = int.from_bytes(content[position + 8 : position + 16], "little")
                    size = 16 + (size + 7 & ~7) if any(content[position : position + 2]) else size
                    if not 16 <= size <= end - position:
                        raise ValueError("a heap of strings is damaged")
                    position += size
            end = max(end, offset + length)


def check_unpacked(name: str, size: int, stored: int, most: int | None = None) -> None:
    """Raise `ConfigurationError` if `size` unpacked bytes are implausibly many for a file of `stored` bytes.

    Up to `most` bytes, by default 8 GiB, are accepted for any file.
    """
    most = MOST_UNPACKED if most is None else most
    if size > max(most, MOST_EXPANSION * stored):
        raise ConfigurationError(f"{name}: expected at most {most >> 30} GB, or {MOST_EXPANSION} times the "
                                 f"{stored:,} bytes of the file, when unpacked, found {size:,} bytes")


@contextlib.contextmanager
def atomic_hdf5(target: str | os.PathLike) -> Iterator[tuple["h5py.File", DeferredErrorFile]]:
    """Yield a new HDF5 file, renamed to `target` when the body succeeds, and its `DeferredErrorFile`."""
    with atomic_path(target) as part, new_hdf5(part, target) as files:
        yield files


@contextlib.contextmanager
def new_hdf5(path: Path, target: str | os.PathLike, **options) -> Iterator[tuple["h5py.File", DeferredErrorFile]]:
    """Yield a new HDF5 file, made with options of `h5py.File`, and its `DeferredErrorFile`; errors name `target`."""
    import h5py

    with DeferredErrorFile(path, target) as disk, h5py.File(disk, "w", **options) as file:
        limit_cache(file)
        yield file, disk


def limit_cache(file: "h5py.File") -> None:
    """Limit HDF5's metadata cache to 1 MiB, plus the space that a single large entry needs, such as a group's names.

    By default it grows to 32 MiB in files of many datasets, whose small entries take ten times that in memory.
    """
    config = file.id.get_mdc_config()
    config.set_initial_size = True
    config.initial_size = config.min_size = 1 << 20
    config.max_size = 128 << 20  # HDF5's maximum
    config.incr_mode = config.decr_mode = 0  # no resizing by hit rate
    config.flash_incr_mode, config.flash_multiple, config.flash_threshold = 1, 1.1, 0.1
    file.id.set_mdc_config(config)
