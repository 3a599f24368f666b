"""The benchmarks' measure of a busy machine, and oneDNN's LSTM as a peer where oneDNN is installed."""

import functools
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import common
from benchmarks.peers import layer, onednn, torch_lstm

HERE = Path(sys.prefix)
CASE = "slots of 64", "ours", "highest"


@pytest.fixture
def compare(dry_run):
    return functools.partial(dry_run, layer, *"--size tiny --rows 3 17 --rounds 2".split())


def test_an_absent_onednn_is_named(compare, tmp_path):
    assert f"got {tmp_path}" in compare("--onednn", tmp_path)


@pytest.mark.skipif(not (HERE / onednn.HEADER).is_file(), reason="needs onednn-devel-cpu-gomp")
def test_onednn_gives_the_same_outputs(compare):
    content = compare("--onednn")
    precisions = [name for name in onednn.TYPES if name not in content["settings"]["absent"]]
    cases = [row for row in content["results"] if row["variant"] == "onednn"]
    assert [(row["precision"], row["rows"]) for row in cases] == [
        (name, rows) for name in precisions for rows in (3, 17)]
    assert all(row["times_as_fast_as_ours"] > 0 and row["implementation"] for row in cases)
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
