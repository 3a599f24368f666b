import contextlib
import http.server
import os
import sys
import threading
import zipfile

import fsspec
import pytest

from elmo_fast import BiLm, ConfigurationError
from elmo_fast.model import sources
from elmo_fast.model.sources import ModelFiles, cache_path, fetch, find_model
from tests.support.files import names, paths, start, tiny, write_model

HOST = "https://allennlp.s3.amazonaws.com/models/elmo"
ORIGINAL = f"{HOST}/2x4096_512_2048cnn_2xhighway/elmo_2x4096_512_2048cnn_2xhighway"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ELMO_FAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def memory():
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `server.content[path]`; what `server.broken` names breaks off in the middle."""

    def do_GET(self):
        self.server.asked.append(self.path)
        content = self.server.content.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if self.path in self.server.broken else content)

    def do_HEAD(self):
        self.send_response(200 if self.path in self.server.content else 404)
        self.send_header("Content-Length", str(len(self.server.content.get(self.path, b""))))
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def web():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.content, server.broken, server.asked = {}, set(), []
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def pack(path, members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def contents(model, folder="", **more):
    options, weights = (path.read_bytes() for path in paths(model))
    return {f"{folder}options.json": options, f"{folder}model.hdf5": weights, **more}


def assert_is(files, model, vocabulary=None):
    """The files found hold what the model's own files hold."""
    assert [files.options_file.read_bytes(), files.weight_file.read_bytes()] == [p.read_bytes() for p in paths(model)]
    assert (files.vocab_file and files.vocab_file.read_bytes()) == vocabulary


def parts(folder):
    return [path.name for path in folder.rglob("*.part")]


def test_two_paths(model):
    options, weights = paths(model)
    assert find_model(options_file=str(options), weight_file=weights) == ModelFiles(options, weights)


@pytest.mark.parametrize("missing", ["options_file", "weight_file"])
def test_a_missing_path_is_named(model, tmp_path, missing):
    both = dict(zip(("options_file", "weight_file"), paths(model)))
    with pytest.raises(FileNotFoundError, match=f"^{missing}: expected a file, found nothing at {tmp_path}/no$"):
        find_model(**{**both, missing: tmp_path / "no"})
    with pytest.raises(FileNotFoundError, match=f"^{missing}: expected a file, found a directory at {tmp_path}$"):
        find_model(**{**both, missing: tmp_path})
    with pytest.raises(ConfigurationError, match=f"^{missing}: expected a path or URL, got None$"):
        find_model(**{**both, missing: None})


def test_a_model_and_a_file_are_one_too_many(model):
    with pytest.raises(ConfigurationError, match="^model: expected either model or options_file and weight_file"):
        find_model(model, options_file=paths(model)[0])


def test_a_directory(model, tmp_path):
    assert find_model(model) == find_model(str(model)) == ModelFiles(*paths(model))
    folder = write_model(tmp_path / "model")
    for name in ("._options.json", "._weights.hdf5", "embeddings.hdf5"):  # macOS's own, and an unusual name
        (folder / name).write_bytes(b"x")
    assert find_model(folder) == ModelFiles(*paths(folder))


@pytest.mark.parametrize("options, weights", [
    ("options.json", "model.hdf5"), ("elmo_options.json", "elmo_weights.hdf5"), ("options.json", "12.hdf5")])
@pytest.mark.parametrize("vocabulary", [None, "vocab.txt", "vocab.txt.gz"])
def test_a_directory_with_other_names(model, tmp_path, options, weights, vocabulary):
    for name, path in zip((options, weights), paths(model)):
        (tmp_path / name).write_bytes(path.read_bytes())
    if vocabulary:
        (tmp_path / vocabulary).write_bytes(b"<S>")
    expected = ModelFiles(tmp_path / options, tmp_path / weights, tmp_path / vocabulary if vocabulary else None)
    assert find_model(tmp_path) == expected


@pytest.mark.parametrize("present, message", [
    ([], "expected one file options.json, found none"),
    (["options.json"], r"expected one file \*.hdf5, found none"),
    (["options.json", "a.hdf5", "b.hdf5"], r"expected one file \*.hdf5, found a.hdf5, b.hdf5"),
    (["a_options.json", "b_options.json"], "expected one file options.json, found a_options.json, b_options.json"),
])
def test_a_directory_of_something_else_is_refused(tmp_path, present, message):
    for name in present:
        (tmp_path / name).touch()
    with pytest.raises(ConfigurationError, match=f"^model {tmp_path}: {message}$"):
        find_model(tmp_path)


