"""Models that `load` accepts by name: fetched from a local web server; offline, the message names the downloads."""

import hashlib
import socket

import numpy as np
import pytest

import elmo_fast
from elmo_fast import ConfigurationError
from elmo_fast.errors import MissingModelError, UnavailableError
from elmo_fast.files import downloads
from elmo_fast.files.downloads import RemoteFile, cache_path, fetch_any
from elmo_fast.weights import public
from elmo_fast.weights.sources import find_model
from tests.support.files import paths, run
from tests.support.manylangs import write_manylangs
from tests.support.sources import assert_is, contents, left, pack

TEXTS = ["the cat sat", "a b"]

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def web(tmp_path, model, serve, monkeypatch):
    """A server with a model of each kind at the public paths: models by name, requests, files of a wrong size."""
    root, requests, longer = tmp_path / "web", [], set()
    for release in ("11", "20"):
        (root / release).mkdir(parents=True)
    pack(root / "20" / "7.zip", contents(model))
    manylangs = write_manylangs(tmp_path / "manylangs")
    pack(root / "11" / "144.zip", {f"144/{path.name}": path.read_bytes() for path in manylangs.iterdir()})
    for path in paths(model):
        (root / path.name).write_bytes(path.read_bytes())
    url = serve(root, requests, longer)
    monkeypatch.setattr(public, "NLPL", url.removeprefix("http://"))
    monkeypatch.setitem(public.NAMED_MODELS, "seqvec", (public._two_files(f"{url}/"),))
    return {"seqvec": model, "nlpl:7": model, "manylangs:en": manylangs}, requests, longer


@pytest.mark.parametrize("name, requests", [
    ("seqvec", ["/options.json", "/weights.hdf5"]), ("nlpl:7", ["/20/7.zip"]), ("manylangs:en", ["/11/144.zip"])])
def test_a_public_model_is_fetched_once(web, monkeypatch, capsys, tmp_path, name, requests):
    models, log, _ = web
    expected = elmo_fast.load(models[name]).embed(TEXTS)
    for _ in range(2):
        for actual, vectors in zip(elmo_fast.load(name).embed(TEXTS), expected):
            np.testing.assert_array_equal(actual, vectors)
        assert sorted(set(log)) == requests
        monkeypatch.setattr("requests.get", no_network)
    (tmp_path / "in").write_text("the cat sat\n")
    assert run(capsys, "embed", tmp_path / "in", tmp_path / "out", "--top", "--model", name, "--quiet")[0] == 0


@pytest.mark.parametrize("name, first", [
    *((name, [f"https://allennlp.s3.amazonaws.com/models/elmo/{size}/elmo_{size}_{kind}"
              for kind in ("options.json", "weights.hdf5")])
      for name, size in {"small": "2x1024_128_2048cnn_1xhighway", "medium": "2x2048_256_2048cnn_1xhighway",
                         "original": "2x4096_512_2048cnn_2xhighway",
                         "original_5.5b": "2x4096_512_2048cnn_2xhighway_5.5B"}.items()),
    ("seqvec", [f"https://rostlab.org/~deepppi/embedding_repo/embedding_models/seqvec/{kind}"
                for kind in ("options.json", "weights.hdf5")]),
    *((name, [f"http://vectors.nlpl.eu/repository/{archive}.zip"]) for name, archive in {
        "nlpl:210": "20/210", "manylangs:en": "11/144", "manylangs:ar": "11/136", "manylangs:nl": "11/164",
        "manylangs:nb": "11/165", "manylangs:zh": "11/179"}.items())])
