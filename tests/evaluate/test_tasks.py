"""The protocols of `elmo-fast evaluate`, on small data whose right answers are known."""

import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tests.evaluate.test_readers import conllu, write
from tests.support.files import ROOT, run

pytest.importorskip("sklearn")

from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from elmo_fast.evaluate import contexts, probe, tagging, tasks
from elmo_fast.evaluate.data import Pair, Target, Texts

WORDS = "a b c d e f g h i k".split()


class Elmo:
    """A model whose layer 0 is the word, and whose layer 1 is the word and the one before it."""

    bilm = SimpleNamespace(num_layers=2)

    def stream(self, texts, state):
        assert state == "warm"
        for text in texts:
            words = np.array([[float(word.lower() == known) for known in WORDS] for word in text], np.float32)
            before = np.vstack([np.zeros((1, len(WORDS)), np.float32), words[:-1]])
            yield np.stack([np.hstack([words, 0 * before]), np.hstack([words, before])])


@pytest.fixture
def elmo(monkeypatch):
    monkeypatch.setattr(tasks, "load", lambda model, **_: Elmo())
    return Elmo()


def figures(report):
    """Figures in % by name, without their errors."""
    return {row.name: tuple(round(mean, 1) for mean, _ in row.figures) for row in [*report.baselines, *report.rows]}


def test_the_probe_is_scikit_learns_logistic_regression():
    random = np.random.default_rng(0)
    dense = random.normal(size=(200, 4)).astype(np.float32)
    sparse = csr_matrix(random.integers(0, 2, (200, 5)), dtype=np.float32)
    targets = random.integers(0, 3, 200)
    both = np.hstack([dense, sparse.toarray()])
    for strength in (0.01, 1.0):
        weights = probe.fit([dense, sparse], targets, 3, strength, tolerance=1e-6)
        wanted = LogisticRegression(C=strength, tol=1e-8, max_iter=1000).fit(both, targets)
        logits = probe.scores([dense, sparse], weights)
        found = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        np.testing.assert_allclose(found, wanted.predict_proba(both), atol=3e-4)
        np.testing.assert_allclose(weights[:-1].T, wanted.coef_, atol=1e-3)


def test_figures_and_their_errors():
    assert probe.figure(np.repeat([1, 0], [80, 20])) == (80.0, pytest.approx(7.84))
    mean, error = probe.figure(np.array([4, 0]), np.array([4, 4]))  # two texts, all tokens of each alike
    assert mean == 50 and error == pytest.approx(196 * np.sqrt(8) / 8)


def test_part_of_speech(tmp_path, elmo):
    """The tag of b is X after a and Y after c: the word alone is right half of the time."""
    sentences = ["a/A b/X", "c/C b/Y", "d/D e/E"]
    write(tmp_path, **{"t-train__conllu": conllu(*sentences * 20), "t-dev__conllu": conllu(*sentences * 2),
                       "t-test__conllu": conllu(*sentences[:2] * 9, "z/A b/X")})
    report = tasks.evaluate("any", "pos", tmp_path)
    found = figures(report)
    # Of 38 tokens, 18 are a or c, 10 are b as X, 9 b as Y, and z is new. A tie goes to X.
    assert found["most frequent tag"] == (round(100 * 29 / 38, 1), 100.0)
    assert found["layer 0, no context"][0] in (71.1, 73.7, 76.3)  # one of the tags for every b, and any for z
    assert min(found[name][0] for name in ("layer 1", "word, affixes, neighbours",
                                           "average of the layers + word, affixes, neighbours")) >= 94
    assert "120 tokens of t-train.conllu -> 38 of t-test.conllu" in report.title
    assert any("Liu et al. 2019" in line for line in report.lines())


