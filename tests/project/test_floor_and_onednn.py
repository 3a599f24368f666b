"""The benchmarks' measure of a busy machine, and oneDNN's LSTM as a peer where oneDNN is installed."""

import functools
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import bench_embed, common, floor, work
from benchmarks.peers import layer, onednn, torch_lstm

HERE = Path(sys.prefix)
CASE = "slots of 64", "ours", "highest"


def rates(fp32):
    return floor.Rates(2, 1024, fp32, 1e10, 0.0)


def test_work_of_a_text():
    sentences = [["a", "bc"], ["a"]]
    of = work.work_of_slots(sentences, 64)
    assert of.tokens == 3 and of.batch_sizes.tolist() == [2, 2, 2, 1]
    assert sorted(of.characters.tolist()) == [3, 3, 3, 4]
    words = {"lstm": {"dim": 8, "projection_dim": 4, "n_layers": 2}}
    step = 2 * (4 * 8 * 4 + 8 * 4)
    inputs = 2 * 2 * 4 * 32
    assert work.flop(words, of) == 2 * 2 * step * 7 + inputs * (4 + 7)


def test_turns_between_which_the_rate_falls_are_marked():
    measured = iter([90.0, 100.0, 60.0, 95.0, 70.0])
    watch = floor.Watch(lambda: rates(next(measured)))
    for _ in range(4):
        watch(CASE)
    assert watch.busy() == {CASE: [False, True, True, False]}
    timing = common.Timing.of([3.0, 4.0, 5.0, 6.0])
    setup = bench_embed.Setup("tiny", 64, "reference", None, {}, {})
    text = bench_embed.Text("running text", [], [], ["a"] * 25, "")
    peer, alone = (CASE[0], "reference", "highest"), ("one sentence", "ours", "highest")
    rows = bench_embed.rows_of(setup, text, {peer: timing, CASE: timing},
                               {(alone[0], *peer[1:]): timing, alone: timing}, {}, watch.busy(), {})
    assert [row.get("busy_turns") for row in rows] == [None, 2, None, None]
    document = {"settings": {"times_as_fast_as": "reference"}, "results": rows}
    assert "(machine busy in 2 of 4 turns)" in common.table(document)


def test_no_turn_is_marked_without_a_floor():
    def fail():
        raise floor.NoFloor("no compiler")

    watch = floor.Watch(fail)
    watch(CASE)
    assert watch.busy() == {}


@pytest.fixture
def compare(dry_run):
    return functools.partial(dry_run, layer, *"--size tiny --rows 3 17 --rounds 2".split())


def test_onednn_that_is_not_there_is_named(compare, tmp_path):
    assert f"got {tmp_path}" in compare("--onednn", tmp_path)


@pytest.mark.skipif(not (HERE / onednn.HEADER).is_file(), reason="needs onednn-devel-cpu-gomp")
def test_onednn_gives_the_same_outputs(compare):
    content = compare("--onednn")
    precisions = [name for name in onednn.TYPES if name not in content["settings"]["absent"]]
    found = [row for row in content["results"] if row["variant"] == "onednn"]
    assert [(row["precision"], row["rows"]) for row in found] == [
        (name, rows) for name in precisions for rows in (3, 17)]
    assert all(row["times_as_fast_as_ours"] > 0 and row["implementation"] for row in found)
    assert all(row["error"] <= row["limit"] for row in content["results"])
    weights = tuple(part.numpy() for part in layer.direction(*common.SIZES["tiny"][:2]))
    with onednn.OneDnnLstm(HERE, "highest", np.ones((2, 3, weights[2].shape[1]), np.float32), weights) as peer:
        assert peer.outputs.any() and peer.seconds(2) > 0


@pytest.mark.long
def test_torch_gives_the_same_outputs(compare, monkeypatch):
    rows = compare("--torch-lstm")["results"]
    assert [(row["variant"], row["rows"]) for row in rows] == [
        (name, count) for count in (3, 17) for name in ("ours", "torch.nn.LSTM")]
    assert all(0 < row["error"] <= row["limit"] and row["times_as_fast_as_ours"] > 0 for row in rows)
    monkeypatch.setattr(torch_lstm, "GATES", (0, 1, 2, 3))
    assert "highest against torch.nn.LSTM: relative error" in compare("--torch-lstm")
    assert compare() == "error: peers: expected --onednn or --torch-lstm, got neither\n"
