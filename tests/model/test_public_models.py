"""The models that `load` takes by name: fetched from a web server on this machine, or, offline, what to download."""

import fsspec
import numpy as np
import pytest

import elmo_fast
from elmo_fast import ConfigurationError
from elmo_fast.model import sources
from elmo_fast.model.sources import cache_path, find_model
from tests.support.files import paths, run
from tests.support.manylangs import write_manylangs
from tests.support.sources import assert_is, contents, left, pack

HOST = "https://allennlp.s3.amazonaws.com/models/elmo"
SEQVEC = "https://rostlab.org/~deepppi/embedding_repo/embedding_models/seqvec"
TEXTS = ["the cat sat", "a b"]

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def public(tmp_path, model, serve, monkeypatch):
    """A server with a model of each kind in the places of the public ones; returns the requests, and bad sizes."""
    root, seen, longer = tmp_path / "web", [], set()
    for release in ("11", "20"):
        (root / release).mkdir(parents=True)
    pack(root / "20" / "7.zip", contents(model))
    manylangs = write_manylangs(tmp_path / "manylangs")
    pack(root / "11" / "144.zip", {f"144/{path.name}": path.read_bytes() for path in manylangs.iterdir()})
    for path in paths(model):
        (root / path.name).write_bytes(path.read_bytes())
    url = serve(root, seen, longer)
    monkeypatch.setattr(sources, "NLPL", url)
    monkeypatch.setitem(sources.NAMED_MODELS, "seqvec", f"{url}/")
    return {"seqvec": model, "nlpl:7": model, "manylangs:en": manylangs}, seen, longer


@pytest.mark.parametrize("name, requests", [
    ("seqvec", ["/options.json", "/weights.hdf5"]), ("nlpl:7", ["/20/7.zip"]), ("manylangs:en", ["/11/144.zip"])])
def test_a_public_model_is_fetched_once(public, monkeypatch, capsys, tmp_path, name, requests):
    models, seen, _ = public
    expected = elmo_fast.load(models[name]).embed(TEXTS)
    for _ in range(2):
        for found, vectors in zip(elmo_fast.load(name).embed(TEXTS), expected):
            np.testing.assert_array_equal(found, vectors)
        assert sorted(set(seen)) == requests
        monkeypatch.setattr(fsspec, "open", no_network)
    (tmp_path / "in").write_text("the cat sat\n")
    assert run(capsys, "embed", tmp_path / "in", tmp_path / "out", "--top", "--model", name, "--quiet")[0] == 0


@pytest.mark.parametrize("name, path", [
    ("seqvec", "/weights.hdf5"), ("nlpl:7", "/20/7.zip"), ("manylangs:en", "/11/144.zip")])
def test_a_size_other_than_the_servers_is_refused(public, cache, name, path):
    public[2].add(path)
    with pytest.raises(OSError, match="the download failed .*; nothing was stored. Fetched by other means, it belongs "
                                      f"at {cache}/http/127.*{path}"):
        elmo_fast.load(name)
    assert [name for name in left(cache) if name != "options.json"] == []
    public[2].clear()
    assert elmo_fast.load(name).embed(TEXTS)


def test_a_number_that_the_repository_lacks(public, cache):
    with pytest.raises(FileNotFoundError, match=r"/20/9.zip: the download failed .*404 .*; nothing was stored"):
        elmo_fast.load("nlpl:9")
    assert left(cache) == []


@pytest.mark.parametrize("name, urls", [
    *((name, [f"{HOST}/{public}/elmo_{public}_{kind}" for kind in ("options.json", "weights.hdf5")])
      for name, public in {"small": "2x1024_128_2048cnn_1xhighway", "medium": "2x2048_256_2048cnn_1xhighway",
                           "original": "2x4096_512_2048cnn_2xhighway",
                           "original_5.5b": "2x4096_512_2048cnn_2xhighway_5.5B"}.items()),
    ("seqvec", [f"{SEQVEC}/options.json", f"{SEQVEC}/weights.hdf5"]),
    *((name, [f"http://vectors.nlpl.eu/repository/{archive}.zip"]) for name, archive in {
        "nlpl:210": "20/210", "manylangs:en": "11/144", "manylangs:ar": "11/136", "manylangs:nl": "11/164",
        "manylangs:nb": "11/165", "manylangs:zh": "11/179"}.items())])
def test_the_whole_message_offline(monkeypatch, capsys, model, name, urls):
    """What to download by hand, and where to put it; the command says the same in its line."""
    monkeypatch.setattr(fsspec, "open", no_network)
    of_two = len(urls) == 2
    for url, source in zip(urls, paths(model)):
        also = "".join(f", and {other} at {cache_path(other)}" for other in urls if other != url)
        expected = (f"model {name!r}: " * of_two + f"{url}: the download failed (OSError: Network is unreachable); "
                    f"nothing was stored. Fetched by other means, it belongs at {cache_path(url)}{also}")
        with pytest.raises(OSError, match="Network is unreachable") as caught:
            elmo_fast.load(name)
        assert str(caught.value) == expected
        assert run(capsys, "info", name) == (1, "", f"elmo-fast: error: {expected}\n")
        cache_path(url).parent.mkdir(parents=True, exist_ok=True)
        cache_path(url).write_bytes(source.read_bytes())
    if of_two:
        assert_is(find_model(name), model)
    listed = {model.name: model.source for model in sources.public_models()}
    assert name == "nlpl:210" or urls[-1].startswith(listed[name].partition("{")[0])


def no_network(*_, **__):
    raise OSError("Network is unreachable")


@pytest.mark.parametrize("name, message", [
    ("nlpl:", "nlpl: expected the number of a model in .*20.json, got ''"), ("nlpl:../7", "nlpl: expected the number"),
    ("manylangs:xx", "manylangs: expected one of ar, bg, .*, got 'xx'")])
def test_a_public_model_that_is_none(name, message):
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        find_model(name)


def test_the_list_of_public_models():
    header, *lines = sources.public_model_lines()
    assert header.split() == ["name", "language", "size", "licence", "where"]
    assert len(lines) == len({line.split()[0] for line in lines}) == len(sources.public_models()) == 1 + 4 + 1 + 1 + 44
    assert all("bundled" in line or "http" in line for line in lines)
