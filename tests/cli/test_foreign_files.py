"""Files of every kind in the place of every file that a command reads: the result, or one line that names the file."""

import gzip
import io
import lzma
import os
import pickle
import zipfile

import h5py
import numpy as np
import pytest
import torch

from elmo_fast.train.setup import start_or_resume
from tests.support.files import names, paths, run, unix_socket, write_model
from tests.support.training import QUIET, corpus_arguments


def saved(write, *values, **options):
    """The bytes that a function writes into a file."""
    content = io.BytesIO()
    write(content, *values, **options)
    return content.getvalue()


def of_torch(value):
    return saved(lambda file: torch.save(value, file))


def hdf5(**datasets):
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for name, values in datasets.items():
            file[name] = values
    return content.getvalue()


def archive(**members):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, member in members.items():
            file.writestr(name.replace("_", "."), member)
    return content.getvalue()


HEADER = b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<f4', 'shape': (3, ".ljust(117) + b"\n" + bytes(96)
KINDS = {
    "empty": b"", "newline": b"\n", "text": b"The cat sat .\n" * 300, "latin1": "caf\xe9 \xe9\n".encode("latin1"),
    "nul": b"a b\0c\n\0\n", "bytes": bytes(range(256)) * 40, "object": b"{}", "list": b"[]", "deep": b"[" * 100_000,
    "number": b'{"lstm": {"dim": 1' + b"0" * 5000 + b"}}", "HDF5": hdf5(x=np.arange(6.0)),
    "HDF5 of integers": hdf5(**{"0": np.arange(6)}), "HDF5 of a scalar": hdf5(embedding=3.0),
    "HDF5 cut": hdf5(x=np.arange(6.0))[:900], "npy": saved(np.save, np.ones((3, 4), np.float32)),
    "npy of objects": saved(np.save, np.array([{}, []], object), allow_pickle=True), "npy header": HEADER,
    "npz": saved(np.savez, a=np.ones((2, 8), np.float32)), "npz of objects": saved(np.savez, a=np.array([None, 1])),
    "npz header": archive(a_npy=HEADER), "pickle": pickle.dumps({"a": 1}), "old pickle": pickle.dumps([1], 0),
    "tensors": of_torch({"a": torch.ones(3), 3: "x"}), "tensor": of_torch(torch.ones(3)),
    "tensors cut": of_torch({"a": torch.ones(300)})[:900], "ZIP": archive(a_txt=b"a"), "ZIP of none": archive(),
    "gzip": gzip.compress(b"The cat sat .\n" * 300), "gzip cut": gzip.compress(os.urandom(3000))[:900],
    "xz cut": lzma.compress(os.urandom(3000))[:900], "PNG": b"\x89PNG\r\n\x1a\n" + bytes(100),
}


SPECIAL = {"nothing": lambda path: None, "directory": os.mkdir, "loop": lambda path: path.symlink_to(path.name),
           "socket": unix_socket}
MODEL, LM = ("--model", "model"), ("--model", "lm")
TRAIN = ("train", "out", "--quiet", "--max-steps", "1", "--batch-size", "2", "--unroll-steps", "2", "--negatives", "4")
TEXT, VOCAB, OPTIONS = (("--train", "corpus/text/part-0.txt"), ("--vocab", "corpus/text/vocab.txt"),
                        ("--options-file", "corpus/options.json"))
