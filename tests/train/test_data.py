"""Corpus to batches: counting, vocabularies, shuffling, rows, positions to resume from, sampled words."""

import bz2
import codecs
import gzip
import itertools
import lzma
from collections import Counter

import numpy as np
import pytest

from elmo_fast import ConfigurationError, Vocabulary
from elmo_fast.compat.bilm.data import LMDataset
from elmo_fast.text import corpus
from elmo_fast.text.corpus import Order, Sentences, make_vocabulary, read_shards
from elmo_fast.train.data import Rows, draw_unique, log_expected_count, probabilities
from tests.support import plain_training as plain
from tests.support.files import run, start
from tests.support.training import write_corpus


@pytest.fixture
def shards(tmp_path):
    return read_shards(write_corpus(tmp_path)[0], "train")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("rows, steps", [(1, 1), (3, 4), (5, 20), (2, 7)])
def test_rows_are_packed_position_by_position(tmp_path, shards, rows, steps, reverse):
    """Tokens and targets, boundaries included."""
    expected = plain.rows(plain.sentences(tmp_path, reverse), rows, steps)
    reader = Rows(shards, Order(reverse=reverse), rows, steps)
    for batch in expected:
        assert list(zip(*reader.next())) == list(itertools.chain(*batch))
    with pytest.raises(StopIteration):
        reader.next()
    assert len(expected) > 0


def test_rows_continue_from_any_position(shards):
    reader = Rows(shards, Order(3, True, 1, 2), 3, 4)
    batches, positions = [], [reader.position()]
    for _ in range(60):  # more than an epoch
        batches.append(reader.next())
        positions.append(reader.position())
    assert positions[-1][0, 0] > 0
    for first in (0, 1, 7, 23, 59):
        second = Rows(shards, Order(3, True, 1, 2), 3, 4, positions[first])
        assert [second.next() for _ in range(60 - first)] == batches[first:]


def test_an_epoch_has_every_sentence_once_in_a_seeds_order(tmp_path, shards):
    def epoch(**order):
        first = itertools.takewhile(lambda item: item[0][0] == 0, Sentences(shards, Order(**order)))
        return [tuple(sentence) for _, sentence in first]

    everything = Counter(map(tuple, plain.sentences(tmp_path)))
    assert Counter(epoch(seed=1)) == everything
    assert epoch(seed=1) == epoch(seed=1) != epoch(seed=2)
    assert [sentence[::-1] for sentence in epoch(seed=1, reverse=True)] != epoch(seed=1)
    streams = [epoch(seed=1, stream=stream, streams=3) for stream in range(3)]
    assert sum(map(Counter, streams), Counter()) == everything


def test_the_files_of_a_group_are_mixed(tmp_path):
    for number in range(300):
        (tmp_path / f"part-{number}.txt").write_text(f"w{number}\n" * 10)
    sentences = Sentences(read_shards(str(tmp_path / "part-*"), "train"), Order(3))
    words = [next(sentences)[1][1] for _ in range(3000)]
    assert len(set(words[:100])) > 50 and Counter(words) == {f"w{number}": 10 for number in range(300)}
    assert len(set(words[:2560])) == 256 and not set(words[:2560]) & set(words[2560:])  # a group has 256 files


def test_the_vocabulary_counts_over_processes_and_has_special_words_once(tmp_path, monkeypatch):
    pattern, _ = write_corpus(tmp_path, shards=4)
    (tmp_path / "part-4.txt").write_text("<S> ka </S> <UNK> !!!MAXTERMID <S>\n" * 20)
    counts = Counter(" ".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("part-*")).split())
    monkeypatch.setattr(corpus, "_CHUNK", 128)
    words = counts.keys() - {"<S>", "</S>", "<UNK>", "!!!MAXTERMID"}
    words = sorted((word for word in words if counts[word] >= 9), key=lambda word: (-counts[word], word))
    expected, output = ["<S>", "</S>", "<UNK>", *words], tmp_path / "v.txt"
    for processes in (1, 3):
        totals = make_vocabulary(pattern, output, min_count=9, processes=processes)
        assert totals == (len(expected), counts.total()) and output.read_text(encoding="utf-8").splitlines() == expected
    with pytest.raises(ConfigurationError, match="output: expected a file other than the inputs, got"):
        make_vocabulary([str(output), pattern], output)
    make_vocabulary(pattern, output, max_size=10)
    assert output.read_text(encoding="utf-8").splitlines() == expected[:10]
    with pytest.raises(ValueError, match="max_size: expected more than the 3 special words, got 3"):
        make_vocabulary(pattern, output, max_size=3)
    with pytest.raises(FileNotFoundError, match="output: expected an existing directory"):
        make_vocabulary(pattern, tmp_path / "no" / "v")


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path):
    for name, text in (("a.txt", "the play\nthe\n"), ("b.txt", "the")):
        (tmp_path / name).write_bytes(codecs.BOM_UTF8 + text.encode())
    assert make_vocabulary(str(tmp_path / "?.txt"), tmp_path / "v") == (5, 4)
    assert (tmp_path / "v").read_text().split() == ["<S>", "</S>", "<UNK>", "the", "play"]
    shards = read_shards(str(tmp_path / "?.txt"), "train")
    assert [(shard.sentences, shard.tokens) for shard in shards] == [(2, 3), (1, 1)]
    assert [tokens[1:-1] for _, tokens in Sentences(shards, Order())] == [["the", "play"], ["the"], ["the"]]
    (tmp_path / "v").write_bytes(codecs.BOM_UTF8 + (tmp_path / "v").read_bytes())
    data = LMDataset(tmp_path / "a.txt", Vocabulary(tmp_path / "v"), test=True)
    assert [ids.tolist() for ids, _ in data.get_sentence()] == [[0, 3, 4, 1], [0, 3, 1]]


