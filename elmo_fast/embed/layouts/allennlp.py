"""HDF5 with a dataset a text: AllenNLP's, with `sentence_to_index`, and SeqVec's, whose keys are identifiers."""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO

import h5py
import numpy as np

from elmo_fast import stops
from elmo_fast.embed.form import Form
from elmo_fast.embed.layouts.item import Item, Source, narrowed
from elmo_fast.model.atomic_file import HDF5_ERRORS, Disk, atomic_path, check_target, new_hdf5
from elmo_fast.model.hdf5 import open_hdf5
from elmo_fast.model.options import ConfigurationError

INDEX = "sentence_to_index"
_ABOUT = "elmo_fast"  # attribute: JSON of the form and the fingerprint
# Records of datasets go into blocks of their own, and the vectors between the blocks stand end to end.
_OPTIONS = {"meta_block_size": 1 << 16}
_MOST_SPACES = 1 << 12  # that are kept for texts of the same shape


class Hdf5Writer:
    """Writes a dataset a key into an open file. Errors are those for sentences as keys, or for identifiers.

    HDF5 gives every dataset its place, and the values go there past HDF5: half the time of `h5py.Group.create_dataset`.
    """

    def __init__(self, file: h5py.File, disk: Disk, dtype: str | None = None, sentences: bool = False):
        self._file, self._disk, self._dtype, self._sentences = file, disk, dtype, sentences
        self._types: dict[np.dtype, h5py.h5t.TypeID] = {}
        self._spaces: dict[tuple[int, ...], h5py.h5s.SpaceID] = {}
        self._properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        self._properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        self._properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        self._properties.set_obj_track_times(False)
        self._links = {}
        for name, encoding in (("ascii", h5py.h5t.CSET_ASCII), ("utf-8", h5py.h5t.CSET_UTF8)):
            self._links[name] = h5py.h5p.create(h5py.h5p.LINK_CREATE)
            self._links[name].set_char_encoding(encoding)

    def write(self, key: str, vectors: np.ndarray) -> h5py.h5d.DatasetID:
        """Add a dataset; `ConfigurationError` when the key is taken or cannot be a name in HDF5."""
        values = np.ascontiguousarray(vectors, dtype=self._dtype)
        dataset = self.create(key, values.shape, values.dtype)
        if values.size:
            self._disk.seek(dataset.get_offset())
            self._disk.write(values)
        self.check()
        return dataset

    def create(self, key: str, shape: tuple[int, ...], dtype: np.dtype) -> h5py.h5d.DatasetID:
        """Add a dataset whose values are not written."""
        try:
            if "\0" in key or key.rpartition("/")[2] in ("", "."):
                raise ValueError("HDF5 would cut the name or take it for a group's")
            parent, _, name = key.rpartition("/")
            place = self._file.require_group(parent).id if parent else self._file.id
            links = self._links["ascii" if name.isascii() else "utf-8"]
            if dtype not in self._types:
                self._types[dtype] = h5py.h5t.py_create(dtype, logical=True)
            if shape not in self._spaces:
                if len(self._spaces) >= _MOST_SPACES:
                    self._spaces.clear()
                self._spaces[shape] = h5py.h5s.create_simple(shape)
            return h5py.h5d.create(place, name.encode(), self._types[dtype], self._spaces[shape], self._properties,
                                   links)
        except (ValueError, TypeError) as error:
            raise self._refused(key, error) from error

    def check(self) -> None:
        """Raise the error of a failed write, or a requested stop."""
        self._disk.check()
        stops.check()

    def write_index(self, sentence_to_index: dict[str, str]) -> None:
        """Add AllenNLP's `sentence_to_index`: one JSON string that maps each sentence to its key."""
        if INDEX in self._file:
            raise ConfigurationError(f"output: expected keys other than {INDEX}, which AllenNLP's layout needs itself")
        index = self._file.create_dataset(INDEX, (1,), dtype=h5py.string_dtype())
        index[0] = json.dumps(sentence_to_index)

    def _refused(self, key: str, error: Exception) -> ConfigurationError:
        if not self._sentences:
            return ConfigurationError(f"output: expected identifiers that HDF5 takes as names, got {key!r:.60} "
                                      f"({error}); .npz takes any")
        with contextlib.suppress(*HDF5_ERRORS):
            if "\0" not in key and key.rpartition("/")[2] not in ("", ".") and key in self._file:
                return ConfigurationError(f"use_sentence_keys: expected different sentences, got {key!r:.80} twice (or "
                                          f"as a part of another's path) in {self._disk.target}; line numbers always "
                                          "work")
        return ConfigurationError("use_sentence_keys: expected sentences that HDF5 takes as names, got "
                                  f"{key!r:.80}; line numbers always work")


@contextlib.contextmanager
def hdf5_file(path: str | os.PathLike) -> Iterator[Hdf5Writer]:
    """A writer of a file that appears at `path` only when the body succeeds; `OSError` where none can be written."""
    check_target(path, "output file")
    with atomic_path(path) as part, new_hdf5(part, path, **_OPTIONS) as (file, disk):
        yield Hdf5Writer(file, disk, "float32", sentences=True)


