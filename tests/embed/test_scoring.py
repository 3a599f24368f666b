import json

import pytest

from tests.support.files import run, tiny
from tests.support.softmax import SENTENCES, head_of, write_softmax_model


@pytest.fixture
def files(tmp_path):
    return write_softmax_model(tmp_path / "model", tiny(lstm__dim=12))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(" ".join(sentence) + "\n" for sentence in SENTENCES), encoding="utf-8")
    return path


@pytest.mark.parametrize("state", ["zero", "warm"])
def test_score_prints_a_line_a_sentence(files, text, capsys, state):
    status, out, _ = run(capsys, "score", text, "--model", files, "--state", state)
    rows = [line.split("\t") for line in out.splitlines()]
    assert status == 0 and [row[2] for row in rows] == [" ".join(sentence) for sentence in SENTENCES]
    for row, score in zip(rows, head_of(files, state).score(SENTENCES), strict=True):
        expected = [score.forward_total, score.backward_total]
        assert [float(value) for value in row[:2]] == pytest.approx(expected, abs=1e-5)


def test_token_lines_sum_to_the_sentence_lines(files, text, capsys):
    _, out, _ = run(capsys, "score", text, "--model", files, "--tokens")
    _, whole, _ = run(capsys, "score", text, "--model", files)
    blocks = out.split("\n\n")[:-1]
    for block, line, sentence in zip(blocks, whole.splitlines(), SENTENCES, strict=True):
        rows = [row.split("\t") for row in block.split("\n")]
        assert [row[2] for row in rows] == [*sentence, "</S>", "<S>"]
        sums = [sum(float(row[way]) for row in rows if row[way]) for way in (0, 1)]
        assert sums == pytest.approx([float(value) for value in line.split("\t")[:2]], abs=1e-4)


def test_substitutes_are_json_lines(files, text, capsys):
    status, out, _ = run(capsys, "substitutes", text, "--model", files, "--top", 3, "--word", "the", "--word", "dog",
                         "--direction", "forward")
    records = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [(each["sentence"], each["position"], each["word"]) for each in records] == [
        (0, 0, "the"), (0, 4, "the"), (3, 0, "the"), (3, 2, "dog")]
    head = head_of(files, "warm")
    for record in records:
        found = head.substitutes(SENTENCES[record["sentence"]], record["position"], 3, "forward")
        assert [word for word, _ in record["substitutes"]] == [each.word for each in found]


@pytest.mark.parametrize("arguments, words", [
    (["--top", "0"], "k: expected"), (["--model", "nowhere"], "found nothing at nowhere"),
    (["--softmax-file", "nowhere"], "found none at nowhere"), (["--direction", "up"], "invalid choice")])
def test_what_is_wrong_is_said_in_one_line(files, text, capsys, arguments, words):
    status, _, err = run(capsys, "substitutes", text, "--model", files, *arguments)
    assert status == 2 and words in err and err.count("\n") == 1


def test_a_model_without_a_softmax(files, text, capsys):
    (files / "softmax.hdf5").unlink()
    status, _, err = run(capsys, "score", text, "--model", files)
    assert status == 2 and "export --softmax" in err and err.count("\n") == 1
