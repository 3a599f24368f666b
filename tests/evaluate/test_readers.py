"""The tasks' files as they are published, and what is said of malformed ones."""

import pytest

from elmo_fast.errors import ConfigurationError
from elmo_fast.evaluate import data
from elmo_fast.evaluate.data import Pair, Target


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


def test_part_of_speech(tmp_path):
    rest = "\t_\t_\t_\t_\t_\t_\n"
    joined = rest.join(["1-2\tdon't\t_\t_", "1\tdo\t_\tAUX", "2\tn't\t_\tPART", "2.1\te\t_\tX", ""])
    write(tmp_path, **{"en-ud-dev__conllu": conllu("A/DET play/NOUN"), "en-ud-test__conllu": joined})
    split = data.read_pos(tmp_path)
    assert (split.train.texts, split.train.labels) == ([["A", "play"]], [["DET", "NOUN"]]) and split.dev is None
    assert (split.test.texts, split.test.labels) == ([["do", "n't"]], [["AUX", "PART"]])
    write(tmp_path, **{"en-ud-train__conllu": conllu("B/X C/Y", "D/X")})
    split = data.read_pos(tmp_path)
    assert split.train.labels == [["X", "Y"], ["X"]] and split.dev.labels == [["DET", "NOUN"]]


def test_sentences(tmp_path):
    mr = write(tmp_path / "mr", **{"rt-polarity__pos__txt": "good caf\xe9\n".encode("latin-1"),
                                   "rt-polarity__neg": "bad\nworse\n"})
    assert data.read_mr(mr).train[:2] == ([["good", "caf\xe9"], ["bad"], ["worse"]], ["positive", *["negative"] * 2])
    subj = write(tmp_path / "subj", quote__tok__gt9__5000="i think\n", plot__tok__gt9__5000="he goes\n")
    assert data.read_subj(subj).train[:2] == ([["i", "think"], ["he", "goes"]], ["subjective", "objective"])
    trec = write(tmp_path / "trec", train_5500__label="DESC:manner How does it ?\nLOC:city What city ?\n",
                 TREC_10__label="NUM:dist How far ?\n")
    train, test, dev = data.read_trec(trec)
    assert train.labels == ["DESC", "LOC"] and test[:2] == ([["How", "far", "?"]], ["NUM"]) and dev is None
    tree = "(3 (2 (2 A) (4 -LRB-)) (2 play))\n"
    sst = write(tmp_path / "sst", trees_in_train__txt=tree, trees_in_dev__txt="(0 (1 bad))\n", trees_in_test__txt=tree)
    train, test, dev = data.read_sst5(sst)
    assert train[:2] == ([["A", "(", "play"]], ["3"]) and dev.labels == ["0"] and test.texts == train.texts


def test_proteins(tmp_path):
    flip = write(tmp_path / "flip", sequences__fasta=">a x\nmkV\n>b\nAC\n>c\nK\n", sampled__fasta=(
        ">b SET=test VALIDATION=False\nHE\n>a SET=train VALIDATION=False\nCCH\n>c SET=train VALIDATION=True\nC\n"))
    train, test, dev = data.read_secondary_structure(flip)
    assert train[:2] == ([["M", "K", "V"]], [["C", "C", "H"]]) and test.labels == [["H", "E"]] and dev.labels == [["C"]]
    deeploc = write(tmp_path / "d", deeploc_data__fasta=(
        ">Q1 Cell.membrane-M\nMK\n>Q2 Cell.membrane-M test\nMV\n>Q3 Nucleus-U\nA\n"))
    train, test, dev = data.read_localization(deeploc)
    assert train.labels == ["Cell.membrane", "Nucleus"] and test.texts == [["M", "V"]] and dev is None
    parts = write(tmp_path / "p", **{f"deeploc_our_{part}_set__fasta": f">Q1 {part}-U\nMK\n"
                                     for part in ("train", "val", "test")})
    assert [part.labels for part in data.read_localization(parts)] == [["train"], ["test"], ["val"]]
    table = "sequence,target,set,validation\nMK,Nucleus,train,\nMV,Plastid,train,True\nMA,Nucleus,test,\n"
    train, test, dev = data.read_localization(write(tmp_path / "csv", mixed_soft__csv=table))
    assert (train.labels, test.labels, dev.labels) == (["Nucleus"], ["Nucleus"], ["Plastid"])


def test_words_in_context(tmp_path):
    pairs = "bank\tN\t1-0\ta bank .\tbanks lend .\nplay\tV\t0-1\tplay it .\tto play .\n"
    wic = write(tmp_path / "wic", train_in_train__data__txt=pairs, train_in_train__gold__txt="F\nT\n",
                dev_in_dev__data__txt=pairs, dev_in_dev__gold__txt="T\nT\n")
    train, test, source = data.read_wic(wic)
    assert train[0] == Pair((["a", "bank", "."], ["banks", "lend", "."]), (1, 0), False)
    assert [pair.same for pair in test] == [True, True] and source == "WiC, train -> dev"
    write(wic, test_in_test__data__txt=pairs, test_in_test__gold__txt="T\nF\n")
    assert [pair.same for pair in data.read_wic(wic)[1]] == [True, False]


