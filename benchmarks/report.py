"""Tables and charts of README, docs and benchmarks/README.md, out of `results/`; and two result files compared.

    python -m benchmarks.report                    # write every marked part of the pages, and the charts, anew
    python -m benchmarks.report --check            # exit 1 where a page or a chart differs from the results
    python -m benchmarks.report --compare OLD NEW  # ratios of the rows of two files, and what moved
    python -m benchmarks.report --table FILE...    # rows of any files as Markdown

A part of a page stands between `<!-- report: NAME -->` and `<!-- /report -->`, on lines of their own or within one.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import choosing, common
from benchmarks.charts import drawn, svg
from benchmarks.recorded import SIZES, SUFFIXES, WAYS, machine, markdown, one, ours, read, recorded, rows, text

PAGES = ("README.md", "benchmarks/README.md", "elmo_fast/pretrained/README.md",
         *(f"docs/{name}.md" for name in ("choosing", "input", "numbers", "performance", "serving")))
PEER_SIZES = ("original", "small", "bundled")
LAYERS = {"AVX-512 with BF16": "layer-original", "AMX": "layer-original-amx"}
LOADS = tuple((load, threads) for load in ("idle", "busy") for threads in (1, 2))
NOT_YET = "\nNot recorded yet.\n"
CHARTS = common.ROOT / "docs" / "pictures"
_PART = re.compile(r"(<!-- report: ([\w ]+) -->)(.*?)(<!-- /report -->)", re.DOTALL)


# ---- parts of pages --------------------------------------------------------------------------


def speed() -> str:
    """Ratios to AllenNLP by size, processor, precision and way."""
    def cell(row: dict) -> str:
        return f"{row['times_as_fast']:.1f} x"

    stream = "a stream of sentences (`embed_sentences`, the command)"
    head = ["model", "processor, precision", stream, "one batch of 64", "one sentence"]
    return markdown(head, [[size, f"{processor}, `{precision}`",
                            *(cell(ours(size, way, precision, suffix)) for way in WAYS)]
                           for size in SIZES for processor, suffix in SUFFIXES.items()
                           for precision in ("highest", "medium", "low")])


def speed_machine() -> str:
    """Where `speed` was measured."""
    return "; ".join(machine(f"embed-original{suffix}") for suffix in SUFFIXES.values())


def layer() -> str:
    """A layer beside oneDNN's, by processor, without the 256 rows that few streams have."""
    def cells(name: str, file: str, row: dict) -> list[str]:
        theirs = one(file, variant="onednn", precision=row["precision"], rows=row["rows"])
        step = [f"{1e3 * each['median'] / read(file)['settings']['steps']:.2f}" for each in (row, theirs)]
        return [name, row["precision"], str(row["rows"]), *step, f"{1 / theirs['times_as_fast_as_ours']:.2f} x"]

    head = ["processor", "precision", "rows", "elmo-fast, ms a step", "oneDNN", "ratio"]
    return markdown(head, [cells(name, file, row) for name, file in LAYERS.items()
                           for row in rows(file, variant="ours") if row["rows"] != 256])


def peers() -> str:
    """bilm-tf's and simple_elmo's own code, and ours in the same run."""
    def cells(file: str, way: str) -> list[str]:
        mine = one(file, way=way, variant="ours", precision="highest")
        theirs = {name: one(file, way=way.replace("slots", "one batch"), variant=name) for name in mine["ratio_to"]}
        speeds = (f"{row['tokens_per_s']:,.0f}" for row in (mine, *theirs.values()))
        return [*speeds, *(f"{mine['ratio_to'][name]:.1f} x" for name in theirs)]

    head = ["model", "way", "elmo-fast, tokens/s", "bilm-tf", "simple_elmo", "ratio to bilm-tf", "to simple_elmo"]
    return markdown(head, [[size, way, *cells(f"peers-{size}", way)] for size in PEER_SIZES for way in WAYS])


def peers_machine() -> str:
    """Where `peers` was measured."""
    return f"TensorFlow {read('peers-original')['settings']['tensorflow']}, {machine('peers-original')}"


def latency() -> str:
    """Milliseconds of one sentence, idle and busy, and the host's microseconds per token."""
    head = ["model", "tokens", "idle, one thread", "idle, two threads", "of these in the engine", "busy, one thread",
            "busy, two threads"]
    lines = []
    for size in ("bundled", "small"):
        for count in (1, 5, 25, 100):
            recorded_rows = rows(f"latency-{size}", way=f"{count} tokens")
            found = {(row["variant"], row["threads"]): row for row in recorded_rows}
            cells = [f"{1e3 * found[case]['median']:.1f}" for case in LOADS]
            lines.append([size, str(count), *cells[:2], f"{1e3 * found['idle', 2]['engine_s']:.1f}", *cells[2:]])
    return markdown(head, lines)


