"""The result files of the CPU under `results/`, and their rows."""

import json
import re
from collections.abc import Iterator

from benchmarks import common
from elmo_fast.bench.machine import machine as this_machine

SIZES = ("original", "medium", "small")
# of the files `embed-SIZE` by processor
SUFFIXES = {"AVX2": "-avx2", "AVX-512 with VNNI": "-avx512-vnni", "AVX-512 with BF16": "", "AMX": "-amx"}
WAYS = ("slots of 64", "one batch of 64", "one sentence")


def read(name: str) -> dict:
    """A result file of the CPU."""
    return json.loads((common.RESULTS / "cpu" / f"{name}.json").read_text(encoding="utf-8"))


def text(name: str) -> str:
    """What a command printed."""
    return (common.RESULTS / "cpu" / f"{name}.txt").read_text(encoding="utf-8")


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
    model = re.sub(r"\((R|TM)\)| Processor| @.*", "", cpu["model"])
    torch = found["machine"]["torch"].split("+")[0]
    return f"{cpu['cores']} cores of an {model} ({_vectors(cpu['features'])}), torch {torch}, {found['date'][:10]}"


def suffix() -> str:
    """What the names of result files of this machine end in."""
    return SUFFIXES.get(_vectors(this_machine()["cpu"]["features"]), "-avx512")


def _vectors(features: list[str]) -> str:
    kinds = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 with BF16", "avx512_vnni": "AVX-512 with VNNI",
             "avx512f": "AVX-512"}
    return next((kind for feature, kind in kinds.items() if feature in features), "AVX2")


def one(name: str, **wanted) -> dict:
    found = list(rows(name, **wanted))
    if len(found) != 1:
        raise ValueError(f"{name}: expected one row with {wanted}, found {len(found)}")
    return found[0]


def ours(size: str, way: str, precision: str = "highest", suffix: str = "") -> dict:
    """Our row of a size and way, on the machine whose files have the suffix."""
    return one(f"embed-{size}{suffix}", variant="ours", precision=precision, way=way)


def markdown(head: list[str], lines: list[list[str]]) -> str:
    """A table on lines of its own."""
    rule = "|---" * len(head) + "|"
    return "\n".join(["", f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(line)} |" for line in lines), ""])
