"""Tile sizes of the kernels by GPU generation, kind of operand and number of tokens.

Every tile compiles for its generation without spilled registers and within its shared memory, as tests demand. `few` is
for so few tokens that larger tiles would leave part of the chip without work. Compiled code depends only on types, the
model's sizes and the tile, so that batches of any size need two variants of every kernel: integers that vary with the
batch are named in `do_not_specialize`.
"""

import re
from typing import NamedTuple

import torch
import triton

VERSION = tuple(map(int, re.findall(r"\d+", triton.__version__)[:3]))
# Where older Tritons pipeline copies to shared memory, they leave out the fence that Hopper's and Blackwell's products
# need (triton#9610). With a single stage, values come through registers and the fence is there.
PIPELINES_WITH_FENCE = 3, 7, 1
GENERATIONS = (80, 90)
FEW = 512  # most tokens that use the tiles of `few`


class Tile(NamedTuple):
    """BM tokens x BN filters or outputs, BK values of the inner dimension at a time (unless all are kept on chip)."""

    bm: int
    bn: int
    bk: int
    warps: int
    stages: int


_SIXTEEN_BITS = {
    ("char_cnn", 80): {"few": Tile(32, 64, 64, 4, 2), "many": Tile(128, 64, 64, 8, 2)},
    ("char_cnn", 90): {"few": Tile(64, 64, 64, 4, 2), "many": Tile(64, 256, 64, 8, 2)},
    ("highway", 80): {"few": Tile(32, 32, 64, 4, 4), "many": Tile(128, 64, 64, 8, 3)},
    ("highway", 90): {"few": Tile(64, 32, 128, 4, 3), "many": Tile(128, 128, 64, 8, 4)},
}
_TF32 = {
    ("char_cnn", 80): {"few": Tile(32, 32, 32, 4, 2), "many": Tile(128, 32, 32, 8, 2)},
    ("char_cnn", 90): {"few": Tile(64, 64, 32, 4, 2), "many": Tile(64, 128, 32, 8, 2)},
    ("highway", 80): {"few": Tile(32, 32, 32, 4, 4), "many": Tile(128, 64, 32, 8, 3)},
    ("highway", 90): {"few": Tile(64, 32, 64, 4, 3), "many": Tile(128, 64, 32, 8, 4)},
}
_IEEE = {
    ("char_cnn", 80): {"few": Tile(16, 64, 16, 4, 2), "many": Tile(64, 128, 16, 8, 2)},
}
_IEEE |= {(name, 90): entry for (name, _), entry in _IEEE.items()}
_BY_OPERANDS = {"ieee": _IEEE, "tf32": _TF32, "fp16": _SIXTEEN_BITS, "bf16": _SIXTEEN_BITS}


def tile_of(kernel: str, generation: int, operands: str, amount: str) -> Tile:
    """The tile of `kernel` for an `amount` (`few`, `many`) of tokens on a generation of `GENERATIONS`."""
    return _BY_OPERANDS[operands][kernel, generation][amount]


def generation_of(device: torch.device) -> int:
    """The newest of `GENERATIONS` that is not newer than the GPU; 80 for 12.x, whose blocks have 99 KiB as on 8.6."""
    major, minor = torch.cuda.get_device_capability(device)
    return 80 if major == 12 else max(generation for generation in GENERATIONS if generation <= 10 * major + minor)


def launch_options(kernel: str, operands: str, tokens: int, device: torch.device) -> dict[str, int]:
    """The tile's sizes, warps and stages for this number of tokens, as a Triton kernel takes them."""
    generation = generation_of(device)
    tile = tile_of(kernel, generation, operands, "few" if tokens <= FEW else "many")
    has_fence = generation < 90 or VERSION >= PIPELINES_WITH_FENCE
    return {"BM": tile.bm, "BN": tile.bn, "BK": tile.bk, "num_warps": tile.warps,
            "num_stages": tile.stages if has_fence else 1}
