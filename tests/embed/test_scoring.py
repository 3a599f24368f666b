import json

import pytest

from tests.support.files import run, tiny
from tests.support.softmax import SENTENCES, head_of, write_softmax_model


@pytest.fixture
def files(tmp_path):
    return write_softmax_model(tmp_path / "model", tiny(lstm__dim=12))


@pytest.fixture
def command(files, tmp_path, capsys):
    """Run a subcommand over the sentences: its exit status, lines on stdout, and stderr."""
    (tmp_path / "text.txt").write_text("".join(" ".join(words) + "\n" for words in SENTENCES), encoding="utf-8")

    def call(name, *arguments):
        status, out, err = run(capsys, name, tmp_path / "text.txt", "--model", files, *arguments)
        return status, out.splitlines(), err
    return call


@pytest.mark.parametrize("state", ["zero", "warm"])
def test_score_prints_a_line_a_sentence(files, command, state):
    status, lines, _ = command("score", "--state", state)
    rows = [line.split("\t") for line in lines]
    assert status == 0 and [row[2] for row in rows] == [" ".join(sentence) for sentence in SENTENCES]
    for row, score in zip(rows, head_of(files, state).score(SENTENCES), strict=True):
        expected = [score.forward_total, score.backward_total]
        assert [float(value) for value in row[:2]] == pytest.approx(expected, abs=1e-5)


def test_token_lines_sum_to_the_sentence_lines(command):
    blocks = "\n".join(command("score", "--tokens")[1]).removesuffix("\n").split("\n\n")
    for block, line, sentence in zip(blocks, command("score")[1], SENTENCES, strict=True):
        rows = [row.split("\t") for row in block.split("\n")]
        assert [row[2] for row in rows] == [*sentence, "</S>", "<S>"]
        sums = [sum(float(row[way]) for row in rows if row[way]) for way in (0, 1)]
        assert sums == pytest.approx([float(value) for value in line.split("\t")[:2]], abs=1e-4)


def test_substitutes_are_json_lines(files, command):
    arguments = ("substitutes", "--top", 3, "--word", "the", "--word", "dog", "--direction", "forward")
    status, lines, _ = command(*arguments)
    records, head = [json.loads(line) for line in lines], head_of(files, "warm")
    assert status == 0 and command(*arguments, "--device", "cpu")[1] == lines
    assert [(each["sentence"], each["position"], each["word"]) for each in records] == [
        (0, 0, "the"), (0, 4, "the"), (3, 0, "the"), (3, 2, "dog")]
    for record in records:
        substitutes = head.substitutes(SENTENCES[record["sentence"]], record["position"], 3, "forward")
        assert [word for word, _ in record["substitutes"]] == [each.word for each in substitutes]


@pytest.mark.parametrize("arguments, words", [
    (["--top", "0"], "k: expected"), (["--model", "nowhere"], "found nothing at nowhere"),
    (["--softmax-file", "nowhere"], "found none at nowhere"), (["--direction", "up"], "invalid choice"),
    (None, "`elmo-fast export --softmax`")])
def test_wrong_arguments_are_reported_in_one_line(files, command, arguments, words):
    if arguments is None:
        (files / "softmax.hdf5").unlink()
    status, _, err = command("substitutes", *(arguments or ()))
    assert status == 2 and words in err and err.count("\n") == 1
