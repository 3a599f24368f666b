"""`elmo-fast bench`: its figures are consistent, and wrong results are not timed."""

import json

import pytest

from elmo_fast.bench import run as bench_run
from elmo_fast.embed.embedder import Embedder
from tests.support.files import run, write_model


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    return bench_run.bench(write_model(tmp_path_factory.mktemp("model")), "cpu", seconds=0.2)


def test_the_rows_are_consistent(document):
    assert {"cpu", "gpu", "torch", "torch_threads"} <= set(document["machine"]) and document["version"]
    facts = document["settings"]
    assert facts["device"] == "cpu" and facts["tokens"] > facts["sentences"] >= bench_run.SLOTS
    assert set(facts["backends"]) == {"char_cnn", "highway", "linear", "projected_lstm"}
    assert document["results"][-1]["variant"] == "torch"
    for row in document["results"]:
        low, high = row["quartiles"]
        assert 0 < low <= row["tokens_per_s"] <= high and row["sentence_ms"] > 0
        assert 0 <= row["error"] <= facts["limit"]


def test_wrong_numbers_end_the_run(tmp_path, monkeypatch):
    original = Embedder.stream
    monkeypatch.setattr(Embedder, "stream", lambda embedder, *arguments: (
        vectors + (embedder.model.backend == "torch") for vectors in original(embedder, *arguments)))
    with pytest.raises(RuntimeError, match="torch: expected numbers within 1e-05 of the reference's, got"):
        bench_run.bench(write_model(tmp_path / "model"), "cpu", seconds=0.2)


@pytest.mark.long
def test_the_command(tmp_path, capsys):
    model = write_model(tmp_path / "model")
    status, out, err = run(capsys, "bench", "--model", model, "--device", "cpu", "--seconds", 1, "--precision", "low",
                           "--json", tmp_path / "found.json")
    assert status == 0, err
    report = json.loads((tmp_path / "found.json").read_text())
    assert f"{report['results'][0]['tokens_per_s']:,.0f}" in out and "peak memory" in out
    assert report["settings"]["precision"] == "low"
