"""The benchmarks' measure of a busy machine, and oneDNN's LSTM as a peer where oneDNN is installed."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import bench_embed, bench_projected_lstm, common, embed_results, floor, onednn
from benchmarks.embed_results import table

HERE = Path(sys.prefix)
CASE = "slots of 64", "ours", "highest"


def rates(fp32):
    return floor.Rates(2, 1024, fp32, 1e10, 0.0)


def test_turns_between_which_the_rate_falls_are_marked():
    measured = iter([90.0, 100.0, 60.0, 95.0, 70.0])
    watch = bench_embed.Watch(lambda: rates(next(measured)))
    for _ in range(4):
        watch(CASE)
    assert watch.busy() == {CASE: [False, True, True, False]}
    timing = common.Timing.of([3.0, 4.0, 5.0, 6.0])
    rows = embed_results.rows_of({CASE: timing}, {("one sentence", "ours", "highest"): timing}, 25, {}, watch.busy())
    assert [row.get("busy_turns") for row in rows] == [2, None]
    document = {"settings": {"size": "tiny", "times_as_fast_as": "reference"}, "results": rows}
    assert "(machine busy in 2 of 4 turns)" in table([document])


def test_no_turn_is_marked_without_a_floor():
    def fail():
        raise floor.NoFloor("no compiler")

    watch = bench_embed.Watch(fail)
    watch(CASE)
    assert watch.busy() == {}


def compare(monkeypatch, capsys, out, *arguments):
    monkeypatch.setattr(sys, "argv", ["bench", *"--size tiny --rows 3 17 --rounds 2".split(), "--out", str(out),
                                      *map(str, arguments)])
    status = bench_projected_lstm.main()
    return status, capsys.readouterr().err


def test_onednn_that_is_not_there_is_named(tmp_path, monkeypatch, capsys):
    status, errors = compare(monkeypatch, capsys, tmp_path / "out.json", "--onednn", tmp_path)
    assert status == 1 and f"got {tmp_path}" in errors and not (tmp_path / "out.json").exists()


@pytest.mark.skipif(not (HERE / onednn.HEADER).is_file(), reason="needs onednn-devel-cpu-gomp")
def test_onednn_gives_the_same_outputs(tmp_path, monkeypatch, capsys):
    status, errors = compare(monkeypatch, capsys, tmp_path / "out.json", "--onednn")
    assert status == 0, errors
    content = json.loads((tmp_path / "out.json").read_text())
    precisions = [name for name in onednn.TYPES if name not in content["settings"]["absent"]]
    assert [(row["precision"], row["rows"]) for row in content["results"]] == [
        (name, rows) for name in precisions for rows in (3, 17)]
    assert all(row["times_as_fast"] > 0 and row["implementation"] for row in content["results"])
    weights = tuple(part.numpy() for part in bench_projected_lstm.direction(*common.SIZES["tiny"][:2]))
    with onednn.OneDnnLstm(HERE, "highest", np.ones((2, 3, weights[2].shape[1]), np.float32), weights) as peer:
        assert peer.outputs.any() and peer.seconds(2) > 0
