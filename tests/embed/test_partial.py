"""Partial results: matching ones are resumed, damaged ones are refused, and commits outlast the run."""

import os
import signal

import pytest

from elmo_fast import ConfigurationError
from elmo_fast.embed.run import write_corpus
from elmo_fast.text.readers import Text
from elmo_fast.vectors.spec import OutputSpec, Target
from tests.support.engines import TILE_ISAS, isa
from tests.support.files import flip, full_disk, names
from tests.support.sections import TEXTS, content, embed, model, power_cut

pytestmark = pytest.mark.usefixtures("short_sections")
OTHER = [["another"], *TEXTS[1:]]
CHANGED_LATE = [*TEXTS[:10], ["another"], *TEXTS[11:]]


@pytest.fixture
def interrupted(tmp_path):
    """An output with four finished parts."""
    with power_cut(4):
        embed(tmp_path / "o.h5")
    return tmp_path / "o.h5"


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
    *((arguments, r"output: found a partial result of 12 texts in .*o.h5.part; resume \(--resume\) goes on after")
      for arguments in ({}, {"texts": OTHER}, {"state": "warm"})),
])
def test_a_partial_result_that_does_not_fit_is_refused_and_stays(interrupted, arguments, message):
    before = sorted(path.name for path in interrupted.with_name("o.h5.part").iterdir())
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        embed(interrupted, **arguments)
    assert names(interrupted.parent) == ["o.h5.part"]
    assert sorted(path.name for path in interrupted.with_name("o.h5.part").iterdir()) == before


@pytest.mark.skipif(not TILE_ISAS, reason="no tiles here, nor their emulation")
@pytest.mark.parametrize("precision, runs_as", [("high", "highest"),
                                                ("medium", "medium .weights in bf16, products in fp32.")])
def test_a_run_is_not_resumed_where_its_precision_runs_as_another(tmp_path, precision, runs_as):
    with isa("generic"), power_cut(4):
        embed(tmp_path / "o.h5", precision=precision)
    with isa(TILE_ISAS[0]), pytest.raises(ConfigurationError, match=f"resume: .* has effective precision '{runs_as}' "
                                                                    f"and not '{precision}'$"):
        embed(tmp_path / "o.h5", precision=precision, resume=True)
    with isa("generic"):
        embed(tmp_path / "o.h5", precision=precision, resume=True)


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


def damage_byte(path):
    flip(path, path.stat().st_size // 2)


@pytest.mark.parametrize("resume", [True, False])
def test_a_run_without_one_of_its_parts_starts_again(interrupted, caplog, resume):
    (interrupted.with_name("o.h5.part") / "parts" / "00001.h5").unlink()
    embed(interrupted, resume=resume)
    assert "00001.h5 is missing; starting again, not after 12 texts" in caplog.text
    embed(interrupted.with_name("whole.h5"), seconds=1000)
    assert content(interrupted) == content(interrupted.with_name("whole.h5"))


@pytest.mark.parametrize("damage", [truncate, damage_byte, *(lambda path, text=text: path.write_text(text)
                                                      for text in ("[]", ""))])
def test_damaged_progress_is_refused(interrupted, damage):
    damage(interrupted.with_name("o.h5.part") / "progress.npz")
    with pytest.raises(ConfigurationError, match="^partial result .*progress.npz: expected the bytes that"):
        embed(interrupted, resume=True)


def test_files_of_killed_processes_are_removed_but_not_partial_results(interrupted):
    (interrupted.parent / "o.h5.lock").touch()
    (interrupted.parent / "o.h5.elmo-0123abcd.part").mkdir()
    (interrupted.parent / "o.h5.mine.part").touch()
    embed(interrupted, resume=True)
    assert names(interrupted.parent) == ["o.h5", "o.h5.mine.part"]


@pytest.mark.parametrize("size", [4000, 40_000])
def test_a_full_disk_leaves_the_commits(tmp_path, caplog, size):
    output = tmp_path / "o.h5"
    with full_disk(size), pytest.raises(OSError, match=f"File too large.*: '{output}'"):
        embed(output, slots=5, texts=[[f"word{k}"] * (2 + 60 * (k > 30)) for k in range(40)])
    assert names(tmp_path) in ([], ["o.h5.part"])
    texts = [[f"word{k}"] * (2 + 60 * (k > 30)) for k in range(40)]
    embed(output, slots=5, texts=texts, resume=True)
    embed(tmp_path / "whole.h5", slots=5, texts=texts, seconds=1000)
    assert content(output) == content(tmp_path / "whole.h5")


@pytest.mark.parametrize("state", ["carry", "warm"])
def test_a_stop_keeps_the_commits(tmp_path, state):
    long = TEXTS * 4

    def texts():
        for number, tokens in enumerate(long):
            if number == 130:
                signal.raise_signal(signal.SIGINT)
            yield Text(str(number), " ".join(tokens), tokens)

    with pytest.raises(KeyboardInterrupt, match=r"^interrupted; .* texts are done; resume \(--resume\) goes on after"):
        write_corpus(texts(), model(state).runner(3), Target(tmp_path / "o.h5", "allennlp"))
    assert names(tmp_path) == ["o.h5.part"]
    embed(tmp_path / "o.h5", state, texts=long, resume=True)
    embed(tmp_path / "whole.h5", state, texts=long, seconds=1000)
    assert content(tmp_path / "o.h5") == content(tmp_path / "whole.h5")
