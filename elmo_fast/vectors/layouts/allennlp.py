"""HDF5 with one dataset per text: AllenNLP's, with `sentence_to_index`, and SeqVec's, with identifiers as keys."""

import contextlib
import functools
import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np

from elmo_fast.errors import ConfigurationError
from elmo_fast.files import stops
from elmo_fast.files.atomic import DeferredErrorFile, atomic_path, check_target
from elmo_fast.files.hdf5 import MOST_DEPTH, attribute_of, limit_cache, new_hdf5, open_hdf5
from elmo_fast.files.json import parse_json
from elmo_fast.vectors.layouts.embeddings import Embeddings
from elmo_fast.vectors.layouts.sentence_index import INDEX, Index, has_index, read_index
from elmo_fast.vectors.layouts.text_vectors import TextVectors, narrowed
from elmo_fast.vectors.spec import OutputSpec

_WEIGHTS = "CNN", "char_embed", "RNN_0"
_ABOUT = "elmo_fast"  # attribute: JSON of the form and the fingerprint
_NAME = "original_id"  # attribute of a dataset in files of bio_embeddings: the name in the FASTA file
_TOKENS = "tokens"  # attribute of a text's vectors: JSON of its tokens where splitting at whitespace gives others
# HDF5 stores object headers in separate blocks of this size, so the vectors between the blocks are contiguous.
_OPTIONS = {"meta_block_size": 1 << 16}
_MOST_JSON = 2**31 - 1  # bytes of an index: the longest string type of NumPy

logger = logging.getLogger(__name__)


class Hdf5Writer:
    """Writes one dataset per key into an open file. With `sentences`, errors speak of sentences, not of identifiers.

    HDF5 allocates a dataset; its values are written to the file directly, in half the time of `Group.create_dataset`.
    """

    def __init__(self, file: h5py.File, disk: DeferredErrorFile, sentences: bool = False):
        self._file, self._disk, self._sentences = file, disk, sentences
        self._type = functools.lru_cache(8)(functools.partial(h5py.h5t.py_create, logical=True))
        self._space = functools.lru_cache(1 << 12)(h5py.h5s.create_simple)
        self._properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        self._properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        self._properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        self._properties.set_obj_track_times(False)
        self._links = {}
        for name, encoding in (("ascii", h5py.h5t.CSET_ASCII), ("utf-8", h5py.h5t.CSET_UTF8)):
            self._links[name] = h5py.h5p.create(h5py.h5p.LINK_CREATE)
            self._links[name].set_char_encoding(encoding)
            self._links[name].set_create_intermediate_group(True)

    def write(self, key: str, values: np.ndarray) -> h5py.h5d.DatasetID:
        """Add a dataset; `ConfigurationError` when the key exists or is not a valid name in HDF5."""
        values = np.ascontiguousarray(values)
        try:
            if "\0" in key or not key.rpartition("/")[2] or "." in key.split("/"):
                raise ValueError("HDF5 would cut the name or read it as a group's")
            if key.count("/") > MOST_DEPTH:
                raise ValueError(f"it names more than {MOST_DEPTH} nested groups")
            links = self._links["ascii" if key.isascii() else "utf-8"]
            dataset = h5py.h5d.create(self._file.id, key.encode(), self._type(values.dtype), self._space(values.shape),
                                      self._properties, links)
        except (ValueError, TypeError, KeyError) as error:
            raise self._refused(key, error) from error
        if values.size:
            self._disk.seek(dataset.get_offset())
            self._disk.write(values)
        self._check()
        return dataset

    def copy(self, source: h5py.File, link: bytes) -> None:
        """Copy a dataset and its attributes from another file; errors as in `write`."""
        try:
            links = self._links["ascii" if link.isascii() else "utf-8"]
            h5py.h5o.copy(source.id, link, self._file.id, link, None, links)
        except (ValueError, KeyError, RuntimeError) as error:
            raise self._refused(link.decode("utf-8", "surrogateescape"), error) from error
        self._check()

    def _check(self) -> None:
        """Raise the error of a failed write, or a requested stop."""
        self._disk.check()
        stops.check()

    def write_index(self, index: Index) -> None:
        """Add AllenNLP's `sentence_to_index`: a JSON string that maps every sentence to its key."""
        if INDEX in self._file:
            raise ConfigurationError(f"output: expected keys other than {INDEX}, which AllenNLP's layout reserves")
        content = index.json()
        if len(content) > _MOST_JSON:
            logger.warning("%s has no %s: HDF5 stores strings of at most 2 GiB, the index has %.1f GiB",
                           self._disk.target, INDEX, len(content) / 2**30)
            return
        self.write(INDEX, np.array([content]))

    def _refused(self, key: str, error: Exception) -> ConfigurationError:
        expected, remedy = "output: expected identifiers", ".npz takes any"
        if self._sentences:
            expected, remedy = "use_sentence_keys: expected sentences", "line numbers always work"
        return ConfigurationError(f"{expected} that are different and valid names in HDF5, got {key!r:.60} ({error}) "
                                  f"in {self._disk.target}; {remedy}")


