"""Charts out of the result files, as figures of matplotlib, and as the same bytes for the same results."""

import re
from collections.abc import Callable

from benchmarks import floor, workloads
from benchmarks.recorded import SIZES, WAYS, one, ours, read, recorded, rows


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
        peer = one(f"embed-{size}", variant="allennlp", way="one batch of 64")
        for line, (name, row) in enumerate([("AllenNLP 0.9, batches of 64", peer),
                                            *((way, ours(size, way)) for way in WAYS[1::-1])]):
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
    from matplotlib.ticker import LogFormatter

    figure, axes = _axes(7.5, 4.2)
    markers = dict(zip(WAYS, "osD"))
    for size, color in zip(SIZES, ("#4051b5", "#2e7d32", "#d32f2f")):
        rates, options = read(f"embed-{size}")["settings"]["rates"]["highest"], workloads.options_of(size)
        x = np.geomspace(0.4, 100, 50)
        axes.plot(x, np.minimum(rates["fp32"], rates["read"] * x) / 1e9, color=color, linewidth=1,
                  label=f"{size}, roof: {rates['fp32'] / 1e9:.0f} GFLOP/s, {rates['read'] / 1e9:.0f} GB/s read")
        for way in WAYS:
            row = ours(size, way)
            read_per_token = 4 * options["lstm"]["n_layers"] * floor.step_weights(options) / row["live_rows_per_step"]
            axes.plot(row["flop_per_token"] / read_per_token, row["tokens_per_s"] * row["flop_per_token"] / 1e9,
                      markers[way], color=color, label=f"{size}, {way}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(LogFormatter())
        axis.set_minor_formatter(LogFormatter())
    axes.set_xlabel("arithmetic intensity: FLOP for each byte of recurrent weights that the steps read")
    axes.set_ylabel("GFLOP/s")
    axes.legend(frameon=False, loc="lower right", fontsize=8)
    return figure


def memory():
    """Peak memory of the command against the number of sentences."""
    figure, axes = _axes(7, 3.6)
    found = {}
    for row in rows("io", way="memory"):
        found.setdefault(row["variant"], []).append((row["sentences"], row["median"]))
    for (name, points), marker, color in zip(found.items(), "osD", ("#4051b5", "#2e7d32", "#d32f2f")):
        axes.plot(*zip(*points), marker=marker, color=color, label=name)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("sentences")
    axes.set_ylabel("peak memory of the process, MiB")
    axes.legend(frameon=False)
    return figure


DRAWN = {"speed.svg": bars, "roofline.svg": roofline}


def drawn() -> dict[str, Callable]:
    """The charts of the results that there are."""
    return DRAWN | ({"memory.svg": memory} if recorded("io") else {})


def svg(figure) -> str:
    """The picture as text, without date and version, which would change with every run."""
    import io

    from matplotlib import rc_context

    written = io.StringIO()
    with rc_context({"svg.hashsalt": "elmo-fast", "svg.fonttype": "none"}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r"[ \t]+\n", "\n", written.getvalue())