@pytest.mark.parametrize("folder", ["", "12/", "a/b/c/"])
def test_a_zip(model, tmp_path, folder):
    more = {f"{folder}vocab.txt.gz": b"words", f"{folder}README": b"x", "__MACOSX/._options.json": b"x"}
    archive = pack(tmp_path / "12.zip", contents(model, folder, **more))
    files = find_model(archive)
    assert_is(files, model, b"words")
    assert names(files.options_file.parent) == ["model.hdf5", "options.json", "vocab.txt.gz"]
    assert BiLm.from_model(archive).fingerprint() == BiLm.from_model(model).fingerprint()


def test_a_member_cannot_leave_the_cache(model, tmp_path, cache):
    find_model(pack(tmp_path / "m.zip", contents(model, "../../../../")))
    assert {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*.hdf5")} == {cache.name}


def test_a_zip_is_unpacked_once_and_anew_when_it_changes(model, tmp_path, monkeypatch):
    archive = pack(tmp_path / "m.zip", contents(model), zipfile.ZIP_STORED)
    first = find_model(archive)
    with monkeypatch.context() as patched:
        patched.setattr(sources, "_unpack_members", None)
        assert find_model(archive) == first
    for content in (tiny(), tiny(lstm__dim=16)):  # a ZIP of the same size, then a larger one
        other = write_model(tmp_path / "other", content, seed=1)
        pack(archive, contents(other), zipfile.ZIP_STORED)
        assert_is(find_model(archive), other)


@pytest.mark.parametrize("members, message", [
    ({}, "expected options.json and [*].hdf5 inside, found nothing"),
    ({"a.txt": b"", "options.json": b"{}"}, "expected options.json and [*].hdf5 inside, found a.txt, options.json"),
    ({"a/options.json": b"{}", "b/options.json": b"{}", "m.hdf5": b""},
     "expected one model inside, found both a/options.json and b/options.json"),
    ({"options.json": b"{}", "a.hdf5": b"", "b.hdf5": b""}, "expected one file [*].hdf5, found a.hdf5, b.hdf5"),
])
def test_a_zip_of_something_else_is_refused(tmp_path, cache, members, message):
    with pytest.raises(ConfigurationError, match=message):
        find_model(pack(tmp_path / "m.zip", members))
    assert parts(tmp_path) == []


@pytest.mark.parametrize("damage", ["cut", "flipped", "text"])
def test_a_damaged_zip_is_refused_and_leaves_nothing(model, tmp_path, cache, damage):
    archive = pack(tmp_path / "m.zip", contents(model))
    content = bytearray(archive.read_bytes())
    middle = len(content) // 2
    damaged = {"cut": content[:middle], "flipped": content[:middle] + b"\xff" * 40 + content[middle + 40:],
               "text": b"<html>"}
    archive.write_bytes(damaged[damage])
    with pytest.raises(ConfigurationError, match="expected a (complete ZIP|directory or a ZIP)"):
        find_model(archive)
    assert list(cache.rglob("*.hdf5")) == [] and parts(tmp_path) == []


def test_a_zip_with_a_password_is_refused(model, tmp_path):
    archive = pack(tmp_path / "m.zip", contents(model))
    content = archive.read_bytes()
    locked = content.replace(b"PK\x03\x04\x14\x00\x00\x00", b"PK\x03\x04\x14\x00\x01\x00")
    archive.write_bytes(locked.replace(b"PK\x01\x02\x14\x03\x14\x00\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01\x00"))
    with pytest.raises(ConfigurationError, match="expected a complete ZIP file without a password"):
        find_model(archive)


def test_two_processes_may_unpack_at_once(model, tmp_path, cache):
    archive = pack(tmp_path / "m.zip", contents(model))
    code = ("import sys\nfrom elmo_fast.model.sources import find_model\nprint('ready', flush=True)\n"
            f"sys.stdin.readline()\nprint(find_model({str(archive)!r}).weight_file)")
    processes = [start(code, stdin=-1) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    found = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert found == {str(find_model(archive).weight_file)} and parts(cache) == []


def test_threads_may_fetch_at_once(tmp_path, cache):
    remote = tmp_path / "remote"
    remote.write_bytes(b"weights" * 100_000)
    url = f"file://{remote}"
    threads = [threading.Thread(target=fetch, args=(url,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache_path(url).read_bytes() == b"weights" * 100_000 and parts(cache) == []


@pytest.mark.parametrize("name", ["no", "small.zip", "Original"])
def test_an_unknown_model_is_refused_with_what_there_is(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    usual = "bundled, small, medium, original, original_5.5b"
    with pytest.raises(FileNotFoundError, match=f"^model: expected one of {usual}, a directory, a ZIP or a URL; "
                                                f"found nothing at {name}$"):
        find_model(name)


def test_a_url_is_stored_in_the_cache(memory, model, cache, tmp_path):
    options, weights = (path.read_bytes() for path in paths(model))
    memory.pipe({"/m/options.json": options, "/m/weights.hdf5": weights})
    urls = {"options_file": "memory://m/options.json", "weight_file": "memory://m/weights.hdf5"}
    files = find_model(**urls)
    assert_is(files, model)
    assert cache in files.options_file.parents
    memory.store.clear()
    assert find_model(**urls) == files
    memory.pipe("/12.zip", pack(tmp_path / "m.zip", contents(model)).read_bytes())
    assert_is(find_model("memory://12.zip"), model)
    assert fetch(tmp_path / "a b") == tmp_path / "a b"


def test_a_remote_directory(memory, model, cache):
    memory.pipe({f"/owner/model/{path.name}": path.read_bytes() for path in paths(model)})
    memory.pipe({"/owner/model/vocab.txt": b"<S>\n</S>\n", "/owner/model/README.md": b"# a model"})
    files = find_model("memory://owner/model")
    assert_is(files, model, b"<S>\n</S>\n")
    assert names(files.options_file.parent) == ["options.json", "vocab.txt", "weights.hdf5"]
    memory.store.clear()
    assert find_model("memory://owner/model") == files


def test_a_remote_directory_of_which_a_part_is_cached_is_fetched_whole(memory, model, monkeypatch):
    memory.pipe({f"/owner/model/{path.name}": path.read_bytes() for path in paths(model)})
    fetched, fetch_it = [], sources.fetch

    def stopped(url):
        fetched.append(url)
        if len(fetched) == 2:
            raise OSError("connection lost")
        return fetch_it(url)

    monkeypatch.setattr(sources, "fetch", stopped)
    with pytest.raises(OSError, match="connection lost"):
        find_model("memory://owner/model")
    assert_is(find_model("memory://owner/model"), model)


def test_a_remote_directory_without_a_model_is_refused(memory):
    memory.pipe("/owner/other/README.md", b"# no model")
    with pytest.raises(ConfigurationError, match="found README.md"):
        find_model("memory://owner/other")


def test_a_url_of_something_else_is_refused(memory):
    memory.pipe("/page", b"<html>")
    with pytest.raises(ConfigurationError, match="expected a directory or a ZIP.*something else or a ZIP cut short"):
        find_model("memory://page")


def test_http(web, model):
    web.content = {f"/{path.name}": path.read_bytes() for path in paths(model)}
    urls = {"options_file": f"{web.url}/options.json", "weight_file": f"{web.url}/weights.hdf5"}
    assert_is(find_model(**urls), model)
    asked = list(web.asked)
    find_model(**urls)
    assert web.asked == asked


def test_a_query_makes_another_file(web):
    web.content = {"/w?version=1": b"one", "/w?version=2": b"two", "/w": b"plain"}
    assert [fetch(f"{web.url}{path}").read_bytes() for path in web.content] == [b"one", b"two", b"plain"]


def test_a_server_that_breaks_off_leaves_nothing(web, cache):
    web.content, web.broken = {"/w.hdf5": b"x" * 3_000_000}, {"/w.hdf5"}
    with pytest.raises(OSError, match=f"^{web.url}/w.hdf5: the download failed .*; nothing was stored. "
                                      f"Fetched by other means, it belongs at {cache}"):
        fetch(f"{web.url}/w.hdf5")
    assert [path for path in cache.rglob("*") if path.is_file()] == []
    web.broken.clear()
    assert fetch(f"{web.url}/w.hdf5").read_bytes() == web.content["/w.hdf5"]


@pytest.mark.parametrize("stop, error, message", [
    (ConnectionResetError("reset"), OSError, "the download failed .*reset"),
    (OSError(28, "No space left on device"), OSError, "the download failed .*No space left on device"),
    (KeyboardInterrupt(), KeyboardInterrupt, None), (None, OSError, "expected 100 bytes, got 50")])
def test_a_download_that_stops_in_the_middle_leaves_nothing(memory, cache, monkeypatch, stop, error, message):
    memory.pipe("/w", b"x" * 100)

    def half(source, copy, _):
        copy.write(source.read(50))
        if stop:
            raise stop

    monkeypatch.setattr(sources.shutil, "copyfileobj", half)
    with pytest.raises(error, match=message):
        fetch("memory://w")
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_a_missing_page_is_named(web):
    with pytest.raises(OSError, match=f"^{web.url}/no: the download failed [(]FileNotFoundError[)]"):
        fetch(f"{web.url}/no")


@pytest.mark.parametrize("url, path", [
    ("https://host/a/b.zip", "host/a/b.zip"),
    ("https://user:secret@host:80/a//b", "host:80/a/b"),
    ("https://host/../../a/./b", "host/a/b"),
    ("memory:///b", "memory/b"),
    ("https://host", "host"),
])
def test_paths_in_the_cache(cache, url, path):
    assert cache_path(url) == cache / path


@pytest.mark.parametrize("variables, expected", [
    ({"ELMO_FAST_CACHE": "/somewhere"}, "/somewhere/h/a"),
    ({"ELMO_FAST_CACHE": "~/c", "HOME": "/home/me"}, "/home/me/c/h/a"),
    ({"XDG_CACHE_HOME": "/xdg", "HOME": "/home/me"}, "/xdg/elmo-fast/h/a"),
    ({"HOME": "/home/me"}, "/home/me/.cache/elmo-fast/h/a"),
    ({"ELMO_FAST_CACHE": "", "HOME": "/home/me"}, "/home/me/.cache/elmo-fast/h/a"),
])
def test_where_the_cache_is(monkeypatch, variables, expected):
    for name in ("ELMO_FAST_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(cache_path("https://h/a")) == expected


def no_network(*_, **__):
    raise OSError("Network is unreachable")


@pytest.mark.parametrize("name", ["small", "medium", "original", "original_5.5b"])
def test_offline_a_named_model_says_what_to_put_where(monkeypatch, model, name):
    monkeypatch.setattr(fsspec, "open", no_network)
    with pytest.raises(FileNotFoundError) as caught:
        find_model(name)
    prefix = sources.NAMED_MODELS[name]
    urls = [f"{prefix}_options.json", f"{prefix}_weights.hdf5"]
    assert str(caught.value).startswith(f"model '{name}': ") and "Network is unreachable" in str(caught.value)
    for number, (url, source) in enumerate(zip(urls, paths(model))):
        with pytest.raises(FileNotFoundError) as caught:
            find_model(name)
        for missing in urls[number:]:
            assert missing in str(caught.value) and str(cache_path(missing)) in str(caught.value)
        cache_path(url).parent.mkdir(parents=True, exist_ok=True)
        cache_path(url).write_bytes(source.read_bytes())
    assert_is(find_model(name), model)


def test_names_point_at_the_public_files():
    assert sources.NAMED_MODELS["original"] == ORIGINAL
    assert sources.NAMED_MODELS["original_5.5b"] == (
        f"{HOST}/2x4096_512_2048cnn_2xhighway_5.5B/elmo_2x4096_512_2048cnn_2xhighway_5.5B")
    assert sources.NAMED_MODELS["small"] == f"{HOST}/2x1024_128_2048cnn_1xhighway/elmo_2x1024_128_2048cnn_1xhighway"


def test_without_fsspec_the_extra_is_named(monkeypatch, model):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ImportError, match="^fetching https://h/a needs a package .*: install elmo-fast.remote."):
        fetch("https://h/a")
    with pytest.raises(FileNotFoundError, match="install elmo-fast.remote.*_options.json.*_weights.hdf5"):
        find_model("original")
    assert find_model(model) == ModelFiles(*paths(model))


def test_what_a_killed_process_left_blocks_nothing(model, tmp_path, cache, monkeypatch):
    archive = pack(tmp_path / "m.zip", contents(model))
    with contextlib.suppress(ZeroDivisionError), monkeypatch.context() as patched:
        patched.setattr(sources, "_unpack_members", lambda *_: 1 / 0)
        patched.setattr(os, "replace", None)
        patched.setattr("shutil.rmtree", lambda _: None)
        patched.setattr("pathlib.Path.unlink", lambda *_, **__: None)
        find_model(archive)
    assert len(parts(cache)) == 1
    assert_is(find_model(archive), model)
