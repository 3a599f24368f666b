"""A full disk is reported with the name of the file that did not fit, and leaves nothing of it."""

import errno

import numpy as np
import pytest

from elmo_fast.embed.layouts.arrays import write_arrays
from elmo_fast.train.checkpoint import copy_vocabulary, write_json
from elmo_fast.train.corpus import make_vocabulary
from tests.support.files import full_disk, names


def arrays(*shape):
    return ((f"name-{number}", np.zeros(shape, np.float32)) for number in range(6))


def vocabulary(path):
    make_vocabulary(str(path.parent / "text"), path)


def copied_vocabulary(path):
    copy_vocabulary(str(path.parent / "text"), path.parent)


@pytest.mark.parametrize("name, write", [
    ("out.npz", lambda path: write_arrays(path, arrays(1000))),
    ("out.npz", lambda path: write_arrays(path, arrays(240))),  # the archive's directory is too much
    ("out.npy", lambda path: write_arrays(path, arrays(1000))),
    ("out.h5", lambda path: write_arrays(path, arrays(1000))),
    ("out.json", lambda path: write_arrays(path.with_suffix(".npy"), ((f"{k:06000}", np.zeros(1)) for k in range(2)))),
    ("vocab.txt", vocabulary), ("vocab.txt", copied_vocabulary),
    ("options.json", lambda path: write_json(path, {"text": "a" * 7000}))])
def test_a_full_disk_names_the_file(tmp_path, name, write):
    (tmp_path / "text").write_text("".join(f"word{number}\n" for number in range(1000)))
    with full_disk(), pytest.raises(OSError, match=f"File too large: '{tmp_path / name}'$") as caught:
        write(tmp_path / name)
    assert caught.value.errno == errno.EFBIG and names(tmp_path) == ["text"]


def test_arrays_come_back(tmp_path):
    values = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    for rows in (values, values.T, values[:0], values.astype(np.float16)):
        write_arrays(tmp_path / "out.npy", ((str(number), row) for number, row in enumerate(rows)))
        found = np.load(tmp_path / "out.npy")
        assert len(found) == len(rows) and (not rows.size or (found.dtype == rows.dtype and (found == rows).all()))
