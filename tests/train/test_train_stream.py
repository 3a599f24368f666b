"""Corpus to rows: counting, shuffling, packing, places to go on from."""

import itertools
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from elmo_fast.train.corpus import Lines, Shard, map_chunks, read_shards
from elmo_fast.train.data import Order, Rows, Sentences
from elmo_fast.train import corpus, data
from elmo_fast.train.corpus import make_vocabulary
from tests.support.files import ROOT
from tests.support.training import write_corpus


def plain_sentences(pattern_folder, reverse=False):
    """Every framed sentence, files in order of their names, with Python's own reading."""
    framed = []
    for path in sorted(pattern_folder.glob("part-*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            sentence = ["<S>", *line.split(), "</S>"]
            framed.append(sentence[::-1] if reverse else sentence)
    return framed


def plain_rows(sentences, rows, steps):
    """Batches packed position by position: each row takes the next sentence when its last token has been a target."""
    source, open_rows, batches = iter(sentences), [[]] * rows, []
    while True:
        batch = []
        for row in range(rows):
            pairs = []
            while len(pairs) < steps:
                if len(open_rows[row]) < 2:
                    open_rows[row] = next(source, None)
                    if open_rows[row] is None:
                        return batches
                pairs.append(tuple(open_rows[row][:2]))
                open_rows[row] = open_rows[row][1:]
            batch.append(pairs)
        batches.append(batch)


def as_pairs(inputs, targets, rows):
    pairs = list(zip(inputs, targets))
    steps = len(pairs) // rows
    return [pairs[first : first + steps] for first in range(0, len(pairs), steps)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("rows, steps", [(1, 1), (3, 4), (5, 20), (2, 7)])
def test_rows_are_packed_position_by_position(tmp_path, rows, steps, reverse):
    pattern, _ = write_corpus(tmp_path)
    expected = plain_rows(plain_sentences(tmp_path, reverse), rows, steps)
    reader = Rows(read_shards(pattern, "train"), Order(reverse=reverse), rows, steps)
    found = []
    with pytest.raises(StopIteration):
        while True:
            found.append(as_pairs(*reader.next(), rows))
    assert found == expected and len(found) > 0


def test_marks_are_never_read_or_predicted_from_the_wrong_side(tmp_path):
    pattern, _ = write_corpus(tmp_path)
    for reverse, first, last in ((False, "<S>", "</S>"), (True, "</S>", "<S>")):
        reader = Rows(read_shards(pattern, "train"), Order(7, reverse), 2, 5)
        sides = [reader.next() for _ in range(40)]
        inputs, targets = (list(itertools.chain.from_iterable(side)) for side in zip(*sides))
        assert last not in inputs and first not in targets
        assert first in inputs and last in targets


@pytest.mark.parametrize("mixed", [1, 40, 1 << 22])
def test_rows_go_on_from_any_position(tmp_path, monkeypatch, mixed):
    monkeypatch.setattr(data, "_GROUP_SENTENCES", mixed)
    shards = read_shards(write_corpus(tmp_path)[0], "train")
    reader = Rows(shards, Order(3, True, 1, 2), 3, 4)
    batches, positions = [], [reader.position()]
    for _ in range(60):  # more than an epoch
        batches.append(reader.next())
        positions.append(reader.position())
    assert positions[-1][0, 0] > 0
    for start in (0, 1, 7, 23, 59):
        again = Rows(shards, Order(3, True, 1, 2), 3, 4, positions[start])
        assert [again.next() for _ in range(60 - start)] == batches[start:]


def test_an_epoch_has_every_sentence_once_in_a_seeds_order(tmp_path):
    pattern, _ = write_corpus(tmp_path)
    shards = read_shards(pattern, "train")
    count = sum(shard.sentences for shard in shards)

    def epoch(**order):
        sentences = Sentences(shards, Order(**order))
        found = []
        while True:
            place, sentence = sentences.next()
            if place[0] > 0:
                return found
            found.append(tuple(sentence))

    everything = Counter(map(tuple, plain_sentences(tmp_path)))
    assert Counter(epoch(seed=1)) == everything
    assert epoch(seed=1) == epoch(seed=1) != epoch(seed=2)
    forward, backward = epoch(seed=1), epoch(seed=1, reverse=True)
    assert [sentence[::-1] for sentence in backward] != forward
    parts = [epoch(seed=1, stream=stream, streams=3) for stream in range(3)]
    assert sum(map(len, parts)) == count
    assert sum(map(Counter, parts), Counter()) == everything


def test_the_files_of_a_group_are_mixed(tmp_path, monkeypatch):
    for number in range(6):
        (tmp_path / f"part-{number}.txt").write_text(f"w{number}\n" * 40)
    shards = read_shards(str(tmp_path / "part-*"), "train")

    def files(count):
        sentences = Sentences(shards, Order(3))
        return [sentences.next()[1][1] for _ in range(count)]

    assert len(set(files(40))) == 6  # all at once
    monkeypatch.setattr(data, "_GROUP_SENTENCES", 80)
    found = files(240)
    assert all(len(set(found[first : first + 80])) == 2 for first in (0, 80, 160)) and set(found[:40]) == set(found[40:80])
    assert Counter(found) == {f"w{number}": 40 for number in range(6)}
    monkeypatch.setattr(data, "_GROUP_FILES", 1)
    assert all(len(set(files(240)[first : first + 40])) == 1 for first in range(0, 240, 40))


@pytest.mark.parametrize("text", ["one", "one\n", "\none\n\n two  three\r\n\n", "a\u2028b\x85c\u00a0d\n"])
def test_lines_are_those_of_the_file(tmp_path, text):
    path = tmp_path / "t.txt"
    path.write_bytes(text.encode())
    lines = Lines(str(path))
    expected = text.split("\n")[: -1 if text.endswith("\n") else None]
    assert [lines.tokens(number) for number in range(len(lines))] == [line.split() for line in expected]
    shard, = read_shards(str(path), "train")
    assert shard == Shard(str(path), len(text.encode()), len(expected), len(text.split()))


def test_pieces_of_files_are_whole_lines(tmp_path, monkeypatch):
    pattern, _ = write_corpus(tmp_path)
    texts = {str(path): path.read_text(encoding="utf-8") for path in tmp_path.glob("part-*.txt")}
    for size in (1, 7, 64, 1 << 20):
        monkeypatch.setattr(corpus, "_CHUNK", size)
        found = {path: "" for path in texts}
        for path, text in map_chunks(str, sorted(texts), processes=1):
            found[path] += text
            assert text == "" or text.endswith("\n")
        assert found == texts


def test_the_vocabulary_counts_over_processes(tmp_path, monkeypatch):
    pattern, _ = write_corpus(tmp_path, shards=4)
    counts = Counter(" ".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("part-*")).split())
    monkeypatch.setattr(corpus, "_CHUNK", 128)
    for processes in (1, 3):
        words, total = make_vocabulary(pattern, tmp_path / "v.txt", min_count=9, processes=processes)
        listed = (tmp_path / "v.txt").read_text(encoding="utf-8").splitlines()
        assert total == counts.total() and words == len(listed)
        assert listed[:3] == ["<S>", "</S>", "<UNK>"]
        assert listed[3:] == [word for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
                              if count >= 9]
    make_vocabulary(pattern, tmp_path / "v.txt", max_size=10)
    assert len((tmp_path / "v.txt").read_text(encoding="utf-8").splitlines()) == 10


def test_words_that_are_special_are_listed_once(tmp_path):
    (tmp_path / "t.txt").write_text("<S> a </S> <UNK> a !!!MAXTERMID <S>\n")
    make_vocabulary(str(tmp_path / "t.txt"), tmp_path / "v.txt")
    assert (tmp_path / "v.txt").read_text() == "<S>\n</S>\n<UNK>\na\n"


def test_bad_texts_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="train: expected files of text, found none at .*absent"):
        read_shards(str(tmp_path / "absent*"), "train")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ValueError, match="train: expected sentences in every file, found no token in .*empty.txt"):
        read_shards(str(tmp_path / "*.txt"), "train")
    (tmp_path / "empty.txt").write_bytes(b"fine\nfine again\nbad \xff\n")
    with pytest.raises(ValueError, match=r"empty.txt, line 3: expected UTF-8 text, got undecodable bytes"):
        read_shards(str(tmp_path / "empty.txt"), "train")
    with pytest.raises(ValueError, match="max_size: expected more than the 3 special words, got 3"):
        make_vocabulary(str(tmp_path / "empty.txt"), tmp_path / "v", max_size=3)
    with pytest.raises(FileNotFoundError, match="output: expected an existing directory"):
        make_vocabulary(str(tmp_path / "empty.txt"), tmp_path / "no" / "v")


