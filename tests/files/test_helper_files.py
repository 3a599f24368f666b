"""Whatever lies at the name of a helper file of an output, each command ends in one line and leaves it as it is."""

import gzip
import os
import re
import shutil
import signal
import stat

import pytest
import torch

from elmo_fast import BiLm
from elmo_fast.train.setup import start_or_resume
from tests.support.files import full_disk, paths, run, unix_socket, write_model
from tests.support.training import QUIET, corpus_arguments

NOTES = "my notes\n"
SECONDS = 60  # a command that waited for a pipe would wait for ever


def link(path, mine):
    mine.write_text(NOTES)
    path.symlink_to(mine)


def link_to_nothing(path, mine):
    path.symlink_to(mine)


def directory(path, _):
    path.mkdir()
    (path / "mine").write_text(NOTES)


def pipe(path, _):
    os.mkfifo(path)


def device(path, _):
    """A device of its own: a superuser's program that replaces a file by its name would replace /dev/null too."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")


def link_to(make):
    def make_link(path, mine):
        make(mine, None)
        path.symlink_to(mine)

    make_link.__name__ = f"link_to_a_{make.__name__}"
    return make_link


link_to_a_directory, link_to_a_pipe, link_to_a_device = map(link_to, (directory, pipe, device))


def text(path, _):
    path.write_text(NOTES)


def second_name(path, mine):
    mine.touch()
    os.link(mine, path)


def unreadable(path, _):
    path.write_text(NOTES)
    path.chmod(0)


KINDS = (link, link_to_nothing, directory, link_to_a_directory, pipe, link_to_a_pipe, device, link_to_a_device, text,
         unix_socket, unreadable)
QUICK = (link, link_to_nothing, directory, pipe, text, unix_socket, second_name)
EMBED = ("embed", "in.txt", "o.h5", "--model", "model", "--quiet")
POOLED = ("embed", "in.txt", "o.npy", "--model", "model", "--quiet", "--average", "--pool", "mean")
SEQVEC = ("seqvec", "-i", "in.fasta", "-o", "o.h5", "--model", "model", "--cpu", "--silent", "--id", "0")
TRAIN = ("train", "o", "--train", "corpus/text/part-*.txt", "--vocab", "corpus/text/vocab.txt", "--quiet")
COMMANDS = {
    EMBED: ("o.h5.lock", "o.h5.part", "o.h5.part/progress.npz", "o.h5.part/progress.npz.new", "o.h5.part/parts"),
    (*EMBED, "--resume"): ("o.h5.part", "o.h5.part/progress.npz"),
    POOLED: ("o.npy.lock", "o.json"),
    ("embed", "in.txt", "o", "--layout", "parquet", "--model", "model", "--quiet"): ("o", "o.lock", "o.part"),
    ("cache", "words.txt", "o.h5", "--model", "model", "--quiet"): ("o.h5.lock",),
    SEQVEC: ("o.h5.lock", "o.h5.part", "o.h5.part/progress.npz"),
    ("vocab", "in.txt", "o.txt"): ("o.txt.lock",),
    TRAIN: ("o", "o.lock", *(f"o/{name}" for name in (
        "options.json", "vocab.txt", "run.json", "log.jsonl", "best.pt", "loss.png", "checkpoints",
        "checkpoints/step-00000000.pt", "checkpoints/step-00000002.pt"))),
    ("export", "run", "o", "--softmax"): ("o.lock", *(f"o/{name}" for name in (
        "options.json", "weights.hdf5", "vocab.txt", "softmax.hdf5"))),
    ("compare", "a", "b", "--model", "model", "-o", "o.html"): ("o.html.lock",),
    ("nearest", "in.txt", "--word", "a", "--model", "model", "--save", "o.h5"): ("o.h5.lock",),
}
# An output itself may be a link, which is followed, or an old file, which is replaced.
OUTPUTS = {EMBED: "o.h5", POOLED: "o.npy", SEQVEC: "o.h5", ("vocab", "in.txt", "o.txt"): "o.txt",
           ("cache", "words.txt", "o.h5", "--model", "model", "--quiet"): "o.h5",
           ("compare", "a", "b", "--model", "model", "-o", "o.html"): "o.html"}
OF_OUTPUTS = directory, link_to_a_directory, pipe, link_to_a_pipe, device, link_to_a_device, unix_socket


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    write_model(folder / "model")
    (folder / "in.txt").write_text("a b\nc\n")
    (folder / "in.fasta").write_text(">p|1\nMK\n")
    (folder / "words.txt").write_text("<S>\n</S>\n<UNK>\na\n")
    shutil.make_archive(os.fspath(folder / "model"), "zip", folder / "model")
    torch.save(BiLm.from_files(*paths(folder / "model")).state_dict(), folder / "module.pt")
    start_or_resume(folder / "run", **corpus_arguments(folder / "corpus"), **QUIET, max_steps=1)
    (folder / "compressed.txt.gz").write_bytes(gzip.compress(b"a b\n" * 500))
    return folder


@pytest.fixture
def folder(request, inputs, tmp_path, monkeypatch):
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if not {"parquet", "o.arrow"}.isdisjoint(parameters.get("command", ())):
        pytest.importorskip("pyarrow")
    for path in inputs.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def described(folder):
    """Kind and content of every file of the user."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        content = os.readlink(path) if stat.S_ISLNK(mode) else path.read_bytes() if stat.S_ISREG(mode) else None
        found[path.relative_to(folder).as_posix()] = mode, content
    return found