def test_the_message_offline(monkeypatch, capsys, model, name, first):
    """The message names the downloads and where to store them, as does the command."""
    monkeypatch.setattr("requests.get", no_network)
    copies = public.public_copies(name)
    assert [file.url for file in copies[0]] == first and len(copies) >= 2
    answers = [f"{file.url}: {'OSError: Network is unreachable' if number == 0 else NOT_ASKED}"
               for copy in copies for number, file in enumerate(copy)]
    expected = "\n  ".join([f"model {name!r}: none of its {len(copies)} public copies can be had", *answers, LOAD,
                            f"Stored as {' and '.join(map(str, map(cache_path, first)))}, it is found by its name"])
    with pytest.raises(UnavailableError) as caught:
        elmo_fast.load(name)
    assert str(caught.value) == expected and not isinstance(caught.value, FileNotFoundError)
    status, out, error = run(capsys, "info", name)
    assert (status, out) == (1, "") and error.endswith(f"elmo-fast: error: {expected}\n")
    files = zip(first, paths(model)) if len(first) == 2 else [(first[0], None)]
    for url, source in files:
        cache_path(url).parent.mkdir(parents=True, exist_ok=True)
        cache_path(url).write_bytes(source.read_bytes()) if source else pack(cache_path(url), contents(model))
    assert_is(find_model(name), model)


NOT_ASKED = "not asked, because the options are missing"
LOAD = ('Got from elsewhere, it is loaded by its path: load("model.zip"), or load("directory") of options.json and '
        "weights.hdf5; in the command as MODEL or --model")


def no_network(*_, **__):
    raise OSError("Network is unreachable")


def test_addresses_are_tried_in_order(tmp_path, model, serve, cache, monkeypatch, caplog):
    """404, no server, a timeout, a wrong size, a wrong checksum or an incomplete body: the next address is tried."""
    (tmp_path / "web").mkdir()
    archive = pack(tmp_path / "web" / "m.zip", contents(model)).read_bytes()
    (tmp_path / "web" / "other.zip").write_bytes(archive[:-1] + b"?")
    (tmp_path / "web" / "short.zip").write_bytes(archive[:100])
    requests = []
    web = serve(tmp_path / "web", requests, {"/short.zip"})
    monkeypatch.setattr(downloads, "_SILENCE", 0.3)
    size, digest = len(archive), hashlib.sha256(archive).hexdigest()
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        bad = [RemoteFile(f"{web}/none.zip"), RemoteFile(f"http://127.0.0.1:{closed.getsockname()[1]}/m.zip"),
               RemoteFile(f"http://127.0.0.1:{silent.getsockname()[1]}/m.zip"), RemoteFile(f"{web}/m.zip", size + 1),
               RemoteFile(f"{web}/other.zip", size, digest), RemoteFile(f"{web}/short.zip")]
        with pytest.raises(UnavailableError) as caught:
            fetch_any("model 'x'", [(file,) for file in bad])
        assert left(cache) == [] and not isinstance(caught.value, FileNotFoundError)
        caplog.clear()
        monkeypatch.setitem(public.NAMED_MODELS, "small",
                            tuple((file,) for file in (*bad, RemoteFile(f"{web}/m.zip?good", size, digest))))
        assert_is(find_model("small"), model)
    lines = str(caught.value).split("\n  ")
    assert [line.startswith(f"{file.url}: ") for file, line in zip(bad, lines[1:])] == [True] * 6 and len(lines) == 9
    answers = ["404 ", "Connection refused", "timed out", f"expected {size + 1} bytes of this file, got {size}",
               f"expected the SHA-256 {digest}, got", "100 bytes read, 1 more expected"]
    assert [answer in line for answer, line in zip(answers, lines[1:])] == [True] * 6
    warning, = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(f"model 'small': downloaded from {web}/m.zip?good; before, {bad[0].url}: 404 ")
    assert warning.count("; ") == 6
    assert left(cache, "*.zip*") != [] and requests[-1] == "/m.zip?good"
    with pytest.raises(MissingModelError, match="404"):
        fetch_any("model 'x'", [(RemoteFile(f"{web}/none.zip"),), (RemoteFile(f"{web}/none2.zip"),)])


@pytest.mark.parametrize("name, message", [
    ("nlpl:", "nlpl: expected the number of a model in .*20.json, got ''"), ("nlpl:../7", "nlpl: expected the number"),
    ("manylangs:xx", "manylangs: expected one of ar, bg, .*, got 'xx'")])
def test_an_unknown_public_model_is_refused(name, message):
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        find_model(name)
