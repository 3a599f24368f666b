"""Calls of the persistent CUDA LSTM: random cases, the native call, and the same in NumPy float64.

The oracle rounds weights, z, h and m where the kernel does, so that what is left between the two is the order of sums
and the approximate activations; `rounded=False` is the model itself.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from tests.support.ptx_machine import device_memory

FP16, BF16 = range(2)
TYPES = {FP16: torch.float16, BF16: torch.bfloat16}
H100 = 132, 232448, 16, 32, 66
A100 = 108, 166912, 0, 0, 0
SECOND = 10**9


@dataclass
class Case:
    """One call; shapes as in csrc/projected_lstm_cuda.h, fp32 or int32 arrays. `w` [2, P, 4D], `p` [2, D, P]."""

    w: np.ndarray
    b: np.ndarray
    p: np.ndarray
    z: np.ndarray
    scale: np.ndarray | None
    rows: np.ndarray    # [T, 2, slots], -1: none
    sequence_starts: np.ndarray  # bool [T, slots]
    sizes: np.ndarray   # [T]
    h: np.ndarray
    c: np.ndarray
    fresh_h: np.ndarray | None = None
    fresh_c: np.ndarray | None = None
    cell_clip: float = np.inf
    proj_clip: float = np.inf
    operand: int = FP16
    device: tuple = (12, 232448, 1, 3, 6)
    nanoseconds: int = 60 * SECOND
    aborts: int = 0
    places: np.ndarray = field(init=False)

    def __post_init__(self):
        there = np.arange(self.slots) < self.sizes[:, None]
        self.places = np.where(there, np.cumsum(there.ravel()).reshape(there.shape) - 1, -1)

    @property
    def slots(self) -> int:
        return self.h.shape[1]

    def only(self, slot: int) -> "Case":
        """The same slot without batch mates."""
        steps = int((self.sizes > slot).sum())
        pick = slice(slot, slot + 1)
        return replace(self, rows=self.rows[:steps, :, pick], sequence_starts=self.sequence_starts[:steps, pick],
                       sizes=np.ones(steps, np.int32), h=self.h[:, pick], c=self.c[:, pick])


def make(dim: int, projection: int, sizes, *, seed: int = 0, slots: int | None = None, scaled: bool = True,
         starts: float = 0.2, fresh: bool = True, spread: float = 0.1, rows: int = 11, **options) -> Case:
    """A random case that runs sizes[t] slots at step t."""
    rng = np.random.default_rng(seed)
    sizes = np.asarray(sizes, np.int32)
    slots = int(sizes[0]) if slots is None else slots

    def draw(*shape, by=1.0):
        return (rng.standard_normal(shape) * by).astype(np.float32)

    there = np.arange(slots) < sizes[:, None]
    read = np.where(there[:, None], rng.integers(0, rows, (len(sizes), 2, slots)), -1)
    return Case(
        w=draw(2, projection, 4 * dim, by=spread), b=draw(2, 4 * dim), p=draw(2, dim, projection, by=spread),
        z=draw(rows, 2, 4 * dim), scale=rng.choice([0.5, 1.0, 2.0], (rows, 2)).astype(np.float32) if scaled else None,
        rows=read.astype(np.int32), sequence_starts=(rng.random((len(sizes), slots)) < starts) & there, sizes=sizes,
        h=draw(2, slots, projection, by=0.5), c=draw(2, slots, dim, by=0.5),
        fresh_h=draw(2, projection, by=0.5) if fresh else None, fresh_c=draw(2, dim, by=0.5) if fresh else None,
        **options)


def run(module, case: Case, bucket: int = 0):
    """output [S, 2P], h, c [2, slots, .] and the number of aborts.

    Outputs and scratch are poisoned, and may not be read before they are written; accesses outside the tensors trap.
    """
    dim, projection = case.c.shape[2], case.h.shape[2]
    plan = module.cuda_lstm_plan(dim, projection, case.device, case.slots)
    assert plan["reason"] is None, plan["reason"]
    stride, steps = max(bucket, case.slots), len(case.sizes)
    meta = np.full((steps + 1, 3, stride), -1, np.int32)
    meta[:, 2] = 0
    meta[:-1, :2, : case.slots], meta[:-1, 2, : case.slots] = case.rows, case.sequence_starts
    places = np.full((steps, stride), -1, np.int32)
    places[:, : case.slots] = case.places
    z = torch.from_numpy(case.z).to(TYPES[case.operand])
    held = {"packed": pack(module, case), "z": z, "scale": case.scale, "meta": meta, "places": places,
            "batch_sizes": case.sizes, "fresh_h": case.fresh_h, "fresh_c": case.fresh_c, "h_first": case.h,
            "c_first": case.c,
            "h": np.full((2, case.slots + 3, projection), np.nan, np.float32),
            "c": np.full((2, case.slots + 3, dim), np.nan, np.float32),
            "output": np.full((int(case.sizes.sum()), 2 * projection), np.nan, np.float32),
            "aborts": np.array([case.aborts], np.int32), "scratch": aligned(plan["scratch"])}
    held = {name: torch.from_numpy(np.ascontiguousarray(each)) if isinstance(each, np.ndarray) else each
            for name, each in held.items()}
    pointers = {name: 0 if each is None else each.data_ptr() for name, each in held.items()}
    unwritten = {name: held[name] for name in ("h", "c", "output", "scratch")}
    checked = {name: each for name, each in held.items() if name not in unwritten}
    with device_memory(module, checked=checked, unwritten=unwritten):
        module.cuda_lstm_run(dim=dim, projection=projection, operand=case.operand, device=case.device, steps=steps,
                             slots=case.slots, stride=stride, state_stride=case.slots + 3, cell_clip=case.cell_clip,
                             proj_clip=case.proj_clip, scratch_size=plan["scratch"], nanoseconds=case.nanoseconds,
                             stream=0, **pointers)
    return (held["output"].numpy(), held["h"].numpy()[:, : case.slots], held["c"].numpy()[:, : case.slots],
            int(held["aborts"][0]))


def pack(module, case: Case) -> torch.Tensor:
    dim, projection = case.c.shape[2], case.h.shape[2]
    packed = aligned(module.cuda_lstm_packed_size(dim, projection))
    parts = [np.ascontiguousarray(each[d]) for each in (case.w, case.b, case.p) for d in range(2)]
    addresses = [each.ctypes.data for each in parts]
    module.cuda_lstm_pack(dim, projection, case.operand, addresses[:2], addresses[2:4], addresses[4:],
                          packed.data_ptr(), packed.numel())
    return packed


def aligned(size: int) -> torch.Tensor:
    """Poisoned bytes that begin at a multiple of 256."""
    memory = torch.full((size + 256,), 0xFF, dtype=torch.uint8)
    return memory[-memory.data_ptr() % 256 :][:size]


def oracle(case: Case, rounded: bool = True):
    """output, h, c as `run` gives them, and the share of cells and of projected values that their clip changed."""
    def to_operand(x):
        return torch.from_numpy(np.asarray(x, np.float32)).to(TYPES[case.operand]).double().numpy() if rounded else x

    weights, projections = (to_operand(each) for each in (case.w.astype(np.float64), case.p.astype(np.float64)))
    z = to_operand(case.z.astype(np.float64)) * (1 if case.scale is None else case.scale[..., None].astype(np.float64))
    h, c = case.h.astype(np.float64), case.c.astype(np.float64)
    output = np.full((int(case.sizes.sum()), 2 * h.shape[2]), np.nan)
    clipped = np.zeros((2, 2))
    for t, size in enumerate(case.sizes):
        for d in range(2):
            for state, fresh in ((h, case.fresh_h), (c, case.fresh_c)):
                state[d, case.sequence_starts[t]] = 0 if fresh is None else fresh[d]
            gates = to_operand(h[d, :size]) @ weights[d] + z[case.rows[t, d, :size], d] + case.b[d].astype(np.float64)
            i, j, f, o = np.split(gates, 4, axis=1)
            free = sigmoid(f + 1) * c[d, :size] + sigmoid(i) * np.tanh(j)
            c[d, :size] = np.clip(free, -case.cell_clip, case.cell_clip)
            m = to_operand(sigmoid(o) * np.tanh(c[d, :size]))
            value = m @ projections[d]
            h[d, :size] = np.clip(value, -case.proj_clip, case.proj_clip)
            output.reshape(len(output), 2, -1)[case.places[t, :size], d] = h[d, :size]
            clipped += [[(free != c[d, :size]).sum(), free.size], [(value != h[d, :size]).sum(), value.size]]
    ran = np.arange(case.slots) < case.sizes[0]
    return output, np.where(ran[:, None], h, np.nan), np.where(ran[:, None], c, np.nan), clipped[:, 0] / clipped[:, 1]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def errors(found, expected) -> list[float]:
    """Relative Frobenius error of output, h and c; infinite where one is NaN and the other is not."""
    result = []
    for one, other in zip(found[:3], expected[:3]):
        there = ~np.isnan(other)
        same = (np.isnan(one) == ~there).all()
        result.append(np.linalg.norm((one - other)[there]) / np.linalg.norm(other[there]) if same else np.inf)
    return result
