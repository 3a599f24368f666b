"""Calls of the persistent CUDA LSTM: random cases, the native call, and the same in NumPy float64.

The oracle rounds weights, z, h and m where the kernel does, so that what is left between the two is the order of sums
and the approximate activations; `rounded=False` is the model itself.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from elmo_fast.ops.cuda.persistent import pack
from tests.support.ptx_machine import device_memory

FP16, BF16 = range(2)
TYPES = {FP16: torch.float16, BF16: torch.bfloat16}
# (processors, shared memory of a block, clusters of 8, 4 and 2 at once); small ones with and without clusters
H100, A100 = (132, 232448, 16, 32, 66), (108, 166912, 0, 0, 0)
SMALL = {90: (12, 232448, 1, 3, 6), 80: (12, 166912, 0, 0, 0)}
MINUTE_NS = 60 * 10**9
STATE_ROWS = 3  # of the state's memory behind the slots: they must stay untouched


@dataclass
class Case:
    """One call; shapes as in csrc/projected_lstm_cuda.h, fp32 or int32 arrays. `w` [2, P, 4D], `p` [2, D, P]."""

    w: np.ndarray
    b: np.ndarray
    p: np.ndarray
    z: np.ndarray
    scale: np.ndarray | None
    rows: np.ndarray             # [T, 2, slots], -1: none
    sequence_starts: np.ndarray  # bool [T, slots]
    batch_sizes: np.ndarray      # [T]
    h: np.ndarray
    c: np.ndarray
    initial_h: np.ndarray | None
    initial_c: np.ndarray | None
    cell_clip: float = np.inf
    proj_clip: float = np.inf
    operand: int = FP16
    device: tuple = SMALL[90]
    timeout_ns: int = MINUTE_NS
    aborts: int = 0

    slots = property(lambda self: self.h.shape[1])

    @property
    def packed_rows(self) -> np.ndarray:
        """[T, slots], -1 without a token."""
        has_token = np.arange(self.slots) < self.batch_sizes[:, None]
        return np.where(has_token, np.cumsum(has_token.ravel()).reshape(has_token.shape) - 1, -1)

    def steps(self, first: int, end: int, **state) -> "Case":
        part = slice(first, end)
        return replace(self, rows=self.rows[part], sequence_starts=self.sequence_starts[part],
                       batch_sizes=self.batch_sizes[part], **state)

    def alone(self, slot: int) -> "Case":
        """The slot without batch mates."""
        pick, steps = slice(slot, slot + 1), int((self.batch_sizes > slot).sum())
        return replace(self.steps(0, steps), rows=self.rows[:steps, :, pick], h=self.h[:, pick], c=self.c[:, pick],
                       sequence_starts=self.sequence_starts[:steps, pick], batch_sizes=np.ones(steps, np.int32))


def make(dim: int, projection: int, batch_sizes, *, seed: int = 0, slots: int | None = None, scaled: bool = True,
         starts: float = 0.2, initial: bool = True, spread: float = 0.1, rows: int = 11, **options) -> Case:
    """A random case of so many slots a step."""
    rng = np.random.default_rng(seed)
    batch_sizes = np.asarray(batch_sizes, np.int32)
    slots, steps = slots or int(batch_sizes[0]), len(batch_sizes)

    def draw(*shape, by=1.0):
        return (rng.standard_normal(shape) * by).astype(np.float32)

    has_token = np.arange(slots) < batch_sizes[:, None]
    return Case(
        w=draw(2, projection, 4 * dim, by=spread), b=draw(2, 4 * dim), p=draw(2, dim, projection, by=spread),
        z=draw(rows, 2, 4 * dim), scale=rng.choice([0.5, 1.0, 2.0], (rows, 2)).astype(np.float32) if scaled else None,
        rows=np.where(has_token[:, None], rng.integers(0, rows, (steps, 2, slots)), -1).astype(np.int32),
        sequence_starts=(rng.random((steps, slots)) < starts) & has_token, batch_sizes=batch_sizes,
        h=draw(2, slots, projection, by=0.5), c=draw(2, slots, dim, by=0.5),
        initial_h=draw(2, projection, by=0.5) if initial else None, initial_c=draw(2, dim, by=0.5) if initial else None,
        **options)


def run(module, case: Case):
    """output [S, 2P], h, c [2, slots, .] and the number of aborts.

    Outputs and scratch are poisoned, and may not be read before they are written; accesses outside the tensors trap.
    """
    dim, projection, steps, slots = case.c.shape[2], case.h.shape[2], len(case.batch_sizes), case.slots
    plan = module.cuda_lstm_plan(dim, projection, case.device, slots)
    assert plan["reason"] is None, plan["reason"]
    meta = np.full((steps + 1, 3, slots), -1, np.int32)
    meta[:-1, :2], meta[:-1, 2], meta[-1, 2] = case.rows, case.sequence_starts, 0
    weights = [torch.from_numpy(values[d]) for d in (0, 1) for values in (case.w, case.b, case.p)]
    dtype = TYPES[case.operand]
    given = {"packed": aligned(pack(weights, dtype)), "z": torch.from_numpy(case.z).to(dtype), "meta": meta,
             "packed_rows": case.packed_rows.astype(np.int32), "scale": case.scale,
             "batch_sizes": case.batch_sizes, "initial_h": case.initial_h, "initial_c": case.initial_c,
             "h_in": case.h, "c_in": case.c, "aborts": np.array([case.aborts], np.int32)}
    made = {"h": torch.full((2, slots + STATE_ROWS, projection), np.nan),
            "c": torch.full((2, slots + STATE_ROWS, dim), np.nan),
            "output": torch.full((int(case.batch_sizes.sum()), 2 * projection), np.nan),
            "scratch": aligned(torch.full((plan["scratch_bytes"],), 0xFF, dtype=torch.uint8))}
    given = {name: torch.from_numpy(np.ascontiguousarray(values)) if isinstance(values, np.ndarray) else values
             for name, values in given.items()}
    with device_memory(module, checked=given, unwritten=made):
        module.cuda_lstm_run(
            **{name: 0 if values is None else values.data_ptr() for name, values in (given | made).items()},
            dim=dim, projection=projection, operand=case.operand, device=case.device, steps=steps, slots=slots,
            stride=slots, state_stride=slots + STATE_ROWS, cell_clip=case.cell_clip, proj_clip=case.proj_clip,
            scratch_size=plan["scratch_bytes"], timeout_ns=case.timeout_ns, stream=0)
    assert made["h"][:, slots:].isnan().all() and made["c"][:, slots:].isnan().all()
    return (made["output"].numpy(), made["h"].numpy()[:, :slots], made["c"].numpy()[:, :slots],
            int(given["aborts"][0]))


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes at a multiple of 256."""
    memory = torch.empty(len(tensor) + 256, dtype=torch.uint8)
    return memory[-memory.data_ptr() % 256 :][: len(tensor)].copy_(tensor)


