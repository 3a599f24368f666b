import io
import json

import h5py
import numpy as np
import pytest

from elmo_fast import ConfigurationError
from elmo_fast.embed.files import hdf5_file
from elmo_fast.embed.readers import read_lines, scan
from tests.support.files import full_disk, names

VECTORS = np.arange(6, dtype=np.float32).reshape(2, 3)


def text(content, stream=io.BytesIO):
    """A file as `open(path, encoding="utf-8")` gives it."""
    return io.TextIOWrapper(stream(content), encoding="utf-8")


class Pipe(io.BytesIO):
    """What cannot be rewound."""

    def seekable(self):
        return False


@pytest.mark.parametrize("content, expected", [
    (b"a b\nc\n", [("a b", ["a", "b"]), ("c", ["c"])]),
    (b"a b\nc", [("a b", ["a", "b"]), ("c", ["c"])]),
    (b"a b\r\nc\r\n", [("a b", ["a", "b"]), ("c", ["c"])]),
    (b"  a \t b  \n", [("a \t b", ["a", "b"])]),
    (b"a\n\n  \n", [("a", ["a"]), ("", []), ("", [])]),
    ("a\u00a0b\u3000c\u2028d\n".encode(), [("a\u00a0b\u3000c\u2028d", ["a", "b", "c", "d"])]),
    ("a\u200bb \u00adc\n".encode(), [("a\u200bb \u00adc", ["a\u200bb", "\u00adc"])]),
    (b"a\x00b c\n", [("a\x00b c", ["a\x00b", "c"])]),
    ("\ufeffa b\n\ufeffc\n".encode(), [("a b", ["a", "b"]), ("\ufeffc", ["\ufeffc"])]),
])
def test_lines_and_tokens(content, expected):
    blank = ("", []) in expected
    for file in (text(content), io.StringIO(content.decode()), text(content, Pipe)):
        assert scan(file, blank) == (len(expected) if file.seekable() else None)
        assert list(read_lines(file, blank)) == expected


def test_the_rest_of_a_file_is_read_from_where_it_stands():
    file = text(b"a\nb\nc\n")
    file.readline()
    assert scan(file) == 2 and [line.text for line in read_lines(file)] == ["b", "c"]


UTF_8 = "^input file: expected UTF-8 text, got undecodable bytes"
EMPTY = "^input file: expected one tokenized sentence a line, got an empty file"


@pytest.mark.parametrize("content, allow_blank, by_scan, by_reading", [
    (b"", False, EMPTY, EMPTY), (b"", True, EMPTY, EMPTY), ("\ufeff".encode(), True, EMPTY, EMPTY),
    (b"a\n\nb\n \t\n", False, "got blank lines at indexes 1, 3; remove them, or allow blank lines",
     "got a blank line at index 1; remove it"),
    (b"\n" * 11, False, r"indexes 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, \.\.\.;", "index 0; remove it"),
    *((b"caf\xc3\xa9\n" * lines + b"caf\xe9\n" + b"more\n" * 9000, True, f"{UTF_8} at line index {lines} ", UTF_8)
      for lines in (0, 1, 5000)),
    *(("café .\n".encode(encoding), False, UTF_8, UTF_8) for encoding in ("utf-16", "latin-1")),
])
def test_a_bad_file_is_refused(content, allow_blank, by_scan, by_reading):
    with pytest.raises(ConfigurationError, match=by_scan):
        scan(text(content), allow_blank)
    for stream in (io.BytesIO, Pipe):
        with pytest.raises(ConfigurationError, match=by_reading):
            list(read_lines(text(content, stream), allow_blank))


@pytest.mark.parametrize("content", [b"", b"a\n"])
def test_a_file_opened_as_bytes_is_refused(content):
    for read in (scan, lambda file: list(read_lines(file))):
        with pytest.raises(ConfigurationError, match="expected a file opened as text .*, got one opened for bytes"):
            read(io.BytesIO(content))


def test_datasets_are_float32_and_the_index_is_one_json_string(tmp_path):
    (tmp_path / "o.hdf5").write_text("old")
    with hdf5_file(tmp_path / "o.hdf5") as writer:
        writer.write("0", VECTORS)
        writer.write("1", VECTORS.astype(np.float64)[:0])
        writer.write_index({"caf\u00e9 .": "0", "a / b": "1"})
        assert (tmp_path / "o.hdf5").read_text() == "old"
    with h5py.File(tmp_path / "o.hdf5") as file:
        assert sorted(file) == ["0", "1", "sentence_to_index"]
        assert file["0"][...].tolist() == VECTORS.tolist()
        assert file["1"].shape == (0, 3) and file["0"].dtype == file["1"].dtype == np.float32
        assert file["sentence_to_index"].shape == (1,)
        assert json.loads(file["sentence_to_index"][0]) == {"caf\u00e9 .": "0", "a / b": "1"}


@pytest.mark.parametrize("keys", [["a b"], ["caf\u00e9 \U0001f600"], ["1 / 2"], ["a/b", "a/c"], [".."], ["a ."],
                                  [". a"], ["http://a"], ["/a"], ["w " * 40_000 + "w"], ["sentence_to_index"]])
def test_sentences_as_keys_are_found_again(tmp_path, keys):
    with hdf5_file(tmp_path / "o.hdf5") as writer:
        for key in keys:
            writer.write(key, VECTORS)
    with h5py.File(tmp_path / "o.hdf5") as file:
        assert all(file[key][...].tolist() == VECTORS.tolist() for key in keys)


@pytest.mark.parametrize("expected, keys", [
    *(("different sentences", keys) for keys in (
        ["a", "a"], ["a/b", "a"], ["a//b", "a/b"], ["a", "/a"], ["x", "a/b/c", "a/b"])),
    *(("sentences that HDF5 takes as names", keys) for keys in (
        ["."], ["/"], [""], ["a/"], ["and/or/."], ["x\0y"], ["a", "a/b"], ["a/./b"]))])
def test_a_key_that_is_taken_or_no_name_is_refused(tmp_path, expected, keys):
    with pytest.raises(ConfigurationError) as caught, hdf5_file(tmp_path / "o.hdf5") as writer:
        for key in keys:
            writer.write(key, VECTORS)
    assert str(caught.value).startswith(f"use_sentence_keys: expected {expected}, got {keys[-1]!r}")
    assert str(caught.value).endswith("line numbers always work")
    assert names(tmp_path) == []


def test_a_place_for_no_file_is_refused_before_any_work(tmp_path):
    refused = pytest.raises(FileNotFoundError, match="^output file: expected an existing directory, found none at")
    with refused, hdf5_file(tmp_path / "no" / "o.hdf5"):
        pytest.fail("the body ran")


def test_a_full_disk_is_found_at_once_and_leaves_nothing(tmp_path):
    written = 0
    with full_disk(50_000), pytest.raises(OSError) as caught, hdf5_file(tmp_path / "o.hdf5") as writer:
        for written in range(1000):
            writer.write(str(written), np.zeros((3, 7, 8)))
    assert written < 75 and caught.value.filename == str(tmp_path / "o.hdf5") and names(tmp_path) == []