@contextlib.contextmanager
def hdf5_file(path: str | os.PathLike) -> Iterator[Hdf5Writer]:
    """A writer of a file that is renamed to `path` when the body succeeds; `OSError` if it cannot be written."""
    check_target(path, "output file")
    with atomic_path(path) as part, new_hdf5(part, path, **_OPTIONS) as (file, disk):
        yield Hdf5Writer(file, disk, sentences=True)


class AllennlpWriter:
    """Writes texts as AllenNLP's `ElmoEmbedder` does; with `original_ids` bio_embeddings' attribute is the text."""

    def __init__(self, writer: Hdf5Writer, form: OutputSpec, use_sentence_keys: bool, index: Index | None,
                 original_ids: bool = False):
        self._writer, self._dtype = writer, np.dtype(form.dtype)
        self._sentence_keys, self._index, self._original_ids = use_sentence_keys, index, original_ids

    def write(self, item: TextVectors) -> None:
        key = item.text if self._sentence_keys else item.key
        dataset = self._writer.write(key, narrowed(item, self._dtype))
        if self._original_ids:
            h5py.Dataset(dataset).attrs[_NAME] = item.text
        if item.positions is not None:
            try:
                h5py.Dataset(dataset).attrs["positions"] = item.positions
            except (OSError, RuntimeError) as error:
                raise ConfigurationError(f"targets: expected at most 8,000 target tokens per text for AllenNLP's "
                                         f"layout, got {len(item.positions)} in text {item.key}; parquet has no limit"
                                         ) from error
        if self._index is not None:
            self._index.add(item.text, key)
            if (tokens := list(item.tokens)) != item.text.split():
                h5py.Dataset(dataset).attrs[_TOKENS] = json.dumps(tokens)


@contextlib.contextmanager
def segment(path: Path, target, form: OutputSpec, *, fingerprint: dict | None = None,
            use_sentence_keys: bool = False, forget_sentences: bool = False, original_ids: bool = False,
            **_) -> Iterator[AllennlpWriter]:
    """A writer of a file at `path`; its errors name `target`."""
    indexed = not (forget_sentences or use_sentence_keys)
    with new_hdf5(path, target, **_OPTIONS) as (file, disk):
        file.attrs[_ABOUT] = json.dumps({"form": form.describe(), "fingerprint": fingerprint})
        writer, index = Hdf5Writer(file, disk, sentences=use_sentence_keys), Index()
        yield AllennlpWriter(writer, form, use_sentence_keys, index if indexed else None, original_ids)
        if indexed:
            writer.write_index(index)


def join(segments: Sequence[Path], part: Path, target, form: OutputSpec, *, use_sentence_keys: bool = False,
         forget_sentences: bool = False, **_) -> None:
    """Join segments."""
    indexed = not (forget_sentences or use_sentence_keys)
    with new_hdf5(part, target, **_OPTIONS) as (file, disk):
        writer, index = Hdf5Writer(file, disk, sentences=use_sentence_keys), Index()
        for path in segments:
            with h5py.File(path, "r") as source:
                limit_cache(source)
                file.attrs[_ABOUT] = source.attrs[_ABOUT]
                for link in _links(source):
                    is_index = indexed and link == INDEX.encode()
                    if not is_index and isinstance(h5py.h5o.open(source.id, link), h5py.h5d.DatasetID):
                        writer.copy(source, link)
                if indexed:
                    index.extend(source[INDEX][0])
        if indexed:
            writer.write_index(index)