def refused(capsys, folder, command, place, make):
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path, folder / "mine")
    before = described(folder)
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail(f"{command[0]} waits for {place}"))
    signal.alarm(SECONDS)
    try:
        status, out, errors = run(capsys, *command)
    finally:
        signal.alarm(0)
    assert (status, out, errors.count("\n")) == (2, "", 1), errors
    assert place == "o" or any(part in errors for part in place.split("/") if part != "o"), errors
    assert described(folder) == before


def cases(commands, kinds):
    return [pytest.param(command, place, make, id=f"{command[0]}-{place}-{make.__name__}")
            for command, places in commands.items() for place in ([places] if isinstance(places, str) else places)
            for make in kinds]


@pytest.mark.long
@pytest.mark.parametrize("command, place, make", [*cases(COMMANDS, KINDS), *cases(OUTPUTS, OF_OUTPUTS)])
def test_a_stranger_at_the_name_of_a_file_is_refused_and_stays(capsys, folder, command, place, make):
    is_made = place in ("o", "o/checkpoints") and make in (directory, link_to_a_directory) and command[0] == "train"
    if is_made or (place == "o.h5.part/parts" and make is directory):
        pytest.skip("a directory there is no stranger")
    refused(capsys, folder, command, place, make)


@pytest.mark.parametrize("command, place, make", [
    *((EMBED, "o.h5.lock", make) for make in QUICK), *((EMBED, "o.h5.part", make) for make in QUICK[:-1]),
    (EMBED, "o.h5.part/parts", pipe), *((EMBED, f"o.h5.part/{name}", text) for name in (
        "progress.npz.new", "parts/00000.h5", "parts/joined", "parts/00000.h5.json")),
    (POOLED, "o.json", link), (TRAIN, "o/options.json", link_to_a_device), (TRAIN, "o/vocab.txt", text),
    (TRAIN, "o/checkpoints", text), (("export", "run", "o", "--softmax"), "o/vocab.txt", text)])
def test_a_stranger_is_refused_and_stays(capsys, folder, command, place, make):
    """A case of each cause; the long tier has all."""
    refused(capsys, folder, command, place, make)


def test_a_start_that_was_killed_is_repeated(capsys, folder, inputs):
    """It has made the directory of checkpoints, the vocabulary and the options."""
    command = *TRAIN, "--options-file", "corpus/options.json", "--max-steps", "1"
    (folder / "o" / "checkpoints").mkdir(parents=True)
    for name in ("vocab.txt", "options.json"):
        shutil.copy(inputs / "run" / name, folder / "o" / name)
    assert run(capsys, *command)[0] == 0
    assert (folder / "o" / "run.json").exists()


NEAREST = ("nearest", "corpus/text/part-0.txt", "--word", "kata", "--model", "model")
WRITERS = {
    EMBED: "o.h5", POOLED: "o.(npy|json)", SEQVEC: "o.h5", ("vocab", "in.txt", "o.txt"): "o.txt",
    ("embed", "in.txt", "o", "--layout", "parquet", "--model", "model", "--quiet"): "o",
    ("embed", "in.txt", "o.arrow", "--model", "model", "--quiet"): "o.arrow",
    ("embed", "in.txt", "o.npz", "--model", "model", "--quiet"): "o.npz",
    ("cache", "words.txt", "o.h5", "--model", "model", "--quiet"): "o.h5",
    (*TRAIN, "--options-file", "corpus/options.json", "--max-steps", "1"): "o",
    (*TRAIN[:3], "compressed.txt.gz", *TRAIN[4:], "--options-file", "corpus/options.json", "--max-steps", "1"): "o",
    ("export", "run", "o", "--softmax"): "o",
    ("export", "o", "--from-module", "module.pt", "--options-file", "model/options.json"): "o",
    ("compare", "a", "b", "--model", "model", "-o", "o.html"): "o.html",
    ("compare", "a", "b", "--model", "model", "-o", "o.png"): "o.png",
    (*NEAREST, "--save", "o.h5"): "o.h5", (*NEAREST, "-o", "o.txt"): "o.txt",
    ("embed", "in.txt", "o.h5", "--model", "model.zip", "--quiet"): "cache",
    ("bench", "--model", "model", "--seconds", "1", "--json", "o.json"): "o.json",
}


@pytest.mark.long
@pytest.mark.parametrize("size", [0, 1, 900, 5000])
@pytest.mark.parametrize("command, name", WRITERS.items(), ids=str)
def test_a_failed_write_names_its_file_and_the_reason(capsys, folder, monkeypatch, command, name, size):
    """On a disk that takes no file of more than `size` bytes; a file that fits is written."""
    monkeypatch.setenv("ELMO_FAST_CACHE", os.fspath(folder / "cache"))
    with full_disk(size):
        status, _, errors = run(capsys, *command)
    if status == 0 and size:
        return
    assert status == 1 and errors.count("\n") == 1, errors
    assert re.search(rf"File too large.*'(.*/)?{name}(\.elmo-\w+\.part)?(/.*)?'$", errors.strip()), errors
