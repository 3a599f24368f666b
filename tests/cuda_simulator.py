"""Cases of the CUDA tiers: the simulator that runs them on the host, and the same in NumPy float64.

The oracle rounds weights, h and m where the kernels do, so that what is left between the two is the order of sums.
"""

import os
import shutil
import struct
import subprocess
import sysconfig
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "simulator"
STEPS, STEPS_LAST_BLOCK, PERSISTENT = range(3)
FP16, BF16 = range(2)
INF = float("inf")
SECOND = 10**9


def simulator(kind: str = "") -> Path:
    """The built program; `kind` names a sanitizer. Skips the test where there are no tools to build it."""
    tools = [shutil.which(name, path=_tools_path()) for name in ("cmake", "ninja")]
    if os.environ.get("ELMO_FAST_NO_NATIVE") == "1" or not all(tools) or not shutil.which(os.environ.get("CXX", "c++")):
        pytest.skip("needs cmake, ninja and a C++ compiler, and ELMO_FAST_NO_NATIVE unset")
    name = "simulate_cuda" + kind
    configure = [tools[0], "-S", ROOT / "tests" / "native", "-B", BUILD, "-G", "Ninja",
                 f"-DCMAKE_MAKE_PROGRAM={tools[1]}"]
    for command in (configure, [tools[0], "--build", BUILD, "--target", name]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return BUILD / name


def _tools_path() -> str:
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])


