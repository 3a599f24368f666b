"""What bench_embed writes: a result per case, and the Markdown table of several files."""

import json
from pathlib import Path

from benchmarks import common


def rows_of(speeds: dict, seconds: dict, tokens: int, floors_found: dict, busy: dict) -> list[dict]:
    """A result per case: speed, ratio to the peer (a stream's: to its batches), floor, share, busy turns.

    Timings by case: of the text in tokens per second, of the sentence with `tokens` in seconds.
    """
    of_text, of_sentence = next(iter(speeds.values())).median, next(iter(seconds.values())).median
    cases = [(key, timing.as_dict() | {"unit": "tokens/s"}, timing.median, timing.median / of_text)
             for key, timing in speeds.items()]
    cases += [(key, timing.as_dict() | {"unit": "s"}, tokens / timing.median, of_sentence / timing.median)
              for key, timing in seconds.items()]
    results = []
    for (way, variant, precision), spread, speed, ratio in cases:
        row = {"way": way, "variant": variant, "precision": precision, **spread, "tokens_per_s": speed,
               "times_as_fast": ratio}
        found = floors_found.get((way, precision)) if variant == "ours" else None
        if found:
            row |= {**found, "share": speed / found["floor_tokens_per_s"]}
        if (way, variant, precision) in busy:
            row["busy_turns"] = sum(busy[way, variant, precision])
        results.append(common.rounded(row))
    return results


def read(file: Path) -> dict:
    content = json.loads(file.read_text(encoding="utf-8"))
    if not str(content.get("name")).startswith("embed "):
        raise ValueError(f"--table: expected results of bench_embed, {file.name} has {content.get('name')!r}")
    return content


def table(documents: list[dict]) -> str:
    """Results of ours as Markdown; a ratio names its peer unless it is AllenNLP."""
    lines = ["| size | way | precision | tokens/s floor | reached | share | ratio to AllenNLP |",
             "|---|---|---|---|---|---|---|"]
    for document in documents:
        peer = document["settings"]["times_as_fast_as"]
        beside = "" if peer == "allennlp" else f" (to our {peer})"
        for row in (row for row in document["results"] if row["variant"] == "ours"):
            least, share = row.get("floor_tokens_per_s"), row.get("share")
            busy = row.get("busy_turns")
            disturbed = f" (machine busy in {busy} of {row['rounds']} turns)" if busy else ""
            cells = [document["settings"]["size"], row["way"], row["precision"], f"{least:,.0f}" if least else "-",
                     f"{row['tokens_per_s']:,.0f}{disturbed}", f"{share:.0%}" if share else "-",
                     f"{row['times_as_fast']:.1f}{beside}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
