"""Partial results: what fits goes on, what is damaged is dropped or refused, and commits outlast what ends a run."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from elmo_fast import ConfigurationError
from elmo_fast.embed.run import write_corpus
from elmo_fast.text.readers import Text
from elmo_fast.vectors.partial import PartialResult
from elmo_fast.vectors.spec import OutputSpec, Target
from tests.support.engines import TILE_ISAS, isa
from tests.support.files import flip, full_disk, names
from tests.support.grid import grid
from tests.support.sections import TEXTS, PowerCutError, content, embed, model, power_cut

pytestmark = pytest.mark.usefixtures("short_sections")
OTHER = [["another"], *TEXTS[1:]]
CHANGED_LATE = [*TEXTS[:10], ["another"], *TEXTS[11:]]


@pytest.fixture
def interrupted(tmp_path):
    """An output of which four sections are done."""
    with power_cut(4):
        embed(tmp_path / "o.h5")
    return tmp_path / "o.h5"


def test_an_empty_directory_is_no_partial_result(tmp_path):
    (tmp_path / "o.h5.part").mkdir()
    embed(tmp_path / "o.h5")
    assert names(tmp_path) == ["o.h5"]


def test_a_commit_that_failed_does_not_count(tmp_path, monkeypatch, caplog):
    write = PartialResult._write_progress

    def writing(self, folder, commits):
        if len(commits) == 3:
            raise OSError("full")
        write(self, folder, commits)

    with monkeypatch.context() as patched, pytest.raises(OSError, match="full"):
        patched.setattr(PartialResult, "_write_progress", writing)
        embed(tmp_path / "o.h5")
    assert [message[:22] for message in caplog.messages] == ["6 texts are done; resu"]
    embed(tmp_path / "o.h5", resume=True)
    embed(tmp_path / "whole.h5")
    assert content(tmp_path / "o.h5") == content(tmp_path / "whole.h5")


@pytest.mark.parametrize("arguments, message", [
    ({"texts": OTHER, "resume": True}, "resume: expected an input that begins with the 12 texts that are done in .*"),
    ({"texts": CHANGED_LATE, "resume": True}, "resume: expected an input"),
    ({"texts": TEXTS[:11], "resume": True}, "resume: expected an input"),
    ({"texts": [], "resume": True}, "resume: expected an input"),
    ({"slots": 4, "resume": True}, "resume: expected the settings of .*part, which has batch_size 3 and not 4"),
    ({"state": "zero", "resume": True}, "resume: .* has state 'carry' and not 'zero'"),
    ({"seed": 1, "resume": True}, "resume: .* has model '.*' and not '.*'"),
    ({"precision": "low", "resume": True}, "resume: .* has precision 'highest' and not 'low', effective precision 'hi"),
    ({"form": OutputSpec("top"), "resume": True}, "resume: .* has layers 'all' and not 'top'"),
    ({"form": OutputSpec(targets=frozenset({"word1"})), "resume": True}, "resume: .* has targets None and not '"),
    ({}, r"output: found a partial result of 12 texts of this input in .*o.h5.part; resume \(--resume\) goes on after"),
])
def test_what_does_not_fit_is_refused_and_the_partial_result_stays(interrupted, arguments, message):
    before = sorted(path.name for path in interrupted.with_name("o.h5.part").iterdir())
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        embed(interrupted, **arguments)
    assert names(interrupted.parent) == ["o.h5.part"]
    assert sorted(path.name for path in interrupted.with_name("o.h5.part").iterdir()) == before


@pytest.mark.skipif(not TILE_ISAS, reason="no tiles here, nor their emulation")
@pytest.mark.parametrize("precision, runs_as", [("high", "highest"),
                                                ("medium", "medium .weights in bf16, products in fp32.")])
def test_a_run_does_not_go_on_where_its_precision_runs_as_another(tmp_path, precision, runs_as):
    with isa("generic"), power_cut(4):
        embed(tmp_path / "o.h5", precision=precision)
    with isa(TILE_ISAS[0]), pytest.raises(ConfigurationError, match=f"resume: .* has effective precision '{runs_as}' "
                                                                    f"and not '{precision}'$"):
        embed(tmp_path / "o.h5", precision=precision, resume=True)
    with isa("generic"):
        embed(tmp_path / "o.h5", precision=precision, resume=True)


@pytest.mark.parametrize("arguments, seconds", grid(
    [{"texts": OTHER}, {"slots": 4}, {"state": "warm"}, {"texts": TEXTS[:2]}], [0, 1000], together=1))
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


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


def damaged(path):
    flip(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage, name", grid(
    [truncate, damaged, os.unlink], ["000003", "000003.states", "000001", "000000", "000000.states"], together=1))
def test_damaged_segments_are_dropped(interrupted, caplog, damage, name):
    texts = 3 * int(name[:6])
    damage(interrupted.with_name("o.h5.part") / name)
    embed(interrupted, resume=True)
    assert f"continuing after {texts} texts, not 12" in caplog.text
    embed(interrupted.with_name("whole.h5"), seconds=1000)
    assert content(interrupted) == content(interrupted.with_name("whole.h5"))


@pytest.mark.parametrize("damage", [truncate, damaged, *(lambda path, text=text: path.write_text(text)
                                                      for text in ("[]", ""))])
def test_damaged_progress_is_refused(interrupted, damage):
    damage(interrupted.with_name("o.h5.part") / "progress.json")
    with pytest.raises(ConfigurationError, match="^partial result: expected the bytes that were written to .*progress"):
        embed(interrupted, resume=True)


def directory_of_a_file(path):
    path.mkdir()
    (path / "mine").touch()


@pytest.mark.parametrize("make", [lambda path: path.write_text("mine"), directory_of_a_file])
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
