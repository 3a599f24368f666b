"""`benchmarks.evaluate`: the tasks on small files as they are published, whose right answers are known."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.files import ROOT

pytest.importorskip("sklearn")

from benchmarks.evaluate import __main__ as command
from benchmarks.evaluate import contexts, data, tasks
from benchmarks.evaluate.data import Pair, Target, Texts

WORDS = "a b c d e f g h i k".split()


def write(folder, **files):
    """Write files by name, in which `__` is a dot and `_in_` a folder; returns the folder."""
    for name, content in files.items():
        path = folder / name.replace("_in_", "/").replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def conllu(*sentences):
    """Sentences of `word/TAG` tokens as CoNLL-U."""
    blocks = []
    for sentence in sentences:
        pairs = [token.split("/") for token in sentence.split()]
        blocks.append("# text\n" + "".join(f"{number}\t{word}\t_\t{tag}\t_\t_\t0\t_\t_\t_\n"
                                           for number, (word, tag) in enumerate(pairs, start=1)))
    return "\n".join(blocks) + "\n"


class Elmo:
    """A model whose layer 0 is the word, and whose layer 1 is the word and the one before it."""

    bilm = SimpleNamespace(num_layers=2)

    def stream(self, texts, state):
        assert state == "warm"
        for text in texts:
            words = np.array([[float(word.lower() == entry) for entry in WORDS] for word in text], np.float32)
            before = np.vstack([np.zeros((1, len(WORDS)), np.float32), words[:-1]])
            yield np.stack([np.hstack([words, 0 * before]), np.hstack([words, before])])


def figures_of(task, folder, **arguments):
    """The report of a task with `Elmo`, and its figures in % by name."""
    report = tasks.evaluate(Elmo(), task, folder, **arguments)
    return report, {row.name: tuple(round(mean, 1) for mean, _ in row.figures)
                    for row in [*report.baselines, *report.rows]}


def test_part_of_speech(tmp_path):
    """The tag of b is X after a and Y after c: the word alone is right half of the time."""
    sentences = ["a/A b/X", "c/C b/Y", "d/D e/E"]
    write(tmp_path, **{"t-train__conllu": conllu(*sentences * 20), "t-dev__conllu": conllu(*sentences * 2),
                       "t-test__conllu": conllu(*sentences[:2] * 9, "z/A b/X")})
    report, rates = figures_of("pos", tmp_path)
    # Of 38 tokens, 18 are a or c, 10 are b as X, 9 b as Y, and z is new. A tie goes to X.
    assert rates["most frequent tag"] == (round(100 * 29 / 38, 1), 100.0)
    assert rates["layer 0, no context"][0] in (71.1, 73.7, 76.3)  # one of the tags for every b, and any for z
    assert min(rates[name][0] for name in ("layer 1", "word, affixes, neighbours",
                                           "average of the layers + word, affixes, neighbours")) >= 94
    assert "120 tokens of t-train.conllu -> 38 of t-test.conllu" in report.title
    assert any("Liu et al. 2019" in line for line in report.lines())


def test_sentences(tmp_path):
    """Positive and negative texts have the same words in another order."""
    mr = write(tmp_path, **{"rt-polarity__pos__txt": "a b c d\n" * 30, "rt-polarity__neg": "d b c a\n" * 30})
    (report, rates), (second_report, _) = (figures_of("mr", mr) for _ in range(2))
    assert list(report.lines()) == list(second_report.lines())
    assert rates["average of the layers"] == rates["all layers"] == rates["TF-IDF of words and pairs"] == (100.0,)
    assert 30 <= rates["layer 0, no context"][0] <= 70 and 30 <= rates["most frequent class"][0] <= 50
    trec = write(tmp_path, train_5500__label="X:x a b\nY:y c d\nY:z c e\n" * 99,
                 TREC_10__label="X:x a b\nY:y c d\nX:y c d\n")
    _, rates = figures_of("trec", trec)
    assert rates["all layers"] == rates["TF-IDF of words and pairs"] == (66.7,)
    assert rates["most frequent class"] == (33.3,)


def test_proteins(tmp_path):
    sequences = {f"p{k}": "abcd" if k % 2 else "dbca" for k in range(40)}
    labels = "".join(f">p{k} SET={'train' if k < 30 else 'test'} VALIDATION=False\n{'HHEC' if k % 2 else 'EHHC'}\n"
                     for k in range(40))
    write(tmp_path, sequences__fasta="".join(f">{name}\n{text}\n" for name, text in sequences.items()),
          sampled__fasta=labels)
    assert tasks.spaced(Texts([*sequences.values()], list(range(40)), ""), 4).labels == [0, 10, 20, 30]
    report, rates = figures_of("secondary_structure", tmp_path, limit=20)
    # b is H in both kinds of proteins; a, c and d have a state in half of them each.
    assert rates["most frequent state of the residue"] == (62.5,)
    assert "80 tokens" in report.title and "SeqVec 79" in report.published
    assert [*report.lines()][-1] == "learned from 20 of the 30 texts of the training part (--limit)"
    rows = "".join(f">p{k} {'Nucleus' if k % 2 else 'Plastid'}-U{' test' if k >= 30 else ''}\n{text}\n"
                   for k, text in enumerate(sequences.values()))
    _, rates = figures_of("localization", write(tmp_path / "d", deeploc_data__fasta=rows))
    assert rates["all layers"] == (100.0,) and rates["layer 0, no context"] == rates["most frequent class"] == (50.0,)


def test_words_in_context(tmp_path):
    """The same word before both words b means the same: cosines are 1 or 1/2 in layer 1, always 1 in layer 0."""
    cosines = contexts.pair_cosines(Elmo(), [Pair((["a", "b"], [word, "b"]), (1, 1)) for word in "ac"])
    np.testing.assert_allclose(cosines["layer 1"], [1, 0.5], atol=1e-6)
    np.testing.assert_allclose(cosines["layer 0, no context"], [1, 1], atol=1e-6)
    assert 0.5 < contexts.best_threshold(np.array([0.9, 0.5, 0.2]), np.array([True, False, False])) < 0.9
    lines = "b\tN\t1-1\ta b\ta b\nb\tN\t1-1\ta b\tc b\n"
    for part in ("train", "dev"):
        write(tmp_path, **{f"{part}_in_{part}__data__txt": lines * 5, f"{part}_in_{part}__gold__txt": "T\nF\n" * 5})
    report, rates = figures_of("wic", tmp_path)
    assert rates["layer 1"] == (100.0,) and rates["layer 0, no context"] == rates["most frequent answer"] == (50.0,)
    assert "10 -> 10 pairs of WiC, train -> dev" in report.title


def test_lexical_substitution(tmp_path):
    gold = "b.n 1 :: c 2;two words 1;\nb.n 2 :: d 1;\ne.n 3 :: two words 1;\n"
    text = "".join(f'<instance id="{number}"><context>a <head>{word}</head></context></instance>'
                   for number, word in enumerate("bbe", start=1))
    report, rates = figures_of("lexical_substitution", write(tmp_path, lst_all__xml=text, lst_all__gold=gold))
    assert "2 texts of 2 words of lst_all.xml" in report.title
    # All candidates are equally far: c is first in both texts. In the other texts, the wrong one is more frequent.
    assert rates["layer 1"] == rates["layer 0, no context"] == (75.0,)
    assert rates["frequency in the word's other texts"] == (50.0,) and 60 < rates["random order"][0] < 90
    # ranked: 0, 3, 1 -> (3/2 + 4/3) of (3 + 4/2)
    assert contexts.gap(np.array([2, 1, 3]), np.array([3.0, 1.0, 0.0])) == pytest.approx((1.5 + 4 / 3) / 5)


def test_files_as_they_are_published(tmp_path):
    columns = "\t_\t_\t_\t_\t_\t_\n"
    joined = columns.join(["1-2\tdon't\t_\t_", "1\tdo\t_\tAUX", "2\tn't\t_\tPART", "2.1\te\t_\tX", ""])
    split = data.read_pos(write(tmp_path / "pos", dev__conllu=conllu("A/DET play/NOUN"), test__conllu=joined))
    assert (split.test.texts, split.test.labels) == ([["do", "n't"]], [["AUX", "PART"]]) and split.dev is None
    subj = write(tmp_path / "subj", quote__tok__gt9__5000="i think\n", plot__tok__gt9__5000="he goes\n")
    assert data.read_subj(subj).train[:2] == ([["i", "think"], ["he", "goes"]], ["subjective", "objective"])
    tree = "(3 (2 (2 A) (4 -LRB-)) (2 play))\n"
    sst = write(tmp_path / "sst", trees_in_train__txt=tree, trees_in_dev__txt="(0 (1 bad))\n", trees_in_test__txt=tree)
    train, test, dev = data.read_sst5(sst)
    assert train[:2] == ([["A", "(", "play"]], ["3"]) and dev.labels == ["0"] and test.texts == train.texts
    table = "sequence,target,set,validation\nMK,Nucleus,train,\nMV,Plastid,train,True\nMA,Nucleus,test,\n"
    train, test, dev = data.read_localization(write(tmp_path / "csv", mixed_soft__csv=table))
    assert (train.labels, test.labels, dev.labels) == (["Nucleus"], ["Nucleus"], ["Plastid"])
    coinco = ('<document><sent><tokens><token wordform="A" lemma="a" posMASC="DT"/><token wordform="mission" '
              'lemma="mission" posMASC="NN" problematic="no"><substitutions><subst lemma="task" freq="2"/>'
              "</substitutions></token></tokens></sent></document>")
    part = data.read_substitutes(write(tmp_path / "coinco", coinco__xml=coinco)).train
    assert (part.texts, part.labels) == ([Target("mission.N", ["A", "mission"], 1)], [{"task": 2.0}])


def test_the_command(tmp_path, capsys):
    """With the bundled model, and without the data."""
    assert command.main(["--task", "pos", "--data", str(tmp_path / "no")]) == 2
    assert capsys.readouterr().err == ("benchmarks.evaluate: error: data: expected a folder with the task's files, "
                                       f"found none at {tmp_path / 'no'}\n")
    write(tmp_path, **{"rt-polarity__pos": "good\nfine\n" * 9, "rt-polarity__neg": "bad\nawful\n" * 9})
    assert command.main(["bundled", "--task", "mr", "--data", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ("sentiment of film reviews, linear probe: 36 texts of rt-polarity.pos and "
                        "rt-polarity.neg, 5-fold cross-validation")
    assert [line.split("  ")[0] for line in lines[2:]][:3] == [
        "baseline: most frequent class", "baseline: TF-IDF of words and pairs", "baseline: layer 0, no context"]
    assert lines[-1].startswith("published: ") and len(lines) == 2 + 3 + 3 + 1


@pytest.mark.long
def test_the_figures_of_the_docs(shared, capsys):
    """elmo_fast/pretrained/README.md has the lines of the bundled model, and its figures within a point.

    Of its two tasks the one whose probe reads every layer: the other takes twice as long.
    """
    assert command.main(["--task", "pos", "--data", str(shared / "text")]) == 0
    out = capsys.readouterr().out
    page = (ROOT / "elmo_fast/pretrained/README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    table, = (block for block in blocks if block.startswith(out.partition(",")[0]))
    number = re.compile(r"\d+\.\d")
    for line, table_line in zip(out.splitlines(), table.splitlines(), strict=True):
        assert number.sub("", line).split() == number.sub("", table_line).split()
        actual, stated = (list(map(float, number.findall(text))) for text in (line, table_line))
        assert actual == pytest.approx(stated, abs=1)  # threads round differently, another C may be chosen
