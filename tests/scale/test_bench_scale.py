"""The benchmark of two workers in a dry run, at a size that measures nothing."""

import json
import sys

import pytest

from tests.scale.cluster import cluster_settings

pytestmark = pytest.mark.long
pytest.importorskip("ray", reason="Ray is not installed: make test-integrations")

from benchmarks import bench_scale  # noqa: E402


def test_a_dry_run(tmp_path, monkeypatch, capsys):
    arguments = "--size tiny --sentences 60 --repeats 2 --rounds 1 --batch-size 1 --out".split()
    monkeypatch.setattr(sys, "argv", ["bench_scale", *arguments, str(tmp_path / "cpu" / "scale.json")])
    with cluster_settings(monkeypatch):
        assert bench_scale.main() == 0, capsys.readouterr().err
    document = json.loads((tmp_path / "cpu" / "scale.json").read_text())
    assert [case["workers"] for case in document["results"]] == [1, 2]
    assert document["results"][0]["times_as_fast"] == 1 and document["settings"]["tokens"] > 400
    assert set(document["settings"]["rates"]) == {"host", "read"}