def test_features_and_frequent_tags():
    assert {"word plays", "suffix ys", "prefix pl", "before a", "after ", "two before "} < set(
        tagging.word_features(["A", "Plays"], 1))
    assert list(tagging.residue_features(list("MKV"), 1)) == ["-1 M", "0 K", "1 V"]
    train = Texts([["a", "a", "b"]], [["X", "Y", "Y"]], "")
    assert tagging.most_frequent(train, Texts([["a", "b", "new"]], [[]], ""), ["X", "Y"]).tolist() == [0, 1, 1]


def test_sentences(tmp_path, elmo):
    """Positive and negative texts have the same words in another order."""
    mr = write(tmp_path, **{"rt-polarity__pos": "a b c d\n" * 30, "rt-polarity__neg": "d b c a\n" * 30})
    found, again = (tasks.evaluate("any", "mr", mr) for _ in range(2))
    assert list(found.lines()) == list(again.lines())
    found = figures(found)
    assert found["average of the layers"] == found["all layers"] == found["TF-IDF of words and pairs"] == (100.0,)
    assert 30 <= found["layer 0, no context"][0] <= 70 and 30 <= found["most frequent class"][0] <= 50
    trec = write(tmp_path, train_5500__label="X:x a b\nY:y c d\nY:z c e\n" * 99,
                 TREC_10__label="X:x a b\nY:y c d\nX:y c d\n")
    found = figures(tasks.evaluate("any", "trec", trec))
    assert found["all layers"] == found["TF-IDF of words and pairs"] == (66.7,)
    assert found["most frequent class"] == (33.3,)


def test_proteins(tmp_path, elmo):
    sequences = {f"p{k}": "abcd" if k % 2 else "dbca" for k in range(40)}
    labels = "".join(f">p{k} SET={'train' if k < 30 else 'test'} VALIDATION=False\n{'HHEC' if k % 2 else 'EHHC'}\n"
                     for k in range(40))
    write(tmp_path, sequences__fasta="".join(f">{name}\n{text}\n" for name, text in sequences.items()),
          sampled__fasta=labels)
    proteins = Texts([list(text) for text in sequences.values()], [], "")
    assert tasks.spaced(Texts(proteins.texts, list(range(40)), ""), 4).labels == [0, 10, 20, 30]
    report = tasks.evaluate("any", "secondary_structure", tmp_path, limit=20)
    # b is H in both kinds of proteins; a, c and d have a state in half of them each.
    assert figures(report)["most frequent state of the residue"] == (62.5,)
    assert "80 tokens" in report.title and "SeqVec 79" in report.published
    assert [*report.lines()][-1] == "learned from 20 of the 30 texts of the training part (--limit)"
    rows = "".join(f">p{k} {'Nucleus' if k % 2 else 'Plastid'}-U{' test' if k >= 30 else ''}\n{text}\n"
                   for k, text in enumerate(sequences.values()))
    found = figures(tasks.evaluate("any", "localization", write(tmp_path / "d", deeploc_data__fasta=rows)))
    assert found["all layers"] == (100.0,) and found["layer 0, no context"] == found["most frequent class"] == (50.0,)


def test_words_in_context(tmp_path, elmo):
    """The same word before both words b means the same: cosines are 1 or 1/2 in layer 1, always 1 in layer 0."""
    same, other = Pair((["a", "b"], ["a", "b"]), (1, 1), True), Pair((["a", "b"], ["c", "b"]), (1, 1), False)
    cosines = contexts.pair_cosines(elmo, [same, other])
    np.testing.assert_allclose(cosines["layer 1"], [1, 0.5], atol=1e-6)
    np.testing.assert_allclose(cosines["layer 0, no context"], [1, 1], atol=1e-6)
    assert 0.5 < contexts.best_threshold(np.array([0.9, 0.5, 0.2]), np.array([True, False, False])) < 0.9
    lines = "b\tN\t1-1\ta b\ta b\nb\tN\t1-1\ta b\tc b\n"
    for part in ("train", "test"):
        write(tmp_path, **{f"{part}__data__txt": lines * 5, f"{part}__gold__txt": "T\nF\n" * 5})
    with pytest.raises(ValueError, match="limit: expected none for wic, which learns from no texts, got 3"):
        tasks.evaluate("any", "wic", tmp_path, limit=3)
    found = figures(tasks.evaluate("any", "wic", tmp_path))
    assert found["layer 1"] == (100.0,) and found["layer 0, no context"] == found["most frequent answer"] == (50.0,)