def oracle(case: Case, rounded: bool = True):
    """output, h, c as `run` gives them, and the fraction of cells and of projected values that their clip changed."""
    def to_operand(x):
        return torch.from_numpy(np.asarray(x, np.float32)).to(TYPES[case.operand]).double().numpy() if rounded else x

    weights, projections = to_operand(case.w.astype(np.float64)), to_operand(case.p.astype(np.float64))
    z = to_operand(case.z.astype(np.float64)) * (1 if case.scale is None else case.scale[..., None].astype(np.float64))
    h, c, packed_rows = case.h.astype(np.float64), case.c.astype(np.float64), case.packed_rows
    output, clipped = np.full((int(case.batch_sizes.sum()), 2, h.shape[2]), np.nan), np.zeros((2, 2))
    for t, size in enumerate(case.batch_sizes):
        for d in range(2):
            for state, initial in ((h, case.initial_h), (c, case.initial_c)):
                state[d, case.sequence_starts[t]] = 0 if initial is None else initial[d]
            gates = to_operand(h[d, :size]) @ weights[d] + z[case.rows[t, d, :size], d] + case.b[d].astype(np.float64)
            i, j, f, o = np.split(gates, 4, axis=1)
            free = sigmoid(f + 1) * c[d, :size] + sigmoid(i) * np.tanh(j)
            c[d, :size] = np.clip(free, -case.cell_clip, case.cell_clip)
            value = to_operand(sigmoid(o) * np.tanh(c[d, :size])) @ projections[d]
            output[packed_rows[t, :size], d] = h[d, :size] = np.clip(value, -case.proj_clip, case.proj_clip)
            clipped += [[(free != c[d, :size]).sum(), free.size], [(value != h[d, :size]).sum(), value.size]]
    ran = (np.arange(case.slots) < case.batch_sizes[0])[:, None]
    return (output.reshape(len(output), -1), np.where(ran, h, np.nan), np.where(ran, c, np.nan),
            clipped[:, 0] / clipped[:, 1])


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