# FILE with its suffix stands for the file.
COMMANDS = [
    *(("embed", f"FILE{suffix}", "out.h5", *MODEL, "--quiet") for suffix in (
        ".txt", ".txt.gz", ".txt.xz", ".csv", ".jsonl", ".conllu", ".fasta")),
    ("embed", "in.txt", "out.h5", *MODEL, "--quiet", "--targets", "FILE.txt"),
    ("embed", "in.txt", "out.h5", *MODEL, "--quiet", "--token-table", "FILE.h5"),
    ("cache", "FILE.txt", "out.h5", *MODEL, "--quiet"), ("cache", "FILE.txt", "out.h5", *MODEL, "--quiet", "--corpus"),
    ("seqvec", "-i", "FILE.fasta", "-o", "out.h5", *MODEL, "--cpu", "--silent", "--id", "0"),
    ("info", "FILE.zip"), ("info", "--options-file", "FILE.json", "--weight-file", "model/weights.hdf5"),
    ("info", "--options-file", "model/options.json", "--weight-file", "FILE.hdf5"),
    ("info", "--options-file", "model/options.json", "--weight-file", "weights.th=FILE"),
    ("nearest", "FILE.txt", "--word", "cat", *MODEL), ("nearest", "FILE.h5", "--word", "cat", *MODEL),
    ("score", "FILE.txt", *LM), ("score", "in.txt", *LM, "--softmax-file", "FILE.hdf5"),
    ("score", "in.txt", *LM, "--vocab-file", "FILE.txt"), ("vocab", "FILE.txt", "out.txt"),
    (*TRAIN, "--train", "FILE.txt", *VOCAB, *OPTIONS), (*TRAIN, *TEXT, "--vocab", "FILE.txt", *OPTIONS),
    (*TRAIN, *TEXT, *VOCAB, "--options-file", "FILE.json"), (*TRAIN, *TEXT, *VOCAB, "--from-model", "FILE.zip"),
    (*TRAIN, *TEXT, *VOCAB, "--from-options", "model/options.json", "--from-weights", "FILE.hdf5"),
    (*TRAIN, *TEXT, *VOCAB, "--from-model", "lm", "--from-softmax", "FILE.hdf5"),
    ("perplexity", "run", "FILE.txt", "--batch-size", "1", "--quiet"),
    ("perplexity", "lm", "in.txt", "--vocab", "FILE.txt"),
    ("perplexity", "run", "in.txt", "--checkpoint", "FILE.pt"), ("export", "run", "out", "--checkpoint", "FILE.pt"),
    ("export", "out", "--from-module", "FILE.pt", "--options-file", "model/options.json"),
]
ABOUT_OTHERS = ("expected a word that the corpus has", "expected at most")  # a text is read, and too short


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    write_model(folder / "model")
    (folder / "in.txt").write_text("a b\nc\n")
    start_or_resume(folder / "run", **corpus_arguments(folder / "corpus"), **QUIET, max_steps=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        from elmo_fast.train.export import export_run

        export_run("run", "lm", softmax=True)
    return folder


@pytest.fixture
def folder(inputs, tmp_path, monkeypatch):
    for path in inputs.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.setenv("ELMO_FAST_CACHE", os.fspath(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def given(command, kind, folder):
    """The command with a file of a kind in its place, and the file's name."""
    word = next(word for word in command if "FILE" in word)
    name = word.partition("=")[0] if "=" in word else word.replace("FILE", "foreign")
    if kind in KINDS:
        (folder / name).write_bytes(KINDS[kind])
    else:
        SPECIAL[kind](folder / name)
    return [name if part == word else part for part in command], name


def read_or_refused(capsys, folder, command, kind):
    arguments, name = given(command, kind, folder)
    before = set(names(folder)) | {"cache"}
    status, _, errors = run(capsys, *arguments)
    lines = errors.splitlines()
    if status:
        assert status == 2 and len(lines) == 1, errors
        assert name in errors or any(words in errors for words in ABOUT_OTHERS), errors
        assert len(errors) < 700 and set(names(folder)) <= before


@pytest.mark.long
@pytest.mark.parametrize("kind", [*KINDS, *SPECIAL])
def test_every_command_reads_or_refuses_a_foreign_file(capsys, folder, kind):
    for number, command in enumerate(COMMANDS):
        place = folder / str(number)
        place.mkdir()
        for path in folder.iterdir():
            if path.is_symlink():
                (place / path.name).symlink_to(path.resolve())
        os.chdir(place)
        read_or_refused(capsys, place, command, kind)


@pytest.mark.parametrize("command, kind, message", [
    ("embed FILE.txt out.h5 --model model", "loop", "symbolic links: 'foreign.txt'"),
    ("embed FILE.txt out.h5 --model model", "socket", "No such device or address: 'foreign.txt'"),
    ("embed in.txt out.h5 --model model --token-table FILE.h5", "HDF5 of a scalar", "foreign.h5: embedding: expected"),
    *((f"info FILE{suffix}", kind, "a file of vectors or other arrays; elmo_fast.open_embeddings reads, ")
      for suffix, kind in ((".h5", "HDF5"), (".npy", "npy"), (".npz", "npz"))),
    ("info FILE.zip", "npz header",
     "foreign.zip: expected options.json and *.hdf5, *.h5 or *.safetensors inside, found"),
    ("score in.txt --model lm --vocab-file FILE.txt", "text",
     "vocabulary foreign.txt: expected the 28 words of the softmax, got 300"),
    ("vocab FILE.txt out.txt", "newline", "inputs: expected words, found none in foreign.txt"),
    ("perplexity run in.txt --checkpoint FILE.pt", "old pickle",
     "checkpoint foreign.pt: expected a checkpoint of elmo-fast train, got another"),
    ("export out --from-module FILE.pt --options-file model/options.json", "pickle",
     "--from-module foreign.pt: expected tensors written by torch.save, got another")])
def test_a_foreign_file_is_refused_in_one_line(capsys, folder, command, kind, message):
    """A case of each cause; the long tier has all."""
    arguments, _ = given(command.split(), kind, folder)
    status, _, errors = run(capsys, *arguments)
    assert status == 2 and errors.count("\n") == 1 and message in errors, errors


def test_nothing_ran_in_a_pickle(capsys, folder):
    class Program:
        def __reduce__(self):
            return os.mkdir, ("ran",)

    for write in (pickle.dump, lambda value, file: torch.save(value, file)):
        with open("foreign.pt", "wb") as file:
            write(Program(), file)
        for command in (("export", "run", "out", "--checkpoint", "foreign.pt"),
                        ("export", "out", "--from-module", "foreign.pt", "--options-file", paths(folder / "model")[0])):
            assert run(capsys, *command)[0] == 2
    assert "ran" not in names(folder)
