"""What a run on a GPU measured beside what was predicted: `python -m benchmarks.gpu.table FOLDER`.

Predictions are for an H200 and the model of the original size, made before any GPU had run the code; goals stand among
them as predictions. A figure that is off by more than a claim's `most` is named with the rule that it decides.
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple

Rows = dict[str, list[dict]]  # by stage


class Claim(NamedTuple):
    """A figure: the `key` of the row of a stage whose entries are `where`, over that of the row of `over`."""

    what: str
    predicted: float
    stage: str
    where: dict
    decides: str
    key: str = "median"
    over: tuple[str, dict] | None = None
    most: float = 1.5  # measured over predicted, or the other way round

    def measured(self, rows: Rows) -> float | None:
        value, base = value_of(rows, self.stage, self.where, self.key), 1.0
        if self.over:
            base = value_of(rows, *self.over, self.key)
        return value / base if value and base else None


def value_of(rows: Rows, stage: str, where: dict, key: str) -> float | None:
    return next((row[key] for row in rows.get(stage, ()) if where.items() <= row.items() and key in row), None)


def steps(path: str, slots: int, precision: str = "medium") -> dict:
    return {"variant": path, "precision": precision, "slots": slots}


def text(way: str, precision: str = "medium") -> dict:
    return {"variant": "ours", "way": way, "precision": precision}


PLAN, RULE = "the plan of clusters (csrc/cuda/plan.h)", "which path runs (elmo_fast/ops/projected_lstm/cuda/choice.py)"
STEP, SLOTS, HOST = "what is done in a step (csrc/cuda)", "the sentences at a time (docs/gpu.md)", "the host's share"
CLAIMS = [
    Claim("clusters of 8 blocks at once", 15, "micro", {"variant": "clusters_of_8"}, PLAN, most=1.01),
    Claim("a grid barrier, us", 1.35, "micro", {"variant": "grid_barrier_us"}, "one barrier less for few slots"),
    *(Claim(f"a step, persistent, {slots} slots, us", us, "steps", steps("persistent", slots), STEP, "us_per_step")
      for slots, us in ((1, 5.75), (64, 15))),
    *(Claim(f"a step, graph, {slots} slots, us", us, "steps", steps("graph", slots), STEP, "us_per_step")
      for slots, us in ((256, 60), (1024, 184))),
    Claim("a step in highest, graph, 64 slots, us", 90, "steps", steps("graph", 64, "highest"), STEP, "us_per_step"),
    Claim("graph over persistent, a step of 256 slots", 1, "steps", steps("graph", 256), RULE, "us_per_step",
          ("steps", steps("persistent", 256))),
    Claim("graph over persistent, a step of 64 slots", 2, "steps", steps("graph", 64), RULE, "us_per_step",
          ("steps", steps("persistent", 64))),
    Claim("fence over no fence, a step of 64 slots", 1, "fenced-steps", steps("persistent", 64),
          "the fence of `release` (csrc/cuda/persistent.cuh)", "us_per_step", ("steps", steps("persistent", 64)), 1.02),
    *(Claim(f"nn.LSTM over ours, {rows} rows", ratio, "peers", {"variant": "nn.LSTM", "slots": rows}, RULE,
            "us_per_layer_step", ("peers", {"variant": "ours", "slots": rows}))
      for rows, ratio in ((1, 3.5), (64, 1.45), (256, 0.7), (1024, 0.6))),
    Claim("the host alone, 64 slots, us a token", 1.5, "host", {"way": "slots of 64"}, HOST),
    Claim("64 slots, tokens/s", 1.5e6, "text", text("slots of 64"), HOST),
    Claim("batches of 64, tokens/s", 0.7e6, "text", text("one batch of 64"), HOST),
    Claim("256 over 64 slots, tokens/s", 1.2, "text", text("slots of 256"), SLOTS, over=("text", text("slots of 64"))),
    Claim("a call with one sentence, s", 0.6e-3, "text", text("calls of 1"), HOST),
    *(Claim(f"{way}, {precision}, times as fast as AllenNLP's", ratio, "text", text(way, precision), HOST,
            over=("text", {"variant": "allennlp"}))
      for way, ratios in (("slots of 64", (6, 15, 40)), ("one batch of 64", (4, 8, 15)))
      for precision, ratio in zip(("highest", "high", "medium"), ratios)),
]


def read(folder: Path) -> Rows:
    return {path.stem: json.loads(path.read_text(encoding="utf-8"))["results"] for path in folder.glob("*.json")}


def table(rows: Rows) -> str:
    """The claims as Markdown, then a line for each that is off."""
    lines, off = ["| claim | predicted | measured | ratio |", "|---|---|---|---|"], []
    for claim in CLAIMS:
        measured = claim.measured(rows)
        ratio = measured and measured / claim.predicted
        cells = ["not measured", "-"] if ratio is None else [f"{measured:,.4g}", f"{ratio:.2f}"]
        lines.append(f"| {claim.what} | {claim.predicted:,.4g} | {' | '.join(cells)} |")
        if ratio and max(ratio, 1 / ratio) > claim.most:
            off.append(f"off by {max(ratio, 1 / ratio):.2f}: {claim.what}. It decides {claim.decides}.")
    return "\n".join([*lines, "", *off])


if __name__ == "__main__":
    print(table(read(Path(sys.argv[1]))))
