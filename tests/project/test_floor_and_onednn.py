"""Peers of a layer's benchmark: PyTorch's LSTM, and oneDNN's, which is named where it is absent."""

import functools

import pytest

from benchmarks.peers import layer, torch_lstm


@pytest.fixture
def compare(dry_run):
    return functools.partial(dry_run, layer, *"--size tiny --rows 3 17 --rounds 2".split())


def test_an_absent_onednn_is_named(compare, tmp_path):
    assert f"got {tmp_path}" in compare("--onednn", tmp_path)


@pytest.mark.long
def test_torch_gives_the_same_outputs(compare, monkeypatch):
    rows = compare("--torch-lstm")["results"]
    assert [(row["variant"], row["rows"]) for row in rows] == [
        (name, count) for count in (3, 17) for name in ("ours", "torch.nn.LSTM")]
    assert all(0 < row["error"] <= row["limit"] and row["times_as_fast_as_ours"] > 0 for row in rows)
    monkeypatch.setattr(torch_lstm, "GATES", (0, 1, 2, 3))
    assert "highest against torch.nn.LSTM: relative error" in compare("--torch-lstm")
    assert compare() == "error: peers: expected --onednn or --torch-lstm, got neither\n"