class AllennlpWriter:
    """Writes texts as AllenNLP's `ElmoEmbedder`, `first` the number of texts before them."""

    def __init__(self, writer: Hdf5Writer, form: Form, first: int, use_sentence_keys: bool, forget_sentences: bool):
        self._writer, self._dtype, self._number = writer, np.dtype(form.dtype), first
        self._sentence_keys = use_sentence_keys
        self.index: dict[str, str] | None = None if forget_sentences or use_sentence_keys else {}

    def write(self, item: Item) -> None:
        """Add a text."""
        key = item.text if self._sentence_keys else item.key
        dataset = self._writer.write(key, narrowed(self._number, item.vectors, self._dtype))
        if item.positions is not None:
            try:
                h5py.Dataset(dataset).attrs["positions"] = item.positions
            except (OSError, RuntimeError) as error:
                raise ConfigurationError(f"targets: expected at most 8,000 of them in a text for AllenNLP's layout, "
                                         f"got {len(item.positions)} in text {self._number}; packed holds any number"
                                         ) from error
        if self.index is not None:
            self.index[item.text] = key
        self._number += 1


@contextlib.contextmanager
def segment(path: Path, target, form: Form, *, first: int = 0, fingerprint: dict | None = None,
            use_sentence_keys: bool = False, forget_sentences: bool = False, **_) -> Iterator[AllennlpWriter]:
    """A writer of a file at `path`, whose errors name `target`."""
    with new_hdf5(path, target, **_OPTIONS) as (file, disk):
        file.attrs[_ABOUT] = json.dumps({"form": form.describe(), "fingerprint": fingerprint})
        writer = Hdf5Writer(file, disk, sentences=use_sentence_keys)
        texts = AllennlpWriter(writer, form, first, use_sentence_keys, forget_sentences)
        yield texts
        if texts.index is not None:
            writer.write_index(texts.index)


def join(segments: Sequence[Path], part: Path, target, form: Form, *, use_sentence_keys: bool = False,
         **_) -> None:
    """One file out of many. Values are copied from file to file; HDF5 makes their records alone."""
    index: dict[str, str] | None = None
    dtype = np.dtype(form.dtype)
    with new_hdf5(part, target, **_OPTIONS) as (file, disk):
        writer = Hdf5Writer(file, disk, sentences=use_sentence_keys)
        for path in segments:
            with h5py.File(path, "r") as source, open(path, "rb") as content:
                file.attrs[_ABOUT] = source.attrs[_ABOUT]
                for key in _keys(source):
                    dataset = _dataset(source, key)
                    _copy(dataset, content, writer.create(key, dataset.shape, dtype), disk)
                    writer.check()
                if (found := _index(source)) is not None:
                    index = {**(index or {}), **found}
        if index is not None:
            writer.write_index(index)


def _copy(dataset: h5py.h5d.DatasetID, content: IO[bytes], copy: h5py.h5d.DatasetID, disk: Disk) -> None:
    if offset := dataset.get_offset():
        content.seek(offset)
        disk.seek(copy.get_offset())
        disk.write(content.read(dataset.get_storage_size()))
    if h5py.h5a.get_num_attrs(dataset):
        h5py.Dataset(copy).attrs["positions"] = h5py.Dataset(dataset).attrs["positions"]


def _keys(file: h5py.File) -> list[str]:
    """Paths of all datasets but AllenNLP's index, by name. A group is what has something in it."""
    links: list[bytes] = []
    file.id.links.visit(links.append)
    names = [link.decode("utf-8", "surrogateescape") for link in links]
    inner = {name.rpartition("/")[0] for name in names} | ({INDEX} if _index(file) is not None else set())
    return [name for name in names if name not in inner]


def _dataset(file: h5py.File, key: str) -> h5py.h5d.DatasetID:
    return h5py.h5d.open(file.id, key.encode("utf-8", "surrogateescape"))


def _index(file: h5py.File) -> dict[str, str] | None:
    """AllenNLP's `sentence_to_index`, where the file has it."""
    item = file.get(INDEX)
    return None if item is None or item.dtype.kind == "f" else json.loads(item[0])


class AllennlpSource(Source):
    """A file of this layout: the texts by number where all keys are numbers, else as in the index, or by key."""

    layout = "allennlp"

    def __init__(self, path: str | os.PathLike):
        self._stack = contextlib.ExitStack()
        self._name = os.fspath(path)
        self._file = self._stack.enter_context(open_hdf5(path, "embeddings"))
        with reading(self._name):
            about = self._file.attrs.get(_ABOUT)
            if about is not None:
                about = json.loads(about)
                self.form, self.fingerprint = about["form"], about["fingerprint"]
            self._texts = {key: text for text, key in (_index(self._file) or {}).items()}
            self._keys = _keys(self._file)
        if all(key.isascii() and key.isdecimal() for key in self._keys):
            self._keys.sort(key=int)
        elif sorted(self._texts) == sorted(self._keys):
            self._keys = list(self._texts)

    @cached_property
    def keys(self) -> list[str]:
        return self._keys

    def vectors(self, number: int) -> np.ndarray:
        with reading(self._name):
            dataset = _dataset(self._file, self._keys[number])
            values = np.empty(dataset.shape, dataset.dtype)
            if values.dtype.kind != "f":
                raise ValueError(f"{self._keys[number]!r:.60} is no dataset of floats")
            if values.size:
                dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
            return values

    def text(self, number: int) -> str:
        return self._texts[self._keys[number]]

    def tokens(self, number: int) -> list[str]:
        return self.text(number).split()

    def positions(self, number: int) -> np.ndarray | None:
        with reading(self._name):
            return self._file[self._keys[number]].attrs.get("positions")

    def close(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Errors of HDF5 in the body as `ConfigurationError`; those of its own kind pass."""
    try:
        yield
    except ConfigurationError:
        raise
    except HDF5_ERRORS as error:
        raise ConfigurationError(f"embeddings {name}: expected vectors that can be read, found damage ({error})"
                                 ) from error