def test_a_changed_file_is_noticed(shards):
    with open(shards[0].path, "a") as file:
        file.write("one more\n")
    with pytest.raises(ValueError, match="part-0.txt: expected the 25 lines it had when the run began, found 26"):
        list(Sentences(shards, Order()))


ORPHANS = """
import sys, time
from elmo_fast.text import corpus

def slow(text):
    print("counting", flush=True)
    time.sleep(100)

corpus._CHUNK = 100
list(corpus.map_chunks(slow, {!r}, processes=2))
"""


def test_processes_that_count_end_with_a_killed_parent(tmp_path):
    write_corpus(tmp_path)
    parent = start(ORPHANS.format([str(path) for path in tmp_path.glob("part-*.txt")]))
    assert parent.stdout.readline().startswith("counting")  # two processes may write into one line
    parent.kill()
    parent.communicate(timeout=30)  # ends when no process holds the pipe


def test_draws_are_unique_follow_the_law_and_are_counted():
    size, count, rounds = 50, 6, 4000
    counts, expected = np.zeros(size), np.zeros(size)
    for number in range(rounds):
        words, draws = draw_unique(np.random.default_rng([1, number]), count, size)
        assert len(set(words.tolist())) == count <= draws and words.min() >= 0 and words.max() < size
        counts[words] += 1
        expected += 1 - (1 - probabilities(np.arange(size), size)) ** draws
    # The count of every word, against the prediction from the counts of draws.
    spread = np.sqrt(np.maximum(expected * (1 - expected / rounds), 1))
    assert (abs(counts - expected) / spread).max() < 5
    first = np.array([draw_unique(np.random.default_rng([2, number]), 1, size)[0][0] for number in range(rounds)])
    law = probabilities(np.arange(size), size)
    assert (abs(np.bincount(first, minlength=size) / rounds - law) / np.sqrt(law / rounds)).max() < 5


@pytest.mark.parametrize("count, draws", [(1, 1), (6, 6), (6, 7), (6, 30)])
def test_expected_counts_are_tensorflows(count, draws):
    """Those of `log_uniform_candidate_sampler` (range_sampler.cc): k p if every draw was new."""
    law = probabilities(np.arange(50), 50)
    expected = count * law if draws == count else 1 - (1 - law) ** draws
    np.testing.assert_allclose(np.exp(log_expected_count(np.arange(50), 50, draws, count)), expected, rtol=1e-6)


@pytest.mark.parametrize("suffix, compress", [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)])
@pytest.mark.parametrize("name, convert, flags", [
    ("t.txt", str, []), ("t.raw", lambda text: text.replace(" .", "."), ["--format", "text", "--tokenizer", "penn"]),
    ("t.csv", lambda text: "n,s\n" + "".join(f'1,"{line}"\n' for line in text.splitlines()), ["--field", "s"])])
def test_a_vocabulary_of_any_text_is_that_of_its_tokens(tmp_path, capsys, suffix, compress, name, convert, flags):
    text = "The cat sat .\n\nThe cat , the hat .\n" if name == "t.txt" else "The cat sat .\nA cat .\n"
    (tmp_path / "plain.txt").write_text(text)
    (tmp_path / (name + suffix)).write_bytes(compress(convert(text).encode()))
    for source, output, extra in (("plain.txt", "v", []), (name + suffix, "w", flags)):
        status, printed, _ = run(capsys, "vocab", tmp_path / source, tmp_path / output, *extra)
        assert status == 0 and f"from {len(text.split())} tokens" in printed
    assert (tmp_path / "w").read_bytes() == (tmp_path / "v").read_bytes()


def test_tokens_with_white_space_have_no_place_in_a_vocabulary(tmp_path, capsys):
    (tmp_path / "t.jsonl").write_text('{"text": ["a"]}\n{"text": ["New York", "slept"]}\n')
    status, _, error = run(capsys, "vocab", tmp_path / "t.jsonl", tmp_path / "v")
    assert status == 2 and "expected tokens without white space" in error and "in text 2 of" in error