def start() -> str:
    """Seconds and memory of processes from their start to their end."""
    return markdown(["process", "seconds", "MiB"],
                    [[f"`{row['way']}`", f"{row['median']:.2f}", f"{row['mib']:.0f}"] for row in rows("start")])


def host() -> str:
    """The host's share of a stream."""
    least, most = (f(row["median"] for size in ("bundled", "small") for row in rows(f"latency-{size}", way="host"))
                   for f in (min, max))
    return f"{least:.1f} to {most:.1f}"


def precisions() -> str:
    """Speed and accuracy of precisions by model."""
    def cells(row: dict) -> list[str]:
        errors = ", ".join(f"{error:.1e}".replace("e-0", "e-") if error else "0" for error in row["relative_errors"])
        return [f"`{row['variant']}`", f"{row['tokens_per_s']:,.0f}", f"{row['sentence_ms']:.1f}", errors,
                f"{row['smallest_cosine']:.6f}"]

    level, head = choosing.last_level(), ["model", "precision", "tokens/s", "one sentence, ms",
                                          "relative error by layer", "smallest cosine"]
    files = {size: f"precisions-{size}-{level}" for size in ("bundled", "small", "original")}
    if level != "amx":  # the only one with `high`
        files["original, AMX"] = "precisions-original-amx"
    return markdown(head, [[size, *cells(row)] for size, file in files.items() for row in rows(file)])


def token_table() -> str:
    """What tables save."""
    def ratio(**wanted) -> str:
        value = one("token-table", variant="with a table", precision="highest", **wanted)["times_as_fast"]
        return f"{value:.2f}" if value < 2 else f"{value:.1f}"

    lines = [[f"running text, {model}", "our own path without a table",
              *(ratio(workload="running text", model=model, way=way) for way in WAYS[:2])]
             for model in ("small", "original")]
    lines.append(["25 letters, sequences of 500, 15,000 residues a batch, original", "our reference path",
                  *(ratio(workload="proteins", way=way) for way in ("slots of 30", "batches of 15,000 residues"))])
    words = one("token-table", workload="building", variant="with a table", precision="highest")["median"]
    lines.append([f"building a table of unique words, original, {words:,.0f} words/s", "the reference char encoder", "",
                  ratio(workload="building")])
    return markdown(["what", "beside", "in slots", "in batches"], lines)


def train() -> str:
    """Our trainer beside bilm-tf's."""
    mine, theirs = (one("train-issue", variant=name) for name in ("elmo-fast", "bilm-tf"))
    perplexity = f"held-out perplexity after {mine['tokens']:,} tokens, forward / backward"
    return markdown(["trainer", "tokens/s", perplexity], [
        ["bilm-tf on TensorFlow", f"{theirs['median']:,.0f}", _both(theirs)],
        ["elmo-fast", f"{mine['median']:,.0f} (**{mine['times_as_fast']:.1f} times**)", _both(mine)]])


def train_ratio() -> str:
    """How much faster than bilm-tf's trainer."""
    return f"{one('train-issue', variant='elmo-fast')['times_as_fast']:.1f}"


def reference() -> str:
    """The plain paths beside AllenNLP's own code, all in batches of 64."""
    names = {"allennlp": "AllenNLP 0.9's own", "reference": '`backend="reference"`', "torch": '`backend="torch"`'}
    found = {name: one("embed-original", variant=name, way="one batch of 64") for name in names}
    return markdown(["code", "tokens/s", "times as fast as AllenNLP's"], [
        [label, f"{found[name]['tokens_per_s']:,.0f}", f"{found[name]['times_as_fast']:.2f}"]
        for name, label in names.items()])


def tokenizers() -> str:
    """F1 of tokens and whole sentences by tokenizer and file."""
    found = {}
    for line in text("tokenizers").splitlines():
        _, tokenizer, f1, equal = line.split("\t")
        found.setdefault(tokenizer, []).append(f"{f1.split()[1]} / {equal.split()[1]}")
    return markdown(["`tokenizer`", "EWT dev", "EWT test", "held-out text"],
                    [[f"`{name}`", *cells] for name, cells in found.items()])


def io() -> str:
    """A text file to a file, as a share of the engine alone."""
    if not recorded("io"):
        return NOT_YET
    lines = []
    for row in rows("io", way="text file to file"):
        engine = one("io", model=row["model"], variant="engine alone")
        goal = f"{row['goal']:.0%}" if "goal" in row else ""
        lines.append([row["model"], row["variant"], f"{engine['median']:,.0f}", f"{row['median']:,.0f}",
                      f"{row['share_of_engine']:.0%}", goal])
    return markdown(["model", "file", "the engine alone, tokens/s", "text file to file", "share", "goal"], lines)


