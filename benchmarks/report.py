"""Tables and charts of README, docs and benchmarks/README.md, out of `results/`; and two result files compared.

    python -m benchmarks.report                    # write every marked part of the pages, and the charts, anew
    python -m benchmarks.report --check            # exit 1 where a page or a chart differs from the results
    python -m benchmarks.report --compare OLD NEW  # ratios of the rows of two files, and what moved

A part of a page stands between `<!-- report: NAME -->` and `<!-- /report -->`, on lines of their own or within one.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import common, floor, scaling

PAGES = ("README.md", "benchmarks/README.md", "docs/performance.md", "docs/numbers.md", "docs/scaling.md")
CHARTS = common.ROOT / "docs" / "pictures"
SIZES = ("original", "medium", "small")
WAYS = ("slots of 64", "one batch of 64", "one sentence")
_PART = re.compile(r"(<!-- report: ([\w ]+) -->)(.*?)(<!-- /report -->)", re.DOTALL)


def read(name: str) -> dict:
    """A result file of the CPU."""
    return json.loads((common.RESULTS / "cpu" / f"{name}.json").read_text(encoding="utf-8"))


def rows(name: str, **wanted) -> Iterator[dict]:
    """Rows of a file whose values are these."""
    return (row for row in read(name)["results"] if all(row.get(key) == value for key, value in wanted.items()))


def markdown(head: list[str], lines: list[list[str]]) -> str:
    """A table on lines of its own."""
    rule = "|---" * len(head) + "|"
    return "\n".join(["", f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(line)} |" for line in lines), ""])


def machine(name: str) -> str:
    """Processor, cores, instruction sets, torch and day of a file."""
    found = read(name)
    cpu = found["machine"]["cpu"]
    vectors = "AMX" if "amx_bf16" in cpu["features"] else "AVX-512" if "avx512f" in cpu["features"] else "AVX2"
    torch = found["machine"]["torch"].split("+")[0]
    return f"{cpu['cores']} cores of an {cpu['model']} with {vectors}, torch {torch}, {found['date'][:10]}"


# ---- parts of pages --------------------------------------------------------------------------


def speed() -> str:
    """Ratios to AllenNLP by size and way, `highest`."""
    head = ["model", "a stream of sentences (`embed_sentences`, the command)", "one batch of 64", "one sentence"]
    return markdown(head, [[size, *(f"{_ours(size, way)['times_as_fast']:.1f} x" for way in WAYS)] for size in SIZES])


def speed_machine() -> str:
    """Where `speed` was measured."""
    return machine("embed-original")


def embed() -> str:
    """Every row of ours with its floor."""
    lines = []
    for size in SIZES:
        for row in rows(f"embed-{size}", variant="ours"):
            least = f"{row['floor_tokens_per_s']:,.0f}" if "share" in row else "-"
            share = f"{row['share']:.0%}" if "share" in row else "-"
            lines.append([size, row["way"], row["precision"], least, f"{row['tokens_per_s']:,.0f}", share,
                          f"{row['times_as_fast']:.1f}"])
    return markdown(["size", "way", "precision", "tokens/s floor", "reached", "share", "ratio to AllenNLP"], lines)


def token_table() -> str:
    """What tables save."""
    def ratio(**wanted) -> str:
        value = _one("token-table", variant="with a table", **wanted)["times_as_fast"]
        return f"{value:.2f}" if value < 2 else f"{value:.1f}"

    lines = [[f"running text, {size}", "our own path without a table",
              *(ratio(line="text", size=size, way=way) for way in WAYS[:2])] for size in ("small", "original")]
    lines.append(["25 letters, sequences of 500, 15,000 residues a batch, original", "our reference path",
                  *(ratio(line="proteins", way=way) for way in ("slots of 30", "batches of 15,000 residues"))])
    words = _one("token-table", line="building", variant="with a table")["median"]
    lines.append([f"building a table of unique words, original, {words:,.0f} words/s", "the reference char encoder", "",
                  ratio(line="building")])
    return markdown(["what", "beside", "in slots", "in batches"], lines)


def train() -> str:
    """Our trainer beside bilm-tf's."""
    found = read("train-issue")["results"]
    ours, theirs = found["elmo-fast"], found["bilm-tf"]
    perplexity = f"held-out perplexity after {ours['tokens']:,} tokens, forward / backward"
    return markdown(["trainer", "tokens/s", perplexity], [
        ["bilm-tf on TensorFlow", f"{theirs['tokens_per_second']:,.0f}", _both(theirs)],
        ["elmo-fast", f"{ours['tokens_per_second']:,.0f} (**{found['times_as_fast']:.1f} times**)", _both(ours)]])


