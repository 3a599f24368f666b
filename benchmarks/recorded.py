"""The result files of the CPU under `results/`, and their rows."""

import json
from collections.abc import Iterator

from benchmarks import common

SIZES = ("original", "medium", "small")
WAYS = ("slots of 64", "one batch of 64", "one sentence")


def read(name: str) -> dict:
    """A result file of the CPU."""
    return json.loads((common.RESULTS / "cpu" / f"{name}.json").read_text(encoding="utf-8"))


def recorded(name: str) -> bool:
    """Whether there is a result file of the CPU."""
    return (common.RESULTS / "cpu" / f"{name}.json").is_file()


def rows(name: str, **wanted) -> Iterator[dict]:
    """Rows of a file whose values are these."""
    return (row for row in read(name)["results"] if all(row.get(key) == value for key, value in wanted.items()))


def machine(name: str) -> str:
    """Processor, cores, instruction sets, torch and day of a file."""
    found = read(name)
    cpu = found["machine"]["cpu"]
    vectors = "AMX" if "amx_bf16" in cpu["features"] else "AVX-512" if "avx512f" in cpu["features"] else "AVX2"
    torch = found["machine"]["torch"].split("+")[0]
    return f"{cpu['cores']} cores of an {cpu['model']} with {vectors}, torch {torch}, {found['date'][:10]}"


def one(name: str, **wanted) -> dict:
    found = list(rows(name, **wanted))
    if len(found) != 1:
        raise ValueError(f"{name}: expected one row with {wanted}, found {len(found)}")
    return found[0]


def ours(size: str, way: str) -> dict:
    return one(f"embed-{size}", variant="ours", precision="highest", way=way)