def io_memory() -> str:
    """Peak memory by length, and the chart."""
    if not recorded("io"):
        return NOT_YET
    found = {}
    for row in rows("io", way="memory"):
        found.setdefault(row["variant"], {})[row["sentences"]] = f"{row['median']:,.0f}"
    lengths = list(next(iter(found.values())))
    lines = [[name, *(peaks[length] for length in lengths)] for name, peaks in found.items()]
    head = ["file, peak MiB", *(f"{length:,} sentences" for length in lengths)]
    return f"{markdown(head, lines)}\n![Peak memory against length](pictures/memory.svg)\n"


def serve() -> str:
    """The server under the load of many clients, and batching beside one request at a time."""
    load, together = one("serve-small", way="load"), one("serve-small", way="all clients")
    alone, clients = one("serve-small", way="one request at a time"), read("serve-small")["settings"]["clients"]
    speeds = f"{together['median']:,.0f} against {alone['median']:,.0f} tokens/s, {together['times_as_fast']:.2f} times"
    return markdown(["small model", ""], [
        [f"{clients} clients, {load['seconds']:.0f} s", f"{load['requests']:,} requests, {load['errors']} errors"],
        ["throughput", f"{load['tokens_per_s']:,.0f} tokens/s"],
        ["a sentence, p50 / p99", f"{load['sentence_p50']:.2f} / {load['sentence_p99']:.2f} s"],
        ["a document of 2,000 tokens, p50 / p99", f"{load['document_p50']:.1f} / {load['document_p99']:.1f} s"],
        ["memory before / at most", f"{load['resident_mib_before']:,.0f} / {load['resident_mib_peak']:,.0f} MiB"],
        ["all clients against one request at a time", speeds]])


def io_machine() -> str:
    """Where they were measured."""
    return machine("io") if recorded("io") else NOT_YET.strip()


def _both(trainer: dict) -> str:
    return " / ".join(f"{value:.0f}" if value < 1e5 else f"{value:.1e}".replace("e+0", "e") for value in
                      trainer["by_direction"])


PARTS: dict[str, Callable[[], str]] = {
    "speed": speed, "speed short": choosing.speed_short, "model sizes": choosing.model_sizes, "states": choosing.states,
    "precision choice": choosing.precision_choice, "speed machine": speed_machine, "layer": layer,
    "layer machine": lambda: "; ".join(map(machine, LAYERS.values())), "peers": peers, "peers machine": peers_machine,
    "latency": latency, "latency machine": lambda: machine("latency-bundled"), "host": host,
    "precisions": precisions, "precisions machine": lambda: machine(f"precisions-bundled-{choosing.last_level()}"),
    "amx machine": lambda: machine("precisions-original-amx"), "levels machine": choosing.levels_machine,
    "precision levels": choosing.precision_levels, "medium sentence": lambda: choosing.sentence_ratios("medium"),
    "low sentence": lambda: choosing.sentence_ratios("low"), "token table": token_table,
    "token table machine": lambda: machine("token-table"), "train": train,
    "train machine": lambda: machine("train-issue"), "train ratio": train_ratio, "reference": reference,
    "reference machine": lambda: machine("embed-original"), "tokenizers": tokenizers,
    **{task: lambda task=task: f"\n```text\n{text(task)}```\n" for task in ("pos", "mr")},
    "io": io, "io memory": io_memory, "io machine": io_machine,
    "start": start, "start machine": lambda: machine("start"),
    "serve": serve, "serve machine": lambda: machine("serve-small")}


def with_parts(text: str) -> str:
    """A page with its marked parts made anew."""
    return _PART.sub(lambda found: f"{found[1]}{PARTS[found[2]]()}{found[4]}", text)


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
    keys = "workload", "model", "case", "way", "part", "path", "variant", "stage", "sentences", "precision"
    for row in found:
        yield ", ".join(str(row[key]) for key in keys if row.get(key)), row


def _value(row: dict) -> tuple[float, float, float]:
    """The speed, and its 20th and 80th percentile; where they are no speeds, of their inverse."""
    is_speed = row.get("unit", "s").endswith("/s")
    speed = row["tokens_per_s"] if "tokens_per_s" in row else row["median"] if is_speed else 1 / row["median"]
    if "p20" not in row:
        return speed, speed, speed
    low, high = (row[name] / row["median"] for name in ("p20", "p80"))
    return (speed, speed * low, speed * high) if is_speed else (speed, speed / high, speed / low)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where something differs")
    parser.add_argument("--table", nargs="+", type=Path, metavar="FILE", help="print rows of result files as Markdown")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"), help="two result files")
    arguments = parser.parse_args()
    loaded = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.compare or arguments.table or ()]
    if loaded:
        print("\n".join(compare(*loaded) if arguments.compare else map(common.table, loaded)))
        return 0
    wanted = {common.ROOT / page: with_parts((common.ROOT / page).read_text(encoding="utf-8")) for page in PAGES}
    wanted |= {CHARTS / name: svg(draw()) for name, draw in drawn().items()}
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
