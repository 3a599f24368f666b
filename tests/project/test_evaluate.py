"""`benchmarks.evaluate`: a task on a small data set, and the figures of the bundled model."""

import re

import pytest

pytest.importorskip("sklearn")

from benchmarks.evaluate import __main__ as command
from benchmarks.recorded import text


def test_the_command(tmp_path, capsys):
    """With the bundled model, and without the data."""
    assert command.main(["--task", "pos", "--data", str(tmp_path / "no")]) == 2
    assert capsys.readouterr().err == ("benchmarks.evaluate: error: data: expected a folder with the task's files, "
                                       f"found none at {tmp_path / 'no'}\n")
    (tmp_path / "rt-polarity.pos").write_text("good\nfine\n" * 9)
    (tmp_path / "rt-polarity.neg").write_text("bad\nawful\n" * 9)
    assert command.main(["bundled", "--task", "mr", "--data", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ("sentiment of film reviews, linear probe: 36 texts of rt-polarity.pos and "
                        "rt-polarity.neg, 5-fold cross-validation")
    assert [line.split("  ")[0] for line in lines[2:]][:3] == [
        "baseline: most frequent class", "baseline: TF-IDF of words and pairs", "baseline: layer 0, no context"]
    assert lines[-1].startswith("published: ") and len(lines) == 2 + 3 + 3 + 1


@pytest.mark.long
def test_the_figures_of_the_docs(shared, capsys):
    """The recorded lines of the bundled model, and their figures within a point.

    Of its two tasks the one whose probe reads every layer: the other takes twice as long.
    """
    assert command.main(["--task", "pos", "--data", str(shared / "text")]) == 0
    number = re.compile(r"\d+\.\d")
    for line, stated_line in zip(capsys.readouterr().out.splitlines(), text("pos").splitlines(), strict=True):
        assert number.sub("", line).split() == number.sub("", stated_line).split()
        actual, stated = (list(map(float, number.findall(each))) for each in (line, stated_line))
        assert actual == pytest.approx(stated, abs=1)  # threads round differently, another C may be chosen
