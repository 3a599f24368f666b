"""Local paths, archives and layouts of models: `~`, `file:` URLs, tars, bio_embeddings' names, refusals."""

import gzip
import io
import os
import subprocess
import tarfile

import numpy as np
import pytest
import torch

import elmo_fast
from elmo_fast import ConfigurationError
from elmo_fast.arguments import check_path, local_path
from elmo_fast.compat.seqvec import get_elmo_model
from elmo_fast.nn.bilm import BiLm
from elmo_fast.weights.sources import find_model
from tests.support.files import names, paths, run, write_model
from tests.support.sources import assert_is, contents, left

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with a model and texts; the working directory is elsewhere."""
    folder, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    write_model(folder / "my model")
    elsewhere.mkdir()
    for name, text in {"vocab.txt": "<S>\n</S>\n<UNK>\na\nb\n", "a.txt": "a b a\n", "p.fasta": ">P|1\nMKV\n"}.items():
        (folder / name).write_text(text)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(elsewhere)
    yield folder
    assert names(elsewhere) == []  # no file or directory named ~


@pytest.mark.parametrize("path, expected", [
    ("~/a", "/h/a"), ("~", "/h"), ("~/a b/", "/h/a b/"), ("a/~/b", "a/~/b"), ("file:///a%20b/c", "/a b/c"),
    ("file://localhost/a", "/a"), ("file:/a", "/a"), ("file://~/a", "/h/a"), ("https://x/~y", "https://x/~y"),
    ("zip://a::file:///b", "zip://a::file:///b"), ("~nobody-here/a", "~nobody-here/a")])
def test_a_local_path(monkeypatch, path, expected):
    monkeypatch.setenv("HOME", "/h")
    assert local_path(path) == check_path("model", path) == expected


@pytest.mark.parametrize("value", [None, 3, b"a", "a\0b", ["a"]])
def test_other_types_than_paths_are_refused(value):
    with pytest.raises(ValueError, match="^model: expected a path or URL, got "):
        check_path("model", value)


@pytest.mark.parametrize("command", [
    ["embed", "~/a.txt", "~/o.h5", "--top", "--quiet", "--model=~/my model", "--targets=~/vocab.txt"],
    ["embed", "~/a.txt", "~/o.h5", "--top", "--quiet", "--options-file=~/my model/options.json",
     "--weight-file=~/my model/weights.hdf5"],
    ["cache", "~/vocab.txt", "~/o.h5", "--quiet", "--model=~/my model"],
    ["info", "~/my model"], ["vocab", "~/a.txt", "~/o.h5"], ["nearest", "~/a.txt", "--word=a", "--model=~/my model",
                                                            "--save=~/o.h5"],
    ["seqvec", "-i", "~/p.fasta", "-o", "~/o.h5", "--model=~/my model", "--silent"],
    ["train", "~/run", "--train", "~/a.txt", "--vocab=~/vocab.txt", "--from-model=~/my model", "--max-steps=1",
     "--batch-size=1", "--unroll-steps=2", "--negatives=3", "--quiet", "--device=cpu"]])
def test_the_home_directory_in_the_command(home, capsys, command):
    status, _, error = run(capsys, *command)
    assert status == 0, error
    assert "info" in command or {"o.h5", "run"} & set(names(home))
    if command[0] == "train":
        assert run(capsys, "export", "~/run", "~/out") == (0, "", "")
        assert names(home / "out") == ["options.json", "vocab.txt", "weights.hdf5"]


# ---- names of the files ----


@pytest.mark.parametrize("options, weights", [
    ("options.json", "elmo.h5"), ("options_file", "weights_file"), ("elmo_options.json", "elmo_weights.hdf5"),
    ("options_file", "a.hdf5"), ("options.json", "weights.hdf5"), ("options.json", "12.hdf5")])
def test_other_names_of_the_files(model, tmp_path, options, weights):
    folder = tmp_path / "folder with spaces"
    folder.mkdir()
    for name, path in zip((options, weights), paths(model)):
        (folder / name).symlink_to(path)
    (folder / "._weights.h5").touch()
    (folder / "more.hdf5").mkdir()
    (tmp_path / "link").symlink_to(folder)
    for location in (folder, f"{folder}/", tmp_path / "link", folder.as_uri()):
        assert_is(find_model(location), model)
    members = {f"x/{name}": path.read_bytes() for name, path in zip((options, weights), paths(model))}
    assert_is(find_model(pack_tar(tmp_path / "m.tgz", members)), model)
    sequence = list("MKV")
    np.testing.assert_array_equal(get_elmo_model(folder, cpu=True).embed_sentence(sequence),
                                  get_elmo_model(model, cpu=True).embed_sentence(sequence))


# ---- tars ----


def pack_tar(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("mode", ["w:", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("folder", ["", "clinical/elmo/", "../../", "/", "..\\"])
def test_a_tar(model, tmp_path, cache, mode, folder):
    archive = pack_tar(tmp_path / "model.tar.any", contents(model, folder, **{
        f"{folder}README": b"x", f"{folder}._options.json": b"x", f"{folder}vocab.txt": b"<S>\n"}), mode)
    files = find_model(archive)
    assert_is(files, model, b"<S>\n")
    assert cache in files.options_file.parents and names(files.options_file.parent) == [
        "model.hdf5", "options.json", "vocab.txt"]
    assert {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*.hdf5")} == {cache.name}


def test_links_in_a_tar_are_skipped(model, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("{}")
    archive = tmp_path / "m.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        for name, kind in (("options.json", tarfile.SYMTYPE), ("weights.hdf5", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, str(secret)
            file.addfile(info)
    with pytest.raises(ConfigurationError, match="expected options.json and .* inside, found nothing"):
        find_model(archive)


def zeros(path, size, name="big.txt"):
    """A small tar.gz of a model whose first member is `size` zeros."""
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.size = size
        archive.addfile(info, io.BytesIO(bytes(size)))
    return path


@pytest.mark.parametrize("name", ["big.txt", "options.json"])
def test_a_tar_bomb_is_refused_before_it_is_unpacked(tmp_path, cache, monkeypatch, name):
    archive = zeros(tmp_path / "m.tar.gz", 1 << 22, name)
    monkeypatch.setattr("elmo_fast.files.archives._MOST_UNPACKED", 1 << 20)
    with pytest.raises(ConfigurationError, match=f"^model {archive}: expected at most 0 GB, or 10 times the .* bytes "):
        find_model(archive)
    assert left(cache, "*.part") == []


def test_a_tar_header_has_a_size_limit(tmp_path):
    archive = tmp_path / "m.tar.gz"
    with tarfile.open(archive, "w:gz", format=tarfile.PAX_FORMAT) as file:
        file.addfile(tarfile.TarInfo("x" * (2 << 20)))
    with pytest.raises(ConfigurationError, match="cannot be unpacked [(]a header of 2,.* bytes"):
        find_model(archive)


def test_a_damaged_tar_header_is_refused(model, tmp_path):
    archive = pack_tar(tmp_path / "m.tar", {**contents(model), "vocab.txt": b"<S>\n"}, "w:")
    content = bytearray(archive.read_bytes())
    content[content.rindex(b"vocab.txt")] = 0x20
    archive.write_bytes(content)
    with pytest.raises(ConfigurationError, match="a damaged header"):
        find_model(archive)


@pytest.mark.parametrize("name", ["weights.hdf5.gz", "m.tar.gz"])
def test_a_compressed_file_without_a_tar_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(b"weights"))
    with pytest.raises(ConfigurationError, match="expected a complete ZIP or tar .*no tar inside"):
        find_model(tmp_path / name)


# ---- files that are no model ----


def test_a_torch_checkpoint_is_refused_with_the_export_command(tmp_path):
    torch.save({}, tmp_path / "best.pt")
    with pytest.raises(ConfigurationError, match="found .*/data.pkl.*; .*elmo-fast export"):
        find_model(tmp_path / "best.pt")


def test_options_may_come_from_a_pipe(model):
    options, weights = paths(model)
    with subprocess.Popen(["cat", options], stdout=subprocess.PIPE) as process:
        elmo = BiLm.from_files(f"/dev/fd/{process.stdout.fileno()}", weights)
    assert elmo.fingerprint() == BiLm.from_model(model).fingerprint()


def test_a_dangling_link_is_named(model, tmp_path):
    (tmp_path / "options.json").symlink_to(paths(model)[0])
    (tmp_path / "weights.hdf5").symlink_to(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match=f"found nothing at {tmp_path}/weights.hdf5"):
        elmo_fast.load(tmp_path)
    assert os.path.lexists(tmp_path / "weights.hdf5")
