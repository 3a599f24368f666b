"""Corpora in sections: whatever ends a run, the run that goes on gives what an uninterrupted one gives."""

import io
import json
import logging
import os
import shutil
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from elmo_fast import ConfigurationError, ElmoEmbedder, FastaRecord, open_embeddings
from elmo_fast.embed import corpus, writer
from elmo_fast.embed import stream as slot_stream
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.embed.corpus import Target, write_corpus
from elmo_fast.embed.form import Form
from elmo_fast.embed.partial import PartialResult
from elmo_fast.embed.readers import Text
from tests.support.files import full_disk, names
from tests.support.grid import grid
from tests.support.models import SHAPES, bilm

RNG = np.random.default_rng(0)
TEXTS = [[f"word{k}" for k in RNG.integers(0, 40, length)] for length in RNG.integers(0, 9, 40)]
TEXTS[3] = TEXTS[8] = TEXTS[9] = TEXTS[39] = []


class PowerCutError(Exception):
    """In place of a kill."""


@pytest.fixture(autouse=True)
def short_sections(monkeypatch):
    """A commit after every group, and little reading ahead."""
    monkeypatch.setattr(corpus, "COMMIT_SECONDS", 0)
    monkeypatch.setattr(slot_stream, "_ROWS_PER_CHUNK", 32)


def model(state="carry", seed=0):
    return ElmoEmbedder.from_bilm(bilm(SHAPES["clips that fire"], seed, state=state, backend="native"))


def embed(output, state="carry", slots=3, texts=TEXTS, layout="allennlp", form=None, resume=False, seed=0,
          seconds=None):
    embedder = model(state, seed)
    items = (Text(str(number), " ".join(tokens), tokens) for number, tokens in enumerate(texts))
    write_corpus(items, embedder.runner(slots), Target(output, layout, form or Form()), resume=resume,
                 commit_seconds=seconds)
    return embedder.elmo_bilm.lstm._states


def content(path):
    """The values of every array, and of AllenNLP's index."""
    with open_embeddings(path) as found:
        arrays = [values.tobytes() for values in found]
        keys = list(found.keys)
    index = None
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            index = json.loads(file["sentence_to_index"][0]) if "sentence_to_index" in file else None
    return keys, arrays, index


@pytest.fixture
def cut(monkeypatch):
    """`cut(n)`: the n-th commit from now on is the last thing that happens."""
    commit = PartialResult.commit

    def after(count, before=False):
        left = [count]

        def committing(*arguments):
            left[0] -= 1
            if left[0] == 0 and before:
                raise PowerCutError
            commit(*arguments)
            if left[0] == 0:
                raise PowerCutError

        monkeypatch.setattr(PartialResult, "commit", committing)

    yield after
    monkeypatch.setattr(PartialResult, "commit", commit)


@pytest.mark.parametrize("state, slots, cuts, layout", grid(
    ["carry", "zero", "warm"], [1, 3, 64], [(1,), (2, 1), (4, 3, 1)],
    [("allennlp", "o.h5"), ("packed", "o.h5"), ("packed", "o"), ("npz", "o.npz")]))