def train_ratio() -> str:
    """How much faster than bilm-tf's trainer."""
    return f"{read('train-issue')['results']['times_as_fast']:.1f}"


def reference() -> str:
    """The plain paths beside AllenNLP's own code."""
    names = {"allennlp": "AllenNLP 0.9's own", "reference": '`backend="reference"`', "torch": '`backend="torch"`'}
    return markdown(["code", "tokens/s", "times as fast as AllenNLP's"], [
        [names[row["variant"]], f"{row['tokens_per_s']:,.0f}", f"{row['times_as_fast_as_allennlp']:.2f}"]
        for row in rows("reference-original")])


def _one(name: str, **wanted) -> dict:
    found = list(rows(name, **wanted))
    if len(found) != 1:
        raise ValueError(f"{name}: expected one row with {wanted}, found {len(found)}")
    return found[0]


def _ours(size: str, way: str) -> dict:
    return _one(f"embed-{size}", variant="ours", precision="highest", way=way)


def _both(trainer: dict) -> str:
    return " / ".join(f"{value:.0f}" if value < 1e5 else f"{value:.1e}".replace("e+0", "e") for value in
                      trainer["by_direction"])


PARTS: dict[str, Callable[[], str]] = {
    "speed": speed, "speed machine": speed_machine, "embed": embed, "token table": token_table, "train": train,
    "train ratio": train_ratio, "reference": reference,
    "scaling rates": lambda: markdown(*scaling.rate_table()), "scaling costs": lambda: markdown(*scaling.cost_table())}


def with_parts(text: str) -> str:
    """A page with its marked parts made anew."""
    return _PART.sub(lambda found: f"{found[1]}{PARTS[found[2]]()}{found[4]}", text)


# ---- charts ----------------------------------------------------------------------------------