def test_a_file_that_changed_is_noticed(tmp_path):
    shards = read_shards(write_corpus(tmp_path)[0], "train")
    with open(shards[0].path, "a") as file:
        file.write("one more\n")
    with pytest.raises(ValueError, match="part-0.txt: expected the 25 lines it had when the run began, found 26"):
        list(iter(Sentences(shards, Order()).next, None))


def test_memory_is_bounded(tmp_path):
    path = tmp_path / "big.txt"
    path.write_bytes(b"some words in a line here\n" * 400_000)  # 10 MB
    lines = Lines(str(path))
    assert lines._starts.nbytes <= 8 * 400_001 and len(lines) == 400_000
    assert lines.tokens(399_999) == "some words in a line here".split()
    assert os.path.getsize(path) > 3 * lines._starts.nbytes
    assert isinstance(lines._starts, np.ndarray)


ORPHANS = """
import sys, time
from elmo_fast.train import corpus

def slow(text):
    print("counting", flush=True)
    time.sleep(100)

corpus._CHUNK = 100
list(corpus.map_chunks(slow, sys.argv[1:], processes=2))
"""


def test_processes_that_count_end_with_a_killed_parent(tmp_path):
    write_corpus(tmp_path)
    parent = start_with(ORPHANS, *map(str, tmp_path.glob("part-*.txt")))
    assert parent.stdout.readline().startswith("counting")  # two processes may write into one line
    parent.kill()
    parent.communicate(timeout=30)  # ends when nobody has the pipe any more


def start_with(code, *arguments):
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True,
                            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