def test_a_run_that_goes_on_gives_what_an_uninterrupted_one_gives(tmp_path, cut, state, slots, cuts, layout):
    layout, name = layout
    (tmp_path / "whole").mkdir()
    whole, output = tmp_path / "whole" / name, tmp_path / name
    expected_states = embed(whole, state, slots, layout=layout, seconds=1000)
    for count in cuts:
        if slots > len(TEXTS):
            break  # one batch, and nothing to cut
        cut(count)
        with pytest.raises(PowerCutError):
            embed(output, state, slots, layout=layout, resume=True)
        assert names(tmp_path) == [f"{name}.part", "whole"]
    cut(1000)
    states = embed(output, state, slots, layout=layout, resume=True)
    assert content(output) == content(whole) and names(tmp_path) == [name, "whole"]
    for one, other in zip(states or (), expected_states or (), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("state", ["carry", "warm"])
def test_sections_do_not_change_a_result(tmp_path, state, count):
    for name, seconds in (("a.h5", 1000), ("b.h5", 0)):
        embed(tmp_path / name, state, 2, TEXTS[:count], seconds=seconds)
    assert content(tmp_path / "a.h5") == content(tmp_path / "b.h5") and names(tmp_path) == ["a.h5", "b.h5"]
    expected = list(model(state).embed_sentences(TEXTS[:count], 2))
    assert content(tmp_path / "a.h5")[1] == [values.tobytes() for values in expected]


def test_a_run_of_one_section_has_no_partial_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(PartialResult, "commit", lambda *_: pytest.fail("a commit"))
    embed(tmp_path / "o.h5", seconds=1000)
    assert names(tmp_path) == ["o.h5"]


@pytest.fixture
def interrupted(tmp_path, cut):
    """An output of which four sections are done."""
    cut(4)
    with pytest.raises(PowerCutError):
        embed(tmp_path / "o.h5")
    cut(1000)
    return tmp_path / "o.h5"


OTHER = [["another"], *TEXTS[1:]]
CHANGED_LATE = [*TEXTS[:10], ["another"], *TEXTS[11:]]


@pytest.mark.parametrize("arguments, message", [
    ({"texts": OTHER, "resume": True}, "resume: expected an input that begins with the 12 texts that are done in .*"),
    ({"texts": CHANGED_LATE, "resume": True}, "resume: expected an input"),
    ({"texts": TEXTS[:11], "resume": True}, "resume: expected an input"),
    ({"texts": [], "resume": True}, "resume: expected an input"),
    ({"slots": 4, "resume": True}, "resume: expected the settings of .*part, which has batch_size 3 and not 4"),
    ({"state": "zero", "resume": True}, "resume: .* has state 'carry' and not 'zero'"),
    ({"seed": 1, "resume": True}, "resume: .* has model '.*' and not '.*'"),
    ({"form": Form("top"), "resume": True}, "resume: .* has layers 'all' and not 'top'"),
    ({"form": Form(targets=frozenset({"word1"})), "resume": True}, "resume: .* has targets None and not '"),
    ({}, r"output: found a partial result of 12 texts of this input in .*o.h5.part; resume \(--resume\) goes on after"),
])
def test_what_does_not_fit_is_refused_and_the_partial_result_stays(interrupted, arguments, message):
    before = sorted(path.name for path in interrupted.with_name("o.h5.part").iterdir())
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        embed(interrupted, **arguments)
    assert names(interrupted.parent) == ["o.h5.part"]
    assert sorted(path.name for path in interrupted.with_name("o.h5.part").iterdir()) == before


@pytest.mark.parametrize("arguments", [{"texts": OTHER}, {"slots": 4}, {"state": "warm"}, {"texts": TEXTS[:2]}])
@pytest.mark.parametrize("seconds", [0, 1000])
def test_another_run_replaces_a_partial_result_and_says_so(interrupted, caplog, arguments, seconds):
    embed(interrupted, **arguments, seconds=seconds)
    assert "the partial result of 12 texts will be replaced: it has" in caplog.text
    embed(interrupted.with_name("whole.h5"), **arguments, seconds=1000)
    assert content(interrupted) == content(interrupted.with_name("whole.h5"))
    assert names(interrupted.parent) == ["o.h5", "whole.h5"]


def test_a_partial_result_stays_until_another_run_has_one(interrupted):
    def texts():
        yield Text("0", "a", ["a"])
        raise PowerCutError

    with pytest.raises(PowerCutError):
        write_corpus(texts(), model().runner(1), Target(interrupted, "allennlp"), commit_seconds=1000)
    embed(interrupted, resume=True)


def test_the_batch_size_may_change_where_states_are_not_carried(tmp_path, cut):
    embed(tmp_path / "whole.h5", "warm")
    cut(2)
    with pytest.raises(PowerCutError):
        embed(tmp_path / "o.h5", "warm")
    cut(1000)
    embed(tmp_path / "o.h5", "warm", 7, resume=True)
    assert content(tmp_path / "o.h5") == content(tmp_path / "whole.h5")


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


def flip(path):
    values = bytearray(path.read_bytes())
    values[len(values) // 2] ^= 1
    path.write_bytes(values)


@pytest.mark.parametrize("damage", [truncate, flip, os.unlink])
@pytest.mark.parametrize("name, texts", [("000003", 9), ("000003.states", 9), ("000001", 3), ("000000", 0),
                                         ("000000.states", 0)])
def test_damaged_segments_are_dropped(interrupted, caplog, damage, name, texts):
    damage(interrupted.with_name("o.h5.part") / name)
    embed(interrupted, resume=True)
    assert f"going on after {texts} texts, not 12" in caplog.text
    embed(interrupted.with_name("whole.h5"), seconds=1000)
    assert content(interrupted) == content(interrupted.with_name("whole.h5"))


@pytest.mark.parametrize("damage", [truncate, flip, *(lambda path, text=text: path.write_text(text)
                                                      for text in ("[]", ""))])
def test_damaged_progress_is_refused(interrupted, damage):
    damage(interrupted.with_name("o.h5.part") / "progress.json")
    with pytest.raises(ConfigurationError, match="^partial result: expected the bytes that were written to .*progress"):
        embed(interrupted, resume=True)


@pytest.mark.parametrize("make", [lambda path: path.write_text("mine"), os.mkdir])
def test_what_is_not_a_partial_result_is_left_alone(tmp_path, make):
    make(tmp_path / "o.h5.part")
    for resume in (False, True):
        with pytest.raises(ConfigurationError, match="^output: expected nothing or a partial result at .*o.h5.part"):
            embed(tmp_path / "o.h5", resume=resume)
    assert names(tmp_path) == ["o.h5.part"]


def test_what_killed_processes_left_is_removed_but_not_partial_results(interrupted):
    """As after a kill: the lock's file names what was written; the next process removes that alone."""
    (interrupted.parent / "o.h5.lock").write_text("1 host .0123abcd.part\n")
    (interrupted.parent / "o.h5.0123abcd.part").mkdir()
    embed(interrupted, resume=True)
    assert names(interrupted.parent) == ["o.h5"]


@pytest.mark.parametrize("size", [4000, 40_000])
def test_a_full_disk_leaves_what_was_committed(tmp_path, caplog, size):
    output = tmp_path / "o.h5"
    with full_disk(size), pytest.raises(OSError, match=f"File too large.*: '{output}'"):
        embed(output, slots=5, texts=[[f"word{k}"] * (2 + 60 * (k > 30)) for k in range(40)])
    assert names(tmp_path) in ([], ["o.h5.part"])
    texts = [[f"word{k}"] * (2 + 60 * (k > 30)) for k in range(40)]
    embed(output, slots=5, texts=texts, resume=True)
    embed(tmp_path / "whole.h5", slots=5, texts=texts, seconds=1000)
    assert content(output) == content(tmp_path / "whole.h5")


def test_a_directory_that_is_removed_ends_the_run(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()

    def texts():
        for number in range(50):
            if number == 20:
                shutil.rmtree(folder)
            yield Text(str(number), "a", ["a"])

    with pytest.raises(OSError):
        write_corpus(texts(), model().runner(1), Target(folder / "o.h5", "allennlp"))


@pytest.mark.parametrize("state", ["carry", "warm"])
def test_a_stop_keeps_what_was_committed(tmp_path, state):
    def texts():
        for number, tokens in enumerate(TEXTS):
            if number == 30:
                signal.raise_signal(signal.SIGINT)
            yield Text(str(number), " ".join(tokens), tokens)

    with pytest.raises(KeyboardInterrupt, match=r"^interrupted; .* texts are done; resume \(--resume\) goes on after"):
        write_corpus(texts(), model(state).runner(3), Target(tmp_path / "o.h5", "allennlp"))
    assert names(tmp_path) == ["o.h5.part"]
    embed(tmp_path / "o.h5", state, resume=True)
    embed(tmp_path / "whole.h5", state, seconds=1000)
    assert content(tmp_path / "o.h5") == content(tmp_path / "whole.h5")


def test_errors_of_the_writer_reach_the_caller_and_end_the_queue(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "_QUEUED_BYTES", 100)
    taken = []

    def texts():
        for number in range(10_000):
            taken.append(number)
            yield Text("a/." if number == 7 else str(number), "a", ["a"])

    with pytest.raises(ConfigurationError, match="got 'a/.'"):
        write_corpus(texts(), model("zero").runner(1), Target(tmp_path / "o.h5", "allennlp"), commit_seconds=1000)
    assert len(taken) < 9_000 and names(tmp_path) == []


@pytest.mark.parametrize("name, options, message", [
    ("o.h5", {}, "output: expected different identifiers, got 'twice' twice"),
    ("o.npz", {}, "output: expected different identifiers, got 'twice' twice"),
    ("o.h5", {"use_sentence_keys": True}, "use_sentence_keys: expected different sentences, got 'b' twice"),
])
def test_a_key_given_twice_is_refused_across_segments(tmp_path, name, options, message):
    def texts():
        for number in range(100):
            yield Text("twice" if number in (2, 30) else str(number), "b" if number in (2, 30) else f"a{number}", ["a"])
        pytest.fail("read to the end")

    target = Target(tmp_path / name, "npz" if name == "o.npz" else "allennlp", options=options)
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        write_corpus(texts(), model("zero").runner(3), target)


def test_the_queue_is_bounded_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "_QUEUED_BYTES", 5000)
    most, write = [0], writer.SegmentWriter.write

    def writing(self, text, vectors):
        write(self, text, vectors)
        most[0] = max(most[0], self._bytes - vectors.nbytes)

    monkeypatch.setattr(writer.SegmentWriter, "write", writing)
    embed(tmp_path / "o.h5", texts=[["a"] * (1 + number % 30) for number in range(200)], seconds=1000)
    assert 0 <= most[0] <= 5000


def test_every_commit_is_on_the_disk_before_it_is_named(tmp_path, monkeypatch):
    """Of every file that `progress.json` names the bytes were synchronized first, and then the directory."""
    synchronized, fsync, replace = set(), os.fsync, os.replace

    def synchronizing(number):
        synchronized.add(os.fstat(number).st_ino)
        fsync(number)

    def replacing(source, target):
        if os.path.basename(target) == "progress.json":
            folder = os.path.dirname(target)
            named = [stored["name"] for commit in json.loads(Path(source).read_text().splitlines()[0])["commits"]
                     for stored in commit["files"]]
            inodes = {os.stat(path).st_ino
                      for path in (source, folder, *(os.path.join(folder, name) for name in named))}
            assert inodes - synchronized <= ({os.stat(folder).st_ino} if not named else set())
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synchronizing)
    monkeypatch.setattr(os, "replace", replacing)
    embed(tmp_path / "o.h5")


def test_sections_end_in_time_for_what_was_read_ahead(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(corpus.time, "monotonic", lambda: now[0])
    clock = corpus._Clock(30)
    now[0] = 29
    assert not clock.is_due()
    now[0] = 31
    assert clock.is_due()
    now[0] = 41  # the rest took ten seconds
    clock.restart()
    now[0] = 41 + 19
    assert not clock.is_due()
    now[0] = 41 + 20
    assert clock.is_due()


def test_files_of_text_go_on(tmp_path, cut):
    lines = "".join(f"{' '.join(tokens)}\n" for tokens in TEXTS)
    how = {"allow_blank": True, "batch_size": 3, "progress": False}
    model().embed_file(io.StringIO(lines), tmp_path / "whole.h5", **how)
    cut(3)
    with pytest.raises(PowerCutError):
        model().embed_file(io.StringIO(lines), tmp_path / "o.h5", **how)
    cut(1000)
    model().embed_file(io.StringIO(lines), tmp_path / "o.h5", **how, resume=True)
    assert content(tmp_path / "o.h5") == content(tmp_path / "whole.h5")


def test_saved_vectors_go_on(tmp_path, cut):
    loaded = LoadedElmo(bilm(state="warm"))
    texts = ["one text", ["two", "tokens"], FastaRecord("P1 a protein", "MKV"), Text("id", "a b", ["a", "b"])] * 2
    cut(3)
    with pytest.raises(PowerCutError):
        loaded.save_vectors(tmp_path / "o.npy", texts, "top", pool="mean", batch_size=2, dtype="float16")
    cut(1000)
    loaded.save_vectors(tmp_path / "o.npy", texts, "top", pool="mean", batch_size=2, dtype="float16", resume=True)
    expected = np.stack(loaded.embed(texts, "top", pool="mean")).astype(np.float16)
    assert np.array_equal(np.load(tmp_path / "o.npy"), expected) and names(tmp_path) == ["o.json", "o.npy"]
    assert json.loads((tmp_path / "o.json").read_text()) == ["0", "1", "P1", "id", "4", "5", "P1", "id"]


def test_streams_are_lazy():
    loaded = LoadedElmo(bilm())
    taken = []

    def endless():
        while True:
            taken.append(None)
            yield "a b c"

    stream = loaded.stream(endless(), "average", batch_size=2)
    assert not taken
    assert np.array_equal(next(stream), loaded.embed(["a b c"], "average")[0]) and len(taken) < 10_000


def test_memory_errors_in_a_run_go_on_in_smaller_chunks(tmp_path, monkeypatch, caplog):
    embed(tmp_path / "whole.h5")
    run = slot_stream.BiLm.run

    def limited(model, tokens, rows, *arguments):
        if rows.shape[1] > 5:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return run(model, tokens, rows, *arguments)

    monkeypatch.setattr(slot_stream.BiLm, "run", limited)
    with caplog.at_level(logging.WARNING):
        embed(tmp_path / "o.h5")
    assert content(tmp_path / "o.h5") == content(tmp_path / "whole.h5")
    assert [record.message for record in caplog.records] == [
        "memory is out, and chunks are smaller from here on: CUDA out of memory."]