def test_substitutes(tmp_path):
    xml = ('<?xml version="1.0" ?>\n<corpus><lexelt item="bright.a">\n<instance id="1">\n\t<context>He &amp; she , a '
           '<head>bright</head> boy&#8221 .</context></instance>'
           '<instance id="2"><context><head>Bright</head> light</context></instance>')
    gold = "bright.a 1 :: clever 3;very smart 1;\nbright.a 2 :: luminous 2;clever 1;\n"
    targets, source = data.read_substitutes(write(tmp_path / "lst", lst_all__xml=xml, lst_all__gold=gold))
    assert targets[0] == Target("bright.a", ["He", "&", "she", ",", "a", "bright", "boy\u201d", "."], 5,
                                {"clever": 3.0, "very smart": 1.0})
    assert (targets[1].place, source) == (0, "lst_all.xml")
    assert data.candidates_of(targets) == {"bright.a": ["clever", "luminous"]}
    coinco = ('<document><sent><tokens><token wordform="A" lemma="a" posMASC="DT"/><token wordform="mission" '
              'lemma="mission" posMASC="NN" problematic="no"><substitutions><subst lemma="task" freq="2"/>'
              "</substitutions></token>"
              '<token wordform="x" lemma="x" posMASC="NN" problematic="yes"><substitutions><subst lemma="y" freq="1"/>'
              "</substitutions></token></tokens></sent></document>")
    targets, _ = data.read_substitutes(write(tmp_path / "coinco", coinco__xml=coinco))
    assert targets == [Target("mission.N", ["A", "mission", "x"], 1, {"task": 2.0})]


@pytest.mark.parametrize("read, files, message", [
    (data.read_pos, {}, r"data: expected a file \*test\*.conllu below .*, found none"),
    (data.read_pos, {"a-test__conllu": conllu("a/B")}, r"data: expected a file \*train\*.conllu or \*dev\*.conllu"),
    (data.read_pos, {"a-test__conllu": "1\tword\n", "a-dev__conllu": conllu("a/B")},
     "data: expected ten columns of CoNLL-U, got .1.tword. at line 1 of"),
    (data.read_pos, {"a-test__conllu": "", "b-test__conllu": ""},
     r"one file \*test\*.conllu .*, got a-test.conllu, b-test"),
    (data.read_pos, {"a-test__conllu": "# no words\n", "a-dev__conllu": conllu("a/B")},
     "data: expected sentences of CoNLL-U, got none in .*a-test.conllu"),
    (data.read_secondary_structure, {"sequences__fasta": ">\nM\n", "sampled__fasta": ">a SET=train\nH\n"},
     "expected an identifier in every header, got none in .*sequences.fasta"),
    (data.read_secondary_structure, {"sequences__fasta": ">a\nM\n", "sampled__fasta": "> \nH\n"},
     "expected an identifier in every header, got none in .*sampled.fasta"),
    (data.read_localization, {"mixed_soft__csv": "sequence,target,set\nMK,x,val\n"},
     "expected a sequence, a target and train or test as set in every row, got .'MK', 'x', 'val'."),
    (data.read_localization, {"mixed_soft__csv": "sequence,target,set\nMK\n"}, "expected a sequence, a target and"),
    (data.read_substitutes, {"lst_all__xml": "", "lst_all__gold": "a.n 1 :: y z;"},
     "expected a number behind every substitute"),
    (data.read_trec, {"train_5500__label": "no label\n", "TREC_10__label": ""},
     "CLASS:subclass and a question, got 'no label' at line 1"),
    (data.read_sst5, {"train__txt": "A play .\n", "dev__txt": "", "test__txt": ""},
     "expected a tree like .*, got 'A play .'"),
    (data.read_secondary_structure, {"sequences__fasta": ">a\nMK\n", "sampled__fasta": ">a SET=train\nH\n"},
     "expected a label for every residue of sequences.fasta, got 1 for the 2 of a"),
    (data.read_secondary_structure, {"sequences__fasta": ">a\nM\n", "sampled__fasta": ">a\nH\n"},
     "expected SET=train or SET=test"),
    (data.read_localization, {"deeploc__fasta": ">a Nucleus-U\nM\n"}, "expected proteins of the test part, got none"),
    (data.read_localization, {"deeploc__fasta": ">a\nM\n"}, "expected an identifier and a place in the cell, got 'a'"),
    (data.read_localization, {"mixed_soft__csv": "a,b\n1,2\n"},
     "expected the columns sequence, target and set, got a, b"),
    (data.read_wic, {"dev__data__txt": "", "dev__gold__txt": ""},
     "expected two of train.gold.txt, dev.gold.txt and test"),
    (data.read_wic, {"train__data__txt": "w\tN\t9-0\ta\tb\n", "train__gold__txt": "T\n", "dev__gold__txt": "",
                     "dev__data__txt": ""}, "expected places inside the texts, and T or F as answer"),
    (data.read_substitutes, {"lst_all__xml": "<corpus/>", "lst_all__gold": "a.n 1 :: b 1;"},
     "expected <instance> with <context>"),
    (data.read_substitutes, {"lst_all__xml": "", "lst_all__gold": "a.n 1 b"},
     "expected WORD.CLASS NUMBER :: SUBSTITUTE COUNT"),
    (data.read_substitutes, {"coinco__xml": "<a>"}, "data: expected XML, got no element found"),
])
def test_malformed_data(tmp_path, read, files, message):
    with pytest.raises((ConfigurationError, FileNotFoundError), match=message):
        read(write(tmp_path, **files))


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(NotADirectoryError, match="data: expected a folder with the task's files, found nothing at"):
        data.folder_of(tmp_path / "none")
