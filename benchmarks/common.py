"""What every benchmark shares: standard models, running text, results; machine facts and timing are the package's."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from elmo_fast.bench.machine import gpu_name, machine, output_of, slug  # noqa: F401 (with the next, for every benchmark)
from elmo_fast.bench.text import generated_sentences
from elmo_fast.bench.timing import Timing, alternate, interleave, rounded, seconds_per_call, take_turns  # noqa: F401
from elmo_fast.testing import FILTERS, SIZES, standard_options  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SCHEMA = 1


# ---- text ----------------------------------------------------------------------------------


def shared_folder() -> Path:
    return Path(os.environ.get("ELMO_FAST_SHARED") or ROOT.parent / "shared")


def _split_sentences(tokens: list[str]) -> list[list[str]]:
    """Cuts a tokenized paragraph after each full stop; closing quotes stay with their sentence."""
    sentences, current = [], []
    for token in tokens:
        if token in ('"', "'", ")") and not current and sentences:
            sentences[-1].append(token)
            continue
        current.append(token)
        if token in (".", "!", "?"):
            sentences.append(current)
            current = []
    return [*sentences, current] if current else sentences


def running_text(count: int) -> tuple[list[list[str]], str]:
    """The first `count` sentences, and where they come from: the file's name or 'generated'."""
    path = shared_folder() / "text" / "wikitext2_valid.txt"
    if not path.exists():
        return generated_sentences(count), "generated (Zipf)"
    sentences: list[list[str]] = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            tokens = line.split()
            if tokens and tokens[0] != "=":  # headings are not running text
                sentences += _split_sentences(tokens)
            if len(sentences) >= count:
                return sentences[:count], path.name
    raise ValueError(f"count: {path.name} has {len(sentences)} sentences, {count} were asked for")


def batches(sentences: list, size: int) -> list[list]:
    return [sentences[i : i + size] for i in range(0, len(sentences), size)]


def text_facts(sentences: list[list[str]], batch_size: int) -> dict:
    """How much of the work is repeated or padded: the figures depend on it."""
    groups = batches(sentences, batch_size)
    tokens = sum(map(len, sentences))
    steps = sum(max(map(len, group)) + 2 for group in groups)
    padded = sum(len(group) * (max(map(len, group)) + 2) for group in groups)
    real = tokens + 2 * len(sentences)
    unique = sum(len({token for sentence in group for token in sentence}) for group in groups)
    return {
        "sentences": len(sentences),
        "tokens": tokens,
        "batch_size": batch_size,
        "unique_share": round(unique / tokens, 3),
        "padding_share": round(1 - real / padded, 3),
        "live_rows_per_step": round(real / steps, 1),
    }


# ---- results -------------------------------------------------------------------------------


def revision() -> str | None:
    """The commit measured, '+changes' behind it when the tree differs; None outside git."""
    commit = output_of("git", "rev-parse", "HEAD", folder=ROOT)
    changed = output_of("git", "status", "--porcelain", "--", ":!benchmarks/results", folder=ROOT)
    return commit and commit + ("+changes" if changed else "")


def document(name: str, settings: dict, results) -> dict:
    """The frame every results file has."""
    return {
        "schema": SCHEMA,
        "name": name,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "revision": revision(),
        "machine": machine(),
        "settings": settings,
        "results": results,
    }


def write_json(path: Path, content) -> Path:
    """Writes beside the target and renames, so that a reader never sees a part of a file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)
    return path


# ---- command -------------------------------------------------------------------------------


def positive(text: str) -> int:
    """An argparse type."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {value}")
    return value


def make_parser(description: str, file: str, *counts: tuple[str, int, str]) -> argparse.ArgumentParser:
    """A parser with counts as (flag, default, help), `--threads`, and `--out`, whose default is `file`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, default, what in counts:
        parser.add_argument(flag, type=positive, default=default, metavar="N", help=f"{what} (default: {default})")
    parser.add_argument("--threads", type=positive, metavar="N", help="PyTorch's threads (default: PyTorch's choice)")
    parser.add_argument("--out", type=Path, metavar="FILE",
                        help=f"JSON to write (default: benchmarks/results/cpu/{file})")
    return parser


def run_and_write(arguments: argparse.Namespace, run: Callable[[argparse.Namespace], dict], file: str,
                  report: Callable[[dict], str]) -> int:
    """Write what `run` returns and print a report of it; 1, with the reason on stderr, where it raises."""
    import torch

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    try:
        content = run(arguments)
    except (ValueError, RuntimeError, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    out = arguments.out or RESULTS / "cpu" / file
    write_json(out, content)
    print(f"{report(content)}\nwritten: {out.name}")
    return 0
