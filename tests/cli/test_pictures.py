import re
import signal
import sys
import warnings
from html.parser import HTMLParser

import numpy as np
import pytest

import elmo_fast
from elmo_fast.explore.comparison import compare
from elmo_fast.explore.contexts import ContextIndex
from tests.support.files import assert_refused, names, run, write_model
from tests.support.grid import mostly_long

CORPUS = ["The play opened in spring .", "", "They Play outside <b>&amp;</b> play", "no such word", "猫 and a play"]
PICTURES = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF", ".html": b"<!doctype html>", ".txt": b"query\t"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    (tmp_path / "in.txt").write_text("\n".join(CORPUS) + "\n", encoding="utf-8")
    return tmp_path


class Tags(HTMLParser):
    """The elements of a page as (tag, attributes, text up to the next tag)."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append([tag, dict(attributes), ""])

    def handle_data(self, data):
        if self.tags:
            self.tags[-1][2] += data


def cells(page):
    return [text for tag, attributes, text in Tags(page).tags if tag == "td" and attributes.get("class") != "corner"]


def test_rows_of_a_comparison(capsys, folder, model):
    status, out, err = run(capsys, "compare", "a naïve 猫", "two words", "--model", model, "--weights", 1, 0.5, 0)
    assert (status, err) == (0, "")
    comparison = compare(elmo_fast.load(model), "a naïve 猫", "two words")
    raw = run(capsys, "compare", "It isn't (bad).", "b", "--model", model)[1]
    assert [row.split("\t")[0] for row in raw.split("\n\n")[0].split("\n")[1:]] == "It is n't ( bad ) .".split()
    raw = run(capsys, "compare", "It isn't (bad).", "b", "--model", model, "--tokenizer", "whitespace")[1]
    assert [row.split("\t")[0] for row in raw.split("\n\n")[0].split("\n")[1:]] == ["It", "isn't", "(bad)."]
    blocks = [[line.split("\t") for line in block.splitlines()] for block in out.strip().split("\n\n")]
    assert [block[0] for block in blocks] == [[title, "two", "words"] for title in
                                              ("layer 0", "layer 1", "layer 2", "mixture 1, 0.5, 0")]
    for block, cosines in zip(blocks, [*comparison.layers(), comparison.mixed([1, 0.5, 0])]):
        assert [row[0] for row in block[1:]] == ["a", "naïve", "猫"]
        np.testing.assert_allclose([list(map(float, row[1:])) for row in block[1:]], cosines, atol=6e-5)


@pytest.mark.parametrize("suffix", mostly_long([".png", ".html", ".svg", ".pdf"]))
def test_drawn_comparisons(capsys, folder, model, suffix):
    if suffix != ".html":
        pytest.importorskip("matplotlib")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        status, _, err = run(capsys, "compare", "pay $5 or $6 <b> &amp; \x07", " ".join(["long"] * 70), "-o",
                             f"a{suffix}", "--model", model)
    assert (status, err) == (0, f"elmo-fast: a{suffix}: 3 maps of 7 x 70 cosines\n")
    assert names(folder) == sorted([f"a{suffix}", "in.txt"])
    assert (folder / f"a{suffix}").read_bytes().startswith(PICTURES[suffix])


def test_cells_of_a_page(capsys, folder, model):
    status, _, _ = run(capsys, "compare", "<i> a b", "c &amp;", "-o", "a.html", "--model", model)
    page = (folder / "a.html").read_text(encoding="utf-8")
    expected = compare(elmo_fast.load(model), "<i> a b", "c &amp;").layers()
    numbers = np.array([float(text.replace("\u2212", "-")) for text in cells(page)]).reshape(3, 3, 2)
    np.testing.assert_allclose(numbers, expected, atol=6e-3)
    assert status == 0 and "<i> a" not in page and "&lt;i&gt;" in page and "&amp;amp;" in page


@pytest.mark.parametrize("suffix", PICTURES)
def test_nearest_contexts(capsys, folder, model, suffix):
    if suffix in (".png", ".svg", ".pdf"):
        pytest.importorskip("matplotlib")
    status, out, err = run(capsys, "nearest", "in.txt", "--word", "PLAY", "--sentence", "we play here", "-o",
                         f"out{suffix}", "--top", 3, "--model", model)
    elmo = elmo_fast.load(model)
    index = ContextIndex.build(elmo, CORPUS, words=["play"])
    nearest = index.nearest(elmo.embed(["we play here"], "average")[0][1], 3)
    rows = [line.split("\t") for line in out.splitlines()]
    assert err == f"elmo-fast: out{suffix}: {len(nearest)} contexts; the word occurs {len(index)} times\n"
    assert status == 0 and rows[0] == ["query", "-", "-", "we [play] here"]
    assert [row[:3] for row in rows[1:]] == [[f"{near.similarity:.4f}", str(index.lines[near.text] + 1),
                                              str(near.position + 1)] for near in nearest]
    expected = [CORPUS[index.lines[near.text]].split() for near in nearest]
    assert [row[3].replace("[", "").replace("]", "").split() for row in rows[1:]] == expected
    content = (folder / f"out{suffix}").read_bytes()
    assert content.startswith(PICTURES[suffix]) and names(folder) == sorted(["in.txt", f"out{suffix}"])
    if suffix == ".txt":
        assert content.decode() == out


def test_a_page_of_contexts_is_escaped_and_whole(capsys, folder, model):
    arguments = ("nearest", "in.txt", "--word", "play", "-o", "out.html", "--model", model, "--queries", 2)
    assert run(capsys, *arguments)[0] == 0
    page = (folder / "out.html").read_text(encoding="utf-8")
    tags = Tags(page).tags
    assert not {"script", "link", "img", "iframe"} & {tag for tag, *_ in tags} and "http://" not in page
    assert "<b>&amp;</b>" not in page and "&lt;b&gt;&amp;amp;&lt;/b&gt;" in page
    circles = [attributes for tag, attributes, _ in tags if tag == "circle"]
    assert len(circles) == 4 and sum("class" in attributes for attributes in circles) == 2
    assert len([tag for tag, attributes, _ in tags if tag == "li"]) == 6
    shares = [float(attributes["style"][4:-1]) for tag, attributes, _ in tags if tag == "i" and "style" in attributes]
    scores = [float(text) for text in re.findall(r"<span>(\d\.\d{3})</span></span>", page)]
    np.testing.assert_allclose(np.array(shares) / 100, scores, atol=1.1e-3)


def test_any_word_center_layers_and_a_stored_index(capsys, folder, model):
    arguments = ("--word", "cat", "--sentence", "a cat", "--model", model)
    assert_refused(run(capsys, "nearest", "in.txt", *arguments), "word: expected a word that the corpus has, in upper")
    status, out, _ = run(capsys, "nearest", "in.txt", "--word", "play", "--model", model, "--any-word", "--top", 30)
    assert status == 0 and "[opened]" in out
    common = ("--word", "play", "--model", model, "--center")
    direct = run(capsys, "nearest", "in.txt", *common, "--layer", "1")
    assert direct == run(capsys, "nearest", *common, "--weights", "0", "1", "0", "in.txt")
    assert direct == run(capsys, "nearest", "in.txt", *common, "--weights", "0,1,0")
    building = run(capsys, "nearest", "in.txt", *common, "--layer", "1", "--save", "index.h5")
    assert building[::2] == (0, "elmo-fast: index.h5: 18 vectors of 8 values in float16\n")
    index = ContextIndex.load("index.h5")
    assert index.layers == 1 and len(index) == 18 and index.vectors.dtype == np.float16
    indexed = run(capsys, "nearest", "index.h5", *common)
    columns = [[line.split("\t")[0] for line in out.splitlines()] for _, out, _ in (direct, indexed)]
    assert [at for at, cell in enumerate(columns[0]) if cell == "query"] == [0, 4, 8]
    numbers = [np.array([float(cell) for cell in column if cell != "query"]) for column in columns]
    np.testing.assert_allclose(*numbers, atol=0.02)
    assert_refused(run(capsys, "nearest", "index.h5", "--word", "play", "--layer", "top", "--model", model),
                   "--layer, --weights, --state: expected a text as CORPUS, got the vectors in")


def test_a_letter_without_a_font_is_named_once(capsys, folder, model, caplog):
    pytest.importorskip("matplotlib")
    letter = "\U00012000"  # cuneiform
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(capsys, "compare", letter, "c", "-o", "b.png", "--model", model)[0] == 0
    assert_refused(run(capsys, "compare", "a", "b " * 301, "-o", "a.png", "--model", model),
                   "text: expected at most 300 tokens to draw, got 301")
    assert [letter in record.message and "boxes" in record.message for record in caplog.records] in ([], [True])


def test_a_corpus_of_stored_vectors(capsys, folder, model):
    (folder / "in.txt").write_text("\n".join(filter(None, CORPUS)) + "\n", encoding="utf-8")
    assert run(capsys, "embed", "in.txt", "vectors.h5", "--all", "--state", "warm", "--model", model, "--quiet")[0] == 0
    arguments = ("--word", "play", "--model", model, "--sentence", "we play here")
    assert run(capsys, "nearest", "vectors.h5", *arguments) == run(capsys, "nearest", "in.txt", *arguments)
    other_model = write_model(folder / "other", seed=1)
    (folder / "other.txt").write_text("play\nplay\n")
    assert run(capsys, "nearest", "other.txt", "--word", "play", "--model", other_model, "--save", "other.h5")[0] == 0
    assert_refused(run(capsys, "nearest", "other.h5", *arguments), "index: expected vectors of this model")


def test_without_matplotlib(capsys, folder, model, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run(capsys, "compare", "a", "b", "-o", "a.png", "--model", model)
    assert result[:2] == (1, "") and result[2].count("\n") == 1
    assert result[2].endswith('pip install "elmo-fast[plots]"\n')
    assert run(capsys, "compare", "a", "b", "-o", "a.html", "--model", model)[0] == 0
    assert run(capsys, "nearest", "in.txt", "--word", "play", "-o", "n.html", "--model", model)[0] == 0
