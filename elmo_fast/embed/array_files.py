"""Arrays by name in `.h5`, `.npz` and `.npy` files, written as they come; a file takes its name only when it is whole."""

import json
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.atomic_file import atomic_hdf5, atomic_path, check_target

SUFFIXES = (".h5", ".npz", ".npy")


def check_array_file(path: str | os.PathLike, one_vector_each: bool) -> None:
    """Raise before any work when `write_arrays` could not write there: `ConfigurationError` or `OSError`."""
    suffix = Path(path).suffix
    if suffix not in SUFFIXES:
        raise ConfigurationError(f"output: expected a file that ends in {', '.join(SUFFIXES)}, got {os.fspath(path)}")
    if suffix == ".npy" and not one_vector_each:
        raise ConfigurationError("output: expected .h5 or .npz for arrays of different lengths, got .npy, which is for "
                                 "one vector each (pooled; --protein)")
    check_target(path, "output")
    if suffix == ".npy":
        check_target(Path(path).with_suffix(".json"), "output")


def write_arrays(path: str | os.PathLike, arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write named arrays; `.npy` stacks them and puts their names, in order, into a `.json` beside it."""
    {".h5": _write_h5, ".npz": _write_npz, ".npy": _write_npy}[Path(path).suffix](path, arrays)


def _write_h5(path, arrays) -> None:
    with atomic_hdf5(path) as (file, disk):
        for name, values in arrays:
            try:
                file.create_dataset(name, data=values)
            except (ValueError, TypeError) as error:
                raise ConfigurationError(f"output: expected identifiers that HDF5 takes as names, got {name!r:.60} "
                                         f"({error}); .npz takes any") from error
            disk.check()


def _write_npz(path, arrays) -> None:
    with atomic_path(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        for name, values in arrays:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(values), allow_pickle=False)


def _write_npy(path, arrays) -> None:
    names, vectors = [], []
    for name, values in arrays:
        names.append(name)
        vectors.append(values)
    with atomic_path(Path(path).with_suffix(".json")) as part_of_names, atomic_path(path) as part:
        part_of_names.write_text(json.dumps(names), encoding="utf-8")
        with open(part, "wb") as file:
            np.save(file, np.asarray(vectors), allow_pickle=False)