def _keys(file: h5py.File) -> list[str]:
    """Paths of all datasets except AllenNLP's index, sorted by name. A path with children is a group."""
    names = [link.decode("utf-8", "surrogateescape") for link in _links(file)]
    inner = {name.rpartition("/")[0] for name in names} | ({INDEX} if has_index(file) else set())
    return [name for name in names if name not in inner]


def _links(file: h5py.File) -> list[bytes]:
    links: list[bytes] = []
    file.id.links.visit(links.append)
    return links


def _check_content(file: h5py.File, where: str) -> None:
    """Raise `ConfigurationError` for this project's other HDF5 files, some of which have an attribute `format`."""
    if (format_name := attribute_of(file, "format", where, str)) is not None:
        raise ConfigurationError(f"{where}: expected vectors of texts, found a file of the format {format_name:.40}")
    if "embedding" in file:
        raise ConfigurationError(f"{where}: expected vectors of texts, found a table of token vectors (elmo-fast "
                                 "cache, or bilm-tf's): open it with TokenTable.open")
    if any(name in file for name in _WEIGHTS):
        raise ConfigurationError(f"{where}: expected vectors of texts, found the weights of a model")


class AllennlpSource(Embeddings):
    """A file of this layout. Texts are sorted by number if all keys are numbers, else as in the index, else by key.

    In files of bio_embeddings, `keys` are the names in the FASTA file, which are attributes of the datasets.
    """

    layout = "allennlp"
    _expected = "vectors that can be read, found damage"

    def __init__(self, path: str | os.PathLike):
        self._stack = contextlib.ExitStack()
        self._name = os.fspath(path)
        self._file = self._stack.enter_context(open_hdf5(path, "embeddings"))
        with self._reading():
            where = f"embeddings {self._name}"
            about = attribute_of(self._file, _ABOUT, where, str)
            if about is None:
                _check_content(self._file, where)
            else:
                self._describe(parse_json(about, f"{where}: attribute {_ABOUT}"))
            self._texts = read_index(self._file, where) if has_index(self._file) else {}
            self.keys = _keys(self._file)
        if all(key.isascii() and key.isdecimal() for key in self.keys):
            self.keys.sort(key=int)
        elif sorted(self._texts) == sorted(self.keys):
            self.keys = list(self._texts)
        self._paths = self.keys
        with self._reading():
            if self.keys and about is None and not self._texts and _NAME in self._attributes(0):
                self.keys = [str(self._attributes(number).get(_NAME, path)) for number, path in enumerate(self._paths)]

    def _path(self, number: int) -> bytes:
        return self._paths[number].encode("utf-8", "surrogateescape")

    def _attributes(self, number: int) -> h5py.AttributeManager:
        return self._file[self._path(number)].attrs

    def _vectors(self, number: int) -> np.ndarray:
        with self._reading():
            dataset = h5py.h5d.open(self._file.id, self._path(number))
            if not isinstance(dataset, h5py.h5d.DatasetID) or dataset.dtype.kind != "f" or dataset.shape is None:
                raise ValueError(f"{self.keys[number]!r:.60} is not a dataset of floats")
            values = np.empty(dataset.shape, dataset.dtype)
            if values.size:
                dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
            return values

    def _text(self, number: int) -> str:
        return self._texts[self._paths[number]]

    def _tokens(self, number: int) -> list[str]:
        words = self._text(number).split()
        with self._reading():
            dataset = self._file[self._path(number)]
            where = f"embeddings {self._name}: {self.keys[number]:.80}"
            stored = attribute_of(dataset, _TOKENS, where, str)
            tokens = words if stored is None else parse_json(stored, f"{where}: attribute {_TOKENS}")
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise ConfigurationError(f"{where}: attribute {_TOKENS}: expected a list of strings, found {tokens!r:.80}")
        return tokens

    def _positions(self, number: int) -> np.ndarray | None:
        with self._reading():
            attributes = self._attributes(number)
            if "positions" not in attributes:
                return None
            kind, where = attributes.get_id("positions").dtype, f"embeddings {self._name}: {self.keys[number]:.80}"
            positions = attributes["positions"] if kind.kind == "i" else None
            if np.ndim(positions) != 1 or (positions < 0).any():
                raise ConfigurationError(f"{where}: attribute positions: expected integers of at least 0, found "
                                         f"{kind!s:.80}")
            return positions

    def close(self) -> None:
        super().close()
        self._stack.close()
