import os
import shutil
import sys
import zipfile

import fsspec
import pytest

from elmo_fast import BiLm, ConfigurationError
from elmo_fast.weights.sources import ModelFiles, cache_path, fetch, find_model
from tests.support.files import full_disk, names, paths, tiny, write_model
from tests.support.sources import assert_is, contents, left, pack

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def memory():
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


@pytest.mark.parametrize("name", ["options_file", "weight_file"])
@pytest.mark.parametrize("value, error, message", [
    ("no", FileNotFoundError, "expected a file, found nothing at no"),
    (".", IsADirectoryError, "expected a file, got the directory [.]"),
    (None, ConfigurationError, "expected a path or URL, got None; --options-file and --weight-file are given .*")])
def test_a_missing_path_is_named(model, name, value, error, message):
    arguments = dict(zip(("options_file", "weight_file"), paths(model)))
    assert find_model(**{**arguments, name: str(arguments[name])}) == ModelFiles(*paths(model))
    with pytest.raises(error, match=f"^{name}: {message}$"):
        find_model(**{**arguments, name: value})
    with pytest.raises(ConfigurationError, match="^model: expected either model or options_file and weight_file"):
        find_model(model, **{name: arguments[name]})


_NO_WEIGHTS = r"expected one file \*.hdf5, \*.h5 or \*.safetensors, found none; elmo-fast "


@pytest.mark.parametrize("present, message", [
    ([], "expected one file options.json, found none"),
    (["options.json"], f"{_NO_WEIGHTS}export makes a model of a training run"),
    (["step-00000001.pt"], "expected one file options.json, found none; elmo-fast export makes a model of a .*"),
    (["model.ckpt-5.index", "options.json"],
     f"{_NO_WEIGHTS}import-tf makes a training run of TensorFlow checkpoints, elmo-fast export a model of it"),
    (["options.json", "a.hdf5", "b.hdf5"], r"expected one file \*.hdf5, \*.h5 or \*.safetensors, found a.hdf5, b.hdf5"),
    (["options.json", "a.h5", "b.hdf5"], r"expected one file \*.hdf5, \*.h5 or \*.safetensors, found a.h5, b.hdf5"),
    (["options.json", "options_file", "x.h5"], "expected one file options.json, found options.json, options_file"),
    (["a_options.json", "b_options.json"], "expected one file options.json, found a_options.json, b_options.json"),
])
def test_a_directory_without_a_model_is_refused(tmp_path, present, message):
    for name in present:
        (tmp_path / name).touch()
    with pytest.raises(ConfigurationError, match=f"^model {tmp_path}: {message}$"):
        find_model(tmp_path)


