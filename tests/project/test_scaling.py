"""The simulation of many workers: its limits, and the tables of docs/scaling.md."""

from dataclasses import replace

import pytest

from benchmarks import common, report, scaling

PLAN = scaling.Plan(tokens=10**8, workers=1, compute=1e4, token_bytes=4096, model_bytes=1e8, host=1e9, read=1e6,
                    network=1e9, disk=4e8, start=10)
COUNTS = (1, 2, 3, 4, 8, 16, 31, 64, 128, 1000)


def seconds(**changes):
    return scaling.simulate(replace(PLAN, **changes)).seconds


def test_a_single_worker_takes_the_sum_of_its_stages():
    shard = scaling.SHARD_TOKENS
    size = shard * PLAN.token_bytes
    begun = 10 + 1e8 / 1e9  # the reader is ahead by then
    assert seconds(tokens=shard) == pytest.approx(begun + shard / 1e4 + size / 1e9 + size / 4e8)
    assert seconds(tokens=10 * shard) == pytest.approx(begun + 10 * (shard / 1e4 + size / 1e9 + size / 4e8))
    slow = seconds(tokens=shard, network=1e8, model_bytes=0)
    assert slow == pytest.approx(10 + shard / 1e4 + size / 1e9 + size / 1e8)


def test_more_of_anything_never_takes_longer():
    times = [seconds(workers=count, model_bytes=0) for count in COUNTS]
    assert times == sorted(times, reverse=True) and times[1] < 0.52 * times[0]
    for name in ("compute", "host", "read", "network", "disk"):
        times = [seconds(workers=8, **{name: getattr(PLAN, name) * factor}) for factor in (0.1, 0.5, 1, 2, 10)]
        assert times == sorted(times, reverse=True), name
    times = [seconds(tokens=count) for count in (1, 10**4, 10**6, 10**8)]
    assert times == sorted(times)


@pytest.mark.parametrize("name, changes, least", [
    ("disk", {}, 10**8 * 4096 / 4e8), ("read", {"disk": 1e12, "read": 2e4}, 10**8 / 2e4)])
def test_what_all_workers_share_is_the_limit_of_many(name, changes, least):
    outcomes = [scaling.simulate(replace(PLAN, workers=count, **changes)) for count in COUNTS]
    assert all(outcome.seconds >= least for outcome in outcomes)
    assert outcomes[0].bottleneck == "compute"
    assert outcomes[-2].bottleneck == name and outcomes[-2].seconds == pytest.approx(least, rel=0.03)
    assert outcomes[-2].busy[name] == pytest.approx(1, abs=0.03)
    assert all(0 <= share <= 1 for outcome in outcomes for share in outcome.busy.values())


def test_a_short_text_is_the_start():
    outcome = scaling.simulate(replace(PLAN, tokens=100, workers=8))
    assert outcome.bottleneck == "start" and outcome.seconds == pytest.approx(10.4, abs=0.05)


@pytest.mark.long
def test_the_tables_of_the_page_are_those_of_the_simulation():
    page = (common.ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert page == report.with_parts(page), "python -m benchmarks.report"
    assert page.count("| 1 B |") == len(scaling.cost_table()[1]) / 2 == 18
    lines = [line for line in scaling.cost_table()[1] if line[:3] == ["original", "all, float32", "1 B"]]
    made = scaling.plan("original", "all, float32", 10**9, 1)
    one = 1e9 * (1 / made.compute + made.token_bytes / made.host) / 3600  # each worker computes, then writes
    assert [float(line[4].split()[0]) * {"d": 24, "h": 1}[line[4].split()[1]] for line in lines] == pytest.approx(
        [one, one / 8, one / 64], rel=0.05)