def _axes(width: float, height: float):
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # the same bytes for the same results; text stays text
    with rc_context({"svg.hashsalt": "elmo-fast", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def bars():
    """Speed as a multiple of AllenNLP's batches of 64, by size and way; the floor of each run as a mark."""
    figure, axes = _axes(8, 3.6)
    labels, places = [], []
    for number, size in enumerate(SIZES):
        peer = _one(f"embed-{size}", variant="allennlp", way="one batch of 64")
        for line, (name, row) in enumerate([("AllenNLP 0.9, batches of 64", peer),
                                            *((way, _ours(size, way)) for way in WAYS[1::-1])]):
            place = 3.7 * number + line
            axes.barh(place, row["times_as_fast"], color="0.75" if row is peer else "#4051b5")
            end = row["times_as_fast"]
            if "floor_tokens_per_s" in row:
                end = row["floor_tokens_per_s"] / peer["tokens_per_s"]
                axes.plot([end, end], [place - 0.42, place + 0.42], color="#d32f2f", linewidth=2)
            reached = f"{row['times_as_fast']:.1f} x, {row['tokens_per_s']:,.0f} tokens/s"
            axes.text(end + 0.4, place, reached, va="center")
            labels.append(f"{size}: {name}")
            places.append(place)
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 50)
    axes.set_xlabel("times AllenNLP's speed, fp32; red: the floor of the machine in that run")
    return figure


def roofline():
    """FLOP/s of whole models under the rates that their runs measured, over the FLOP for a byte of weights read."""
    import numpy as np

    figure, axes = _axes(7.5, 4.2)
    markers = dict(zip(WAYS, "osD"))
    for size, color in zip(SIZES, ("#4051b5", "#2e7d32", "#d32f2f")):
        rates, options = read(f"embed-{size}")["settings"]["rates"]["highest"], common.standard_options(size)
        x = np.geomspace(0.4, 100, 50)
        axes.plot(x, np.minimum(rates["fp32"], rates["read"] * x) / 1e9, color=color, linewidth=1)
        for way in WAYS:
            row = _ours(size, way)
            read_per_token = 4 * options["lstm"]["n_layers"] * floor.step_weights(options) / row["live_rows_per_step"]
            axes.plot(row["flop_per_token"] / read_per_token, row["tokens_per_s"] * row["flop_per_token"] / 1e9,
                      markers[way], color=color, label=f"{size}, {way}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("FLOP for each byte of recurrent weights that the steps read")
    axes.set_ylabel("GFLOP/s; lines: the rates of the machine")
    axes.legend(frameon=False, loc="lower right", fontsize=8)
    return figure


DRAWN = {"speed.svg": bars, "roofline.svg": roofline}


def svg(figure) -> str:
    """The picture as text, without date and version, which would change with every run."""
    import io

    from matplotlib import rc_context

    written = io.StringIO()
    with rc_context({"svg.hashsalt": "elmo-fast", "svg.fonttype": "none"}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r"[ \t]+\n", "\n", written.getvalue())


# ---- comparing -------------------------------------------------------------------------------


def compare(old: dict, new: dict) -> list[str]:
    """A line a row that both files have: new over old, and whether that is outside the spread of either."""
    lines = []
    if old["machine"]["cpu"] != new["machine"]["cpu"] or old["machine"]["gpu"] != new["machine"]["gpu"]:
        lines.append("different machines: ratios say nothing on the code")
    before = dict(_named(old))
    for name, row in _named(new):
        if name not in before:
            lines.append(f"{name}: only in the new file")
            continue
        value, low, high = _value(row)
        old_value, old_low, old_high = _value(before.pop(name))
        moved = "" if low <= old_high and old_low <= high else "  moved"
        lines.append(f"{name}: {value / old_value:.2f}{moved}")
    return [*lines, *(f"{name}: only in the old file" for name in before)]


def _named(document: dict) -> Iterator[tuple[str, dict]]:
    found = document["results"]
    if isinstance(found, dict):
        yield from ((name, row) for name, row in found.items() if isinstance(row, dict))
        return
    for row in found:
        names = (row.get(key) for key in ("line", "case", "size", "way", "part", "path", "variant", "precision"))
        yield ", ".join(str(name) for name in names if name), row


def _value(row: dict) -> tuple[float, float, float]:
    """The speed, and its 20th and 80th percentile; where they are in seconds, of calls per second."""
    key = next((key for key in ("tokens_per_s", "tokens_per_second") if key in row), None)
    speed = row[key] if key else 1 / row["median"]
    if "p20" not in row:
        return speed, speed, speed
    is_speed = row.get("unit", "tokens/s" if key == "tokens_per_second" else "s").endswith("/s")
    low, high = (row[name] / row.get("median", speed) for name in ("p20", "p80"))
    return (speed, speed * low, speed * high) if is_speed else (speed, speed / high, speed / low)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where something differs")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"), help="two result files")
    arguments = parser.parse_args()
    if arguments.compare:
        print("\n".join(compare(*(json.loads(path.read_text(encoding="utf-8")) for path in arguments.compare))))
        return 0
    wanted = {common.ROOT / page: with_parts((common.ROOT / page).read_text(encoding="utf-8")) for page in PAGES}
    wanted |= {CHARTS / name: svg(draw()) for name, draw in DRAWN.items()}
    differ = [path for path, text in wanted.items()
              if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in differ:
        print(f"{'differs' if arguments.check else 'written'}: {path.relative_to(common.ROOT)}", file=sys.stderr)
        if not arguments.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
    return int(bool(differ) and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
