"""The benchmark of files in a dry run: results, errors, and CPU time by stage."""

import functools

import numpy as np
import pytest

from benchmarks import bench_io, models

WRITTEN = [name for name in bench_io.LAYOUTS if name in bench_io.layouts(list(bench_io.LAYOUTS))[0]]


@pytest.fixture
def bench(tmp_path, dry_run):
    small = "--models tiny --sentences 20 --rounds 2 --slots 4 --folder".split()
    return functools.partial(dry_run, bench_io, *small, tmp_path)


def test_speed_and_stages_of_every_layout(bench):
    document = bench("--parts", "speed", "stages")
    assert document["settings"]["texts"]["tiny"]["sentences"] == 20
    rows = document["results"]
    speed = [row for row in rows if row["unit"] == "tokens/s"]
    assert [row["variant"] for row in speed] == [bench_io.ENGINE, *WRITTEN]
    for row in rows:
        assert row["error"] <= row["limit"] and row["rounds"] == 2 and row["model"] == "tiny"
        assert 0 <= row["p20"] <= row["median"] <= row["p80"]
    for row in speed[1:]:
        ratio = np.median(np.divide(row["samples"], speed[0]["samples"]))
        assert row["share_of_engine"] == pytest.approx(ratio, rel=1e-3) and row["way"] == "text file to file"
    for name in WRITTEN:
        shares = {row["stage"]: row["share_of_time"] for row in rows if row["variant"] == name and "stage" in row}
        assert list(shares) == list(bench_io.STAGES) and sum(shares.values()) == pytest.approx(1, abs=0.2)
        assert all(shares[stage] > 0 for stage in ("reading", "token mapping", "engine", "converting", "writing"))
    assert bench_io.table(document).count("\n") == len(rows) - 1


@pytest.mark.long
def test_memory_of_the_command(bench):
    rows = bench("--parts", "memory", "--most", "40")["results"]
    assert [(row["variant"], row["sentences"]) for row in rows] == [(name, 40) for name in WRITTEN]
    assert all(row["median"] > 50 and row["unit"] == "MiB" and 120 <= row["tokens"] <= 320 for row in rows)
    assert bench_io.counts(1_000_000) == [10_000, 30_000, 100_000, 300_000, 1_000_000]
    assert bench_io.counts(10_000) == [10_000] and bench_io.counts(20_000) == [10_000, 20_000]


def test_other_vectors_in_a_file_end_the_run(bench, monkeypatch):
    vectors_of = bench_io.vectors_of
    monkeypatch.setattr(bench_io, "vectors_of", lambda path: [2 * vectors for vectors in vectors_of(path)])
    assert "tiny, HDF5 float16 against the engine: relative error 1.0e+00" in bench()
    build, seeds = models.build, iter(range(9))
    monkeypatch.setattr(models, "build", lambda name, **settings: build(name, **{**settings, "seed": next(seeds)}))
    assert "tiny, the engine against reference: relative error" in bench()
