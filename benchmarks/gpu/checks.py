"""Stage `checks`: float32 on the device against the float64 reference on the CPU, layer by layer.

Two ragged batches run in a row with carried states. Fresh random weights give token vectors so small that the
gates stay linear, so the last matrix before the LSTM is scaled up (never the recurrence, which would turn
chaotic). In some cases the clips are lowered in the options until both fire, which a case asserts. `highest`
must hold its limit whatever PyTorch's tf32 flags and autocast say.
"""

import contextlib
import copy
import runpy
import sys
import time

import torch

from benchmarks import common, models
from benchmarks.gpu import stage as stages

# relative Frobenius error of a layer, by precision: the project has one table of these
TABLE = runpy.run_path(str(common.ROOT / "tests" / "tolerances.py"))["AGAINST_FLOAT64"]
LIMITS = {"highest": TABLE["highest"], "high": TABLE["high-tf32"], "medium": TABLE["medium-bf16"]}
LOW_CLIP = 0.3
TOKEN_SPREAD = 3.0  # standard deviation of the token vectors: the gates then leave their linear part
ENOUGH = 3.0  # seconds that one more model needs at least
# name: (size, LSTM options), the most important first
MODELS = {
    "small": ("small", {}),
    "small, clips fire": ("small", {"cell_clip": LOW_CLIP, "proj_clip": LOW_CLIP}),
    "original": ("original", {}),
    "original, clips fire": ("original", {"cell_clip": LOW_CLIP, "proj_clip": LOW_CLIP}),
    "small, 4 layers, no skip": ("small", {"n_layers": 4, "use_skip_connections": False}),
    "small, 1 layer": ("small", {"n_layers": 1}),
    "small, no clips": ("small", {"cell_clip": None, "proj_clip": None}),
}
DRY_MODELS = {
    "tiny": ("tiny", {}),
    "tiny, clips fire": ("tiny", {"cell_clip": LOW_CLIP, "proj_clip": LOW_CLIP}),
}


def ragged_batches() -> list[list[list[str]]]:
    """Two batches of five sentences; the second has a one-token and an empty sentence in it."""
    sentences, _ = common.running_text(9)
    return [sentences[:5], [sentences[5], sentences[6][:1], [], sentences[7], sentences[8]]]


def build(size: str, lstm: dict):
    """A random model whose token vectors spread as `TOKEN_SPREAD` says."""
    bilm = models.build(size, **lstm)
    ids = models.device_ids(ragged_batches()[0], "cpu").flatten(0, 1)
    with torch.no_grad():
        vectors = bilm.token_source(ids[ids.any(1)], "torch")
        bilm.token_source.W_proj.mul_(TOKEN_SPREAD / vectors.std())
    return bilm


@contextlib.contextmanager
def _flags(allow: bool):
    """The process-wide switches that users set, put back afterwards."""
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allow
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


def surroundings(device: str) -> dict:
    """What a user's program may have set around a call."""
    return {
        "plain": lambda: _flags(False),
        "tf32 flags": lambda: _flags(True),
        "autocast": lambda: torch.autocast(device, dtype=torch.bfloat16),
    }


def outputs(bilm, device: str) -> list[list[torch.Tensor]]:
    """Real positions of every layer, [N, 2 P] each, of both batches, on the CPU in float64."""
    bilm.reset_states()
    result = []
    with torch.no_grad():
        for batch in ragged_batches():
            layers, mask = bilm(models.device_ids(batch, device))
            result.append([layer[mask.bool()].double().cpu() for layer in layers])
    return result


def errors(found, expected) -> list[float]:
    """Relative Frobenius error of each layer over both batches."""
    joined = [[torch.cat(parts) for parts in zip(*side)] for side in (found, expected)]
    return [float((ours - truth).norm() / truth.norm()) for ours, truth in zip(*joined)]


def clipped_share(bilm) -> tuple[float, float]:
    """Shares of the carried h and c that stand at their clip."""
    lstm = bilm.options.lstm
    limits = lstm.proj_clip, lstm.cell_clip
    return tuple(0.0 if limit is None else float((values.abs() >= limit).double().mean())
                 for values, limit in zip(bilm._elmo_lstm._states, limits))


def check(bilm, device: str, precision: str, around, expected, must_clip: bool) -> dict:
    bilm.precision = precision
    with around():
        found = outputs(bilm, device)
    by_layer = errors(found, expected)
    shares = clipped_share(bilm)
    passed = max(by_layer) <= LIMITS[precision] and (not must_clip or min(shares) > 0)
    return {"errors": by_layer, "limit": LIMITS[precision], "clipped_h": shares[0], "clipped_c": shares[1],
            "passed": bool(passed)}


def check_model(stage: stages.Stage, name: str, size: str, lstm: dict) -> None:
    bilm = build(size, lstm)
    truth = outputs(copy.deepcopy(bilm).double(), "cpu")
    bilm = bilm.to(stage.device)
    for backend in models.backends(stage.device):
        bilm.backend = backend
        for around, context in surroundings(stage.device).items():
            for precision in LIMITS if around == "plain" else ("highest",):
                case = {"model": name, "backend": backend, "precision": precision, "around": around}
                stage.attempt(case, lambda: check(bilm, stage.device, precision, context, truth, "fire" in name))


def work(stage: stages.Stage) -> None:
    for name, (size, lstm) in (DRY_MODELS if stage.dry_run else MODELS).items():
        if stage.left() < ENOUGH:
            stage.add(model=name, skipped=f"{max(0.0, stage.left()):.1f} s are left")
            continue
        began = time.monotonic()
        check_model(stage, name, size, lstm)
        print(f"  {name}: {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    sys.exit(stages.run("checks", work, stages.parser(__doc__).parse_args(), strict=True))