def to_bf16(x):
    """float32 values rounded to nearest even at 8 significant bits, as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return (((bits >> 16 & 1) + 0x7FFF + bits) & 0xFFFF0000).astype(np.uint32).view(np.float32)


ROUND = {FP16: lambda x: x.astype(np.float16).astype(np.float32), BF16: to_bf16}


@dataclass
class Case:
    """One call. `w` [P, 4D] is the recurrent part, `products` [rows, 4D] x W_x without bias, `h`, `c` the state."""

    w: list
    b: list
    p: list
    products: list
    rows: list | None
    live: np.ndarray
    h: np.ndarray
    c: np.ndarray
    reset: np.ndarray | None = None
    reset_state: tuple | None = None
    cell_clip: float = INF
    proj_clip: float = INF
    operand: int = FP16
    tier: int = STEPS
    processors: int = 6
    shared: int = 232448
    cluster: int = 8
    nanoseconds: int = 60 * SECOND
    first_count: int = 0
    absent_block: int = -1
    seed: int = 1
    sizes: tuple = field(init=False)

    def __post_init__(self):
        projection, dim4 = self.w[0].shape
        self.sizes = dim4 // 4, projection

    def bytes(self) -> bytes:
        dim, projection = self.sizes
        header = struct.pack("<18q2d", self.tier, dim, projection, len(self.h), len(self.live), int(self.live.sum()),
                             len(self.products[0]), self.operand, self.rows is not None, self.reset is not None,
                             self.reset_state is not None, self.processors, self.shared, self.cluster,
                             self.nanoseconds, self.first_count, self.absent_block, self.seed, self.cell_clip,
                             self.proj_clip)
        parts = [header]
        for d in range(2):
            empty = np.empty(0, np.float32)
            parts += [_f(self.w[d]), _f(self.b[d]), _f(empty if self.p[d] is None else self.p[d]), _f(self.products[d]),
                      b"" if self.rows is None else np.asarray(self.rows[d], np.int32).tobytes()]
        parts += [np.asarray(self.live, np.int32).tobytes(),
                  b"" if self.reset is None else np.asarray(self.reset, np.uint8).tobytes(),
                  *(b"" if self.reset_state is None else _f(each) for each in self.reset_state or (None, None)),
                  _f(self.h), _f(self.c)]
        return b"".join(parts)


def _f(x) -> bytes:
    return np.ascontiguousarray(x, np.float32).tobytes()


def make(rng, dim, projection, live, *, distinct=None, resets=False, scale=0.1, lanes=None, **options) -> Case:
    """A random case whose step t runs live[t] lanes."""
    live = np.asarray(live)
    lanes = int(live[0]) if lanes is None else lanes
    size = int(live.sum())

    def draw(*shape, of=scale):
        return (rng.standard_normal(shape) * of).astype(np.float32)

    rows = None if distinct is None else rng.integers(0, distinct, (2, size))
    reset = rng.random(size) < 0.3 if resets else None
    return Case(
        w=[draw(projection, 4 * dim) for _ in range(2)], b=[draw(4 * dim) for _ in range(2)],
        p=[None if dim == projection else draw(dim, projection) for _ in range(2)],
        products=[draw(distinct or size, 4 * dim, of=1.0) for _ in range(2)], rows=rows, live=live,
        h=draw(lanes, 2 * projection), c=draw(lanes, 2 * dim), reset=reset,
        reset_state=(draw(2 * projection), draw(2 * dim)) if resets == "state" else None, **options)


def run(cases, tmp_path, kind="", environment=None):
    """(output [S, 2P], h, c, aborts) of each case, from one process."""
    program = simulator(kind)
    inputs, outputs = tmp_path / "cases", tmp_path / "results"
    inputs.write_bytes(b"".join(case.bytes() for case in cases))
    done = subprocess.run([program, inputs, outputs], capture_output=True, text=True, timeout=240,
                          env={**os.environ, **(environment or {})})
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    raw, at, results = outputs.read_bytes(), 0, []
    for case in cases:
        dim, projection = case.sizes
        arrays = []
        for shape in ((int(case.live.sum()), 2 * projection), (len(case.h), 2 * projection), (len(case.h), 2 * dim)):
            arrays.append(np.frombuffer(raw, np.float32, shape[0] * shape[1], at).reshape(shape))
            at += arrays[-1].nbytes
        results.append((*arrays, int(np.frombuffer(raw, np.int32, 1, at)[0])))
        at += 4
    assert at == len(raw)
    return results


def sigmoid(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def oracle(case: Case, rounded=True):
    """(output, h, c) in float64, and the share of values that each clip changed."""
    cut = (lambda x: ROUND[case.operand](np.asarray(x, np.float32)).astype(np.float64)) if rounded else np.float64
    dim, projection = case.sizes
    h, c = case.h.astype(np.float64), case.c.astype(np.float64)
    output = np.full((int(case.live.sum()), 2 * projection), np.nan)
    fired, total = np.zeros(2), np.zeros(2)
    for d in range(2):
        w, b = cut(case.w[d]), case.b[d].astype(np.float64)
        p = None if case.p[d] is None else cut(case.p[d])
        hs, cs, begin = slice(d * projection, (d + 1) * projection), slice(d * dim, (d + 1) * dim), 0
        for n in case.live:
            part = slice(begin, begin + n)
            if case.reset is not None:
                hit = np.flatnonzero(case.reset[part])
                h[hit, hs], c[hit, cs] = (0, 0) if case.reset_state is None else (
                    case.reset_state[0][hs], case.reset_state[1][cs])
            x = case.products[d][np.arange(begin, begin + n) if case.rows is None else case.rows[d][part]]
            i, j, f, o = np.split(x + b + cut(h[:n, hs]) @ w, 4, 1)
            free = sigmoid(f + 1) * c[:n, cs] + sigmoid(i) * np.tanh(j)
            c[:n, cs] = np.clip(free, -case.cell_clip, case.cell_clip)
            m = sigmoid(o) * np.tanh(c[:n, cs])
            free_h = m if p is None else cut(m) @ p
            h[:n, hs] = free_h if p is None else np.clip(free_h, -case.proj_clip, case.proj_clip)
            fired += (abs(free) > case.cell_clip).sum(), 0 if p is None else (abs(free_h) > case.proj_clip).sum()
            total += free.size, free_h.size
            output[part, hs] = h[:n, hs]
            begin += n
    return output, h, c, fired / total


def errors(found, expected):
    """Relative Frobenius error of output, h and c."""
    assert all(np.isfinite(each).all() for each in found[:3])
    return [np.linalg.norm(one - other) / max(np.linalg.norm(other), 1e-300)
            for one, other in zip(found[:3], expected[:3])]


def same(found, other):
    return all((one.view(np.int32) == two.view(np.int32)).all() for one, two in zip(found[:3], other[:3]))


def only(case: Case, lane: int) -> Case:
    """One lane of a case whose `rows` are given, alone."""
    begin = np.cumsum(case.live) - case.live
    mine = begin[case.live > lane] + lane
    return replace(case, rows=[np.asarray(rows)[mine] for rows in case.rows], live=np.ones(len(mine), int),
                   h=case.h[lane : lane + 1], c=case.c[lane : lane + 1],
                   reset=None if case.reset is None else case.reset[mine])
