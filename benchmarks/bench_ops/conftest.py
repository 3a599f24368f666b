"""`--rows FILE`: the session's rows as a result file of the one shape."""

from pathlib import Path

from benchmarks import common
from benchmarks.bench_ops import cases


def pytest_addoption(parser) -> None:
    parser.addoption("--rows", type=Path, metavar="FILE", help="write the rows there as JSON")


def pytest_sessionfinish(session) -> None:
    rows = session.config.stash.get(cases.ROWS, [])
    if rows and (path := session.config.getoption("--rows")):
        timer = session.config.getoption("benchmark_timer")
        common.write_json(path, common.document("ops", {"timer": str(timer)}, rows))
