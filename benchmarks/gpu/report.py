"""Joins what the stages wrote into one JSON file, prints a short table and draws one plot.

A stage that crashed or ran out of time keeps the cases it finished; its status, exit code and the end of its
output stand beside them.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from benchmarks import common
from benchmarks.gpu import stage as stages

TIMED_OUT = (124, 137)
LAST_LINES = 12
FRAME = ("schema", "date", "revision", "machine")


def read_part(folder: Path, name: str) -> dict:
    """One stage: its document without the frame that all share, and how its process ended."""
    exit_code, seconds, limit = map(int, (folder / f"{name}.exit").read_text().split())
    path = folder / f"{name}.json"
    part = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"status": "failed", "results": []}
    part.update(exit=exit_code, wall_seconds=seconds, limit_seconds=limit)
    if exit_code in TIMED_OUT:
        part["status"] = "timed out"
    elif exit_code and part["status"] != "failed":
        part["status"] = "failed"
    if part["status"] != "complete":
        part["log"] = log_tail(folder / f"{name}.log")
    return part


def log_tail(path: Path) -> list[str]:
    """The last lines a stage printed, without this machine's paths."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
    return [stages.without_paths(line)[:300] for line in lines]


def join(folder: Path) -> dict:
    """Parts in the order in which the stages ran; the frame is that of the first that has one."""
    names = [path.stem for path in sorted(folder.glob("*.exit"), key=lambda path: path.stat().st_mtime_ns)]
    if not names:
        raise FileNotFoundError(f"--parts: no stage has run in {folder}")
    parts = {name: read_part(folder, name) for name in names}
    framed = next((part for part in parts.values() if "machine" in part), {})
    joined = {key: framed.get(key) for key in FRAME}
    for part in parts.values():
        for key in (*FRAME, "name"):
            part.pop(key, None)
    return {"name": "gpu", **joined, "seconds": sum(part["wall_seconds"] for part in parts.values()),
            "stages": parts}


# ---- table ---------------------------------------------------------------------------------


def table(document: dict) -> str:
    lines = [f"{'stage':10} {'status':10} {'s':>5} {'cases':>6}  note"]
    for name, part in document["stages"].items():
        note = part.get("error") or _headline(name, part["results"])
        lines.append(f"{name:10} {part['status']:10} {part['wall_seconds']:5d} {len(part['results']):6d}  {note}")
    return "\n".join(lines)


def _headline(name: str, cases: list[dict]) -> str:
    if name == "checks":
        errors = [max(case["errors"]) for case in cases if case.get("precision") == "highest" and "errors" in case]
        return f"largest relative error of 'highest': {max(errors):.1e}" if errors else ""
    if name == "ceilings":
        keys = ("gb_per_s", "tflop_per_s", "us_per_launch", "us_per_node")
        found = [f"{case['case']} {case[key]:.3g}" for case in cases for key in keys
                 if key in case and not case["case"].startswith("step")]
        return ", ".join(found)
    timed = [case for case in cases if "tokens_per_s" in case]
    best = max(timed, key=lambda case: case["tokens_per_s"], default=None)
    return f"most: {best['tokens_per_s']:,.0f} tokens/s ({label(best)})" if best else ""


def label(case: dict) -> str:
    parts = [case.get(key) for key in ("variant", "backend", "part", "precision")]
    return " ".join(dict.fromkeys(part for part in parts if part))


# ---- plot ----------------------------------------------------------------------------------


def series(document: dict) -> dict[int, dict[str, list[tuple[int, float]]]]:
    """Length -> line -> (batch, tokens/s), of the cases timed at fixed shapes."""
    lines: dict[int, dict[str, list[tuple[int, float]]]] = {}
    for part in document["stages"].values():
        for case in part["results"]:
            if "batch" in case and "tokens_per_s" in case and case["variant"] != "token encoder":
                of_length = lines.setdefault(case["length"], {})
                of_length.setdefault(label(case), []).append((case["batch"], case["tokens_per_s"]))
    return lines


def plot(document: dict, path: Path) -> str:
    """Draws tokens/s against batch size, one panel a length; says what it did."""
    lines = series(document)
    if not lines:
        return "no plot: no stage timed fixed shapes"
    try:
        import matplotlib
    except ImportError:
        return "no plot: matplotlib is not installed"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = sorted({name for of_length in lines.values() for name in of_length})
    colours = {name: f"C{index % 10}" for index, name in enumerate(names)}
    styles = {name: ("-", "--", ":")[index // 10 % 3] for index, name in enumerate(names)}
    figure, panels = pyplot.subplots(1, len(lines), figsize=(5 * len(lines) + 3, 5), sharey=True, squeeze=False)
    handles = {}
    for panel, (length, of_length) in zip(panels[0], sorted(lines.items())):
        for name, points in of_length.items():
            handles[name], = panel.plot(*zip(*sorted(points)), styles[name], marker="o", color=colours[name])
        panel.set(xscale="log", yscale="log", title=f"{length} tokens a sentence", xlabel="sentences in a batch")
    panels[0][0].set_ylabel("tokens per second")
    gpu = (document["machine"] or {}).get("gpu")
    figure.suptitle(gpu["name"] if gpu else "dry run on a CPU: no measurement")
    figure.legend([handles[name] for name in names], names, fontsize=8, loc="center right")
    figure.tight_layout(rect=(0, 0, 1 - 3 / (5 * len(lines) + 3), 1))
    figure.savefig(path, dpi=110)
    return f"plot: {path.name}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Join the stages' results into one file.")
    parser.add_argument("--parts", type=Path, required=True, metavar="DIR", help="folder the stages wrote to")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON file to write")
    parser.add_argument("--plot", action="store_true", help="draw a PNG beside it")
    parser.add_argument("--quiet", action="store_true", help="print no table")
    parser.add_argument("--final", action="store_true", help="remove the parts afterwards")
    arguments = parser.parse_args()
    try:
        document = join(arguments.parts)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    common.write_json(arguments.out, document)
    if not arguments.quiet:
        print(table(document))
    if arguments.plot:
        print(plot(document, arguments.out.with_suffix(".png")))
    if arguments.final:
        shutil.rmtree(arguments.parts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