def test_generalized_average_precision():
    assert contexts.gap(np.array([3, 2, 1]), np.array([3.0, 1.0, 0.0])) == 1
    # ranked: 0, 3, 1 -> (3/2 + 4/3) of (3 + 4/2)
    assert contexts.gap(np.array([2, 1, 3]), np.array([3.0, 1.0, 0.0])) == pytest.approx((1.5 + 4 / 3) / 5)


def test_lexical_substitution(elmo):
    targets = [Target("b.n", ["a", "b"], 1, {"c": 2.0, "two words": 1.0}), Target("b.n", ["a", "b"], 1, {"d": 1.0}),
               Target("e.n", ["a", "e"], 1, {"two words": 1.0})]
    report = contexts.lexical_substitution(elmo, targets, "x", "nothing")
    found = figures(report)
    assert "2 texts of 2 words of x" in report.title
    # All candidates are equally far: c is first in both texts. In the other texts, the wrong one is more frequent.
    assert found["layer 1"] == found["layer 0, no context"] == (75.0,)
    assert found["frequency in the word's other texts"] == (50.0,) and 60 < found["random order"][0] < 90


def test_the_command(tmp_path, capsys, monkeypatch):
    """With the bundled model, and the errors of missing data and libraries."""
    assert run(capsys, "evaluate", "--task", "pos", "--data", tmp_path / "no") == (
        2, "", f"elmo-fast: error: data: expected a folder with the task's files, found nothing at {tmp_path / 'no'}\n")
    write(tmp_path, **{"rt-polarity__pos": "good\nfine\n" * 9, "rt-polarity__neg": "bad\nawful\n" * 9})
    status, out, _ = run(capsys, "evaluate", "bundled", "--task", "mr", "--data", tmp_path)
    lines = out.splitlines()
    assert status == 0 and lines[0] == ("sentiment of film reviews, linear probe: 36 texts of rt-polarity.pos and "
                                        "rt-polarity.neg, 5-fold cross-validation")
    assert [line.split("  ")[0] for line in lines[2:]][:3] == [
        "baseline: most frequent class", "baseline: TF-IDF of words and pairs", "baseline: layer 0, no context"]
    assert lines[-1].startswith("published: ") and len(lines) == 2 + 3 + 3 + 1
    for module in ("classification", "probe"):
        monkeypatch.delitem(sys.modules, f"elmo_fast.evaluate.{module}")
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    status, _, error = run(capsys, "evaluate", "--task", "mr", "--data", tmp_path)
    assert status == 1 and 'pip install ".[scikit-learn]"' in error and error.count("\n") == 1


@pytest.mark.long
@pytest.mark.parametrize("task", ["pos", "mr"])
def test_the_figures_of_the_docs(shared, capsys, task):
    """What elmo_fast/pretrained/README.md shows: the same lines, and figures within a point."""
    status, out, _ = run(capsys, "evaluate", "--task", task, "--data", shared / "text")
    assert status == 0
    page = (ROOT / "elmo_fast/pretrained/README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    shown, = (block for block in blocks if block.startswith(out.partition(",")[0]))
    number = re.compile(r"\d+\.\d")
    for line, wanted in zip(out.splitlines(), shown.splitlines(), strict=True):
        assert number.sub("", line).split() == number.sub("", wanted).split()
        found, stated = (list(map(float, number.findall(text))) for text in (line, wanted))
        assert found == pytest.approx(stated, abs=1)  # threads round differently, another C may be chosen