@pytest.mark.parametrize("folder", ["", "a/b/c/", "../../../../"])
def test_a_zip(model, tmp_path, cache, folder):
    extra = {f"{folder}vocab.txt.gz": b"words", f"{folder}README": b"x", "__MACOSX/._options.json": b"x"}
    archive = pack(tmp_path / "12.zip", contents(model, folder, **extra))
    files = find_model(archive)
    assert_is(files, model, b"words")
    assert names(files.options_file.parent) == ["model.hdf5", "options.json", "vocab.txt.gz"]
    assert {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*.hdf5")} == {cache.name}
    assert BiLm.from_model(archive).fingerprint() == BiLm.from_model(model).fingerprint()


def test_a_zip_is_unpacked_once_and_again_after_a_change(model, tmp_path):
    archive = pack(tmp_path / "m.zip", contents(model), zipfile.ZIP_STORED)
    unpacked = find_model(archive).weight_file
    written = unpacked.stat()
    assert find_model(archive).weight_file == unpacked and unpacked.stat() == written
    for content in (tiny(), tiny(lstm__dim=16)):  # a ZIP of the same size, then a larger one
        changed = write_model(tmp_path / "other", content, seed=1)
        pack(archive, contents(changed), zipfile.ZIP_STORED)
        assert_is(find_model(archive), changed)


@pytest.mark.parametrize("replace", [shutil.copyfile, os.replace])
def test_an_archive_of_the_same_size_and_time_is_another_one(model, tmp_path, replace):
    archive = pack(tmp_path / "m.zip", contents(model), zipfile.ZIP_STORED)
    assert_is(find_model(archive), model)
    changed, status = write_model(tmp_path / "other", seed=1), archive.stat()
    replace(pack(tmp_path / "new.zip", contents(changed), zipfile.ZIP_STORED), archive)
    os.utime(archive, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (archive.stat().st_size, archive.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert_is(find_model(archive), changed)


def locked(content):
    """The archive with the encryption flag set for every member."""
    content = content.replace(b"PK\x03\x04\x14\x00\x00\x00", b"PK\x03\x04\x14\x00\x01\x00")
    return content.replace(b"PK\x01\x02\x14\x03\x14\x00\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01\x00")


@pytest.mark.parametrize("members, damage, message", [
    ({}, bytes, "expected options.json and [*].hdf5, [*].h5 or [*].safetensors inside, found nothing"),
    ({"a.txt": b"", "options.json": b"{}"}, bytes,
     "expected options.json and [*].hdf5, [*].h5 or [*].safetensors inside, found a.txt, options.json"),
    ({"a/options.json": b"{}", "b/options.json": b"{}", "m.hdf5": b""}, bytes,
     "expected one model inside, found both a/options.json and b/options.json"),
    ({"options.json": b"{}", "a.hdf5": b"", "b.hdf5": b""}, bytes,
     "expected one file [*].hdf5, [*].h5 or [*].safetensors, found a.hdf5, b.hdf5"),
    (None, lambda content: content[: len(content) // 2], "expected a directory, ZIP or tar"),
    (None, lambda content: content[:2000] + b"\xff" * 40 + content[2040:], "expected a complete ZIP"),
    (None, lambda content: b"<html>", "expected a directory, ZIP or tar"),
    (None, locked, "expected a complete ZIP or tar file without a password"),
])
def test_a_zip_without_a_model_is_refused_and_leaves_nothing(model, tmp_path, cache, members, damage, message):
    archive = pack(tmp_path / "m.zip", contents(model) if members is None else members)
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(ConfigurationError, match=message):
        find_model(archive)
    assert members is not None or left(cache, "*.hdf5") == []
    assert left(tmp_path, "*.part") == []


@pytest.mark.parametrize("name, near", [("no", None), ("small.zip", None), ("Original", "original"),
                                        ("bundeled", "bundled")])
def test_an_unknown_model_is_refused_with_the_known_names(tmp_path, monkeypatch, name, near):
    monkeypatch.chdir(tmp_path)
    usual = "bundled, small, medium, original, original_5.5b, seqvec, nlpl:NUMBER, manylangs:LANGUAGE"
    expected = f"^model: expected one of {usual}, a directory, a ZIP or tar, or a URL; found nothing at {name}" + (
        f"; did you mean {near}[?]$" if near else "$")
    with pytest.raises(FileNotFoundError, match=expected):
        find_model(name)


def test_urls_are_stored_in_the_cache(memory, model, cache, tmp_path):
    packed = pack(tmp_path / "m.zip", contents(model)).read_bytes()
    for folder in ("/m", "/owner/model"):
        memory.pipe({f"{folder}/{path.name}": path.read_bytes() for path in paths(model)})
    memory.pipe({"/owner/model/vocab.txt": b"<S>\n</S>\n", "/owner/model/README.md": b"# a model", "/12.zip": packed})
    urls = {"options_file": "memory://m/options.json", "weight_file": "memory://m/weights.hdf5"}
    files, folder = find_model(**urls), find_model("memory://owner/model")
    assert_is(files, model)
    assert_is(folder, model, b"<S>\n</S>\n")
    assert_is(find_model("memory://12.zip"), model)
    assert cache in files.options_file.parents
    assert names(folder.options_file.parent) == ["options.json", "vocab.txt", "weights.hdf5"]
    memory.store.clear()
    assert find_model(**urls) == files and find_model("memory://owner/model") == folder
    assert fetch(tmp_path / "a b") == tmp_path / "a b"


@pytest.mark.parametrize("path, message", [
    ("owner/other/README.md", "found README.md"),
    ("page", "expected a directory, ZIP or tar.*an unknown file or a truncated archive")])
def test_a_url_without_a_model_is_refused(memory, path, message):
    memory.pipe(f"/{path}", b"<html>")
    with pytest.raises(ConfigurationError, match=message):
        find_model(f"memory://{path.removesuffix('/README.md')}")


def test_http(serve, model, cache):
    web = serve(model)
    assert_is(find_model(**{f"{kind}_file": f"{web}/{path.name}" for kind, path in zip(("options", "weight"),
                                                                                      paths(model))}), model)
    expected = (f"^{web}/no: the download failed [(]the server answered 404 File not found[)]; nothing was stored. "
                f"Fetched by other means, it belongs at {cache}")
    with pytest.raises(FileNotFoundError, match=expected):
        fetch(f"{web}/no")


@pytest.mark.parametrize("variables, expected", [
    ({"ELMO_FAST_CACHE": "/somewhere"}, "/somewhere/https/h/a"),
    ({"ELMO_FAST_CACHE": "~/c", "HOME": "/home/me"}, "/home/me/c/https/h/a"),
    ({"XDG_CACHE_HOME": "/xdg", "HOME": "/home/me"}, "/xdg/elmo-fast/https/h/a"),
    ({"HOME": "/home/me"}, "/home/me/.cache/elmo-fast/https/h/a"),
    ({"ELMO_FAST_CACHE": "", "HOME": "/home/me"}, "/home/me/.cache/elmo-fast/https/h/a"),
])
def test_the_folder_of_the_cache(monkeypatch, variables, expected):
    for name in ("ELMO_FAST_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(cache_path("https://h/a")) == expected


def test_a_missing_extra_is_named(monkeypatch, model):
    monkeypatch.setitem(sys.modules, "s3fs", None)  # in no extra: fsspec names it
    with pytest.raises(ImportError, match=r"^reading s3://h/a needs a package that is missing \([^()]*s3fs[^()]*\)$"):
        find_model("s3://h/a")
    for name in ("pooch", "fsspec"):
        monkeypatch.setitem(sys.modules, name, None)
    for url in ("https://h/a", "s3://h/a"):
        with pytest.raises(ImportError, match=f"^fetching {url} needs a package .*: pip install .*remote."):
            fetch(url)
    with pytest.raises(ImportError, match="pip install .*remote.*_options.json.*_weights.hdf5"):
        find_model("original")
    assert find_model(model) == ModelFiles(*paths(model))


# ---- damaged and hostile ZIPs, and a full disk ----


def declare(archive, size):
    """The bytes of a ZIP whose directory declares `size` unpacked bytes for every member."""
    with zipfile.ZipFile(archive) as file:
        start = file.start_dir
    content = bytearray(archive.read_bytes())
    while (start := content.find(b"PK\x01\x02", start)) >= 0:
        content[start + 24 : start + 28] = size.to_bytes(4, "little")
        start += 4
    return content


def test_a_zip_bomb_is_refused_before_it_is_unpacked(model, tmp_path, cache):
    archive = pack(tmp_path / "m.zip", {**contents(model), "vocab.txt": b"<S>\n</S>\n"})
    archive.write_bytes(declare(archive, 0xF0000000))  # three members
    with pytest.raises(ConfigurationError, match=f"^model {archive}: expected at most 8 GB, or 10 times the .* bytes "
                                                 "of the file, when unpacked, found 12,079,595,520 bytes$"):
        find_model(archive)
    assert left(cache, "*.part") == []


def test_a_member_unpacks_to_no_more_than_it_declares(model, tmp_path, cache):
    archive = pack(tmp_path / "m.zip", {**contents(model), "vocab.txt": bytes(1 << 20)})
    archive.write_bytes(declare(archive, 100))
    with pytest.raises(ConfigurationError, match=f"^model {archive}: expected a complete ZIP or tar file"):
        find_model(archive)


def test_a_full_disk_under_a_zip_is_named(model, tmp_path, cache):
    archive = pack(tmp_path / "m.zip", contents(model))
    with full_disk(), pytest.raises(OSError, match=f"File too large: '{cache}/unpacked/m-"):
        find_model(archive)
    assert left(cache, "*.part") == []
