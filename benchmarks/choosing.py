"""Parts of README and docs that help to choose a model, a precision and a state."""

import itertools

from benchmarks import workloads
from benchmarks.recorded import SIZES, SUFFIXES, WAYS, machine, markdown, ours, read, recorded, rows

LEVELS = {"avx2": "AVX2", "avx512": "AVX-512", "avx512-vnni": "AVX512_VNNI", "avx512-bf16": "AVX512_BF16, AMD",
          "amx": "AMX"}


def speed_short() -> str:
    """Tokens/s of a stream and the ratio to AllenNLP, for a reader who looks for a processor."""
    def cell(size: str, precision: str, processor: str) -> str:
        row = ours(size, WAYS[0], precision, SUFFIXES[processor])
        return f"{row['tokens_per_s']:,.0f} tokens/s, {row['times_as_fast']:.1f} x"

    kinds = itertools.product(SUFFIXES, ["highest", "low"])  # the fastest, on AMX within a percent of `medium`
    lines = [[processor, f"`{precision}`", *(cell(size, precision, processor) for size in ("original", "small"))]
             for processor, precision in kinds]
    unmeasured = [["Arm (NEON)", "", *["runs; not measured"] * 2], ["NVIDIA GPU", "", *["not measured"] * 2]]
    return markdown(["processor", "precision", "original model", "small model"], [*lines, *unmeasured])


def model_sizes() -> str:
    """Size and speed of models in fp32."""
    def cells(size: str) -> list[str]:
        lstm = workloads.options_of(size)["lstm"]
        values = f"{1 + lstm['n_layers']} x {2 * lstm['projection_dim']:,}"
        speeds = (f"{ours(size, WAYS[0], suffix=suffix)['tokens_per_s']:,.0f}" for suffix in SUFFIXES.values())
        return [size, values, *speeds]

    head = ["size", "layers x values of a token", *(f"{processor}, tokens/s" for processor in SUFFIXES)]
    return markdown(head, [cells(size) for size in SIZES])


def precision_choice() -> str:
    """Accuracy and speed of precisions of the original size, in brief."""
    def ratio(level: str, precision: str) -> str:
        known = any(row["variant"] == precision for row in rows(f"precisions-original-{level}"))
        return f"{precision_ratio(level, precision, 'tokens_per_s'):.1f} x" if known else "as `highest`"

    levels = {"avx2": "AVX2", "avx512": "AVX-512", "avx512-bf16": "AVX512_BF16, AMD", "amx": "AMX"}
    head = ["precision", "largest error of a layer", "smallest cosine", *levels.values()]
    return markdown(head, [[f"`{row['variant']}`", f"{max(row['relative_errors']):.1g}".replace("e-0", "e-"),
                            f"{row['smallest_cosine']:.4f}", *(ratio(level, row["variant"]) for level in levels)]
                           for row in rows("precisions-original-amx")])


def last_level() -> str:
    """The level of the engine at which precisions of all models were measured last."""
    def day(level: str) -> str:
        return read(f"precisions-bundled-{level}")["date"]

    return max(filter(lambda level: recorded(f"precisions-bundled-{level}"), LEVELS), key=day)


def precision_ratio(level: str, precision: str, name: str) -> float:
    """How many times as fast as `highest`: `name` is tokens_per_s of a stream, or sentence_ms."""
    found = {row["variant"]: row[name] for row in rows(f"precisions-original-{level}")}
    ratio = found[precision] / found["highest"]
    return 1 / ratio if name == "sentence_ms" else ratio


def precision_levels() -> str:
    """Speed of precisions by level of the engine."""
    cases = list(itertools.product(("medium", "low"), ("sentence_ms", "tokens_per_s")))
    ways = {"sentence_ms": "sentence", "tokens_per_s": "stream"}
    head = ["level", *(f"`{precision}`, {ways[name]}" for precision, name in cases)]
    return markdown(head, [[title, *(f"{precision_ratio(level, *case):.2f} x" for case in cases)]
                           for level, title in LEVELS.items()])


def levels_machine() -> str:
    """Where the levels without AMX were measured."""
    return "; ".join(dict.fromkeys(machine(f"precisions-original-{level}") for level in LEVELS if level != "amx"))


def sentence_ratios(precision: str) -> str:
    """The least and the most times as fast as `highest` on one sentence, on levels without AMX."""
    found = [precision_ratio(level, precision, "sentence_ms") for level in LEVELS if level != "amx"]
    return f"{min(found):.1f} to {max(found):.1f}"


def states() -> str:
    """What the initial state does to the loss and to the vectors."""
    found = read("state-policies-bundled")["results"]
    head = ["state", "loss a token, against carried", "distance of the vectors from those with carried states"]
    return markdown(head, [
        [f"`{name}`", f"{found[name]['loss_against_carried']:+.2%}", f"{found[name]['distance_from_carried']:.1%}"]
        for name in ("carry", "warm", "zero")])
