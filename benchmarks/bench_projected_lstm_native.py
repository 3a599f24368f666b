"""Times the C++ LSTM, one layer and both directions a call, beside torch's own products in the same rounds.

    python benchmarks/bench_projected_lstm_native.py --threads 2 [--dim 4096 --projection 512] [--precision 0]

Rounds are interleaved over all workloads and both programs; the table has medians. "floor" is the share of the floor
reached by the clock, "cpu" the same by CPU time, which other programs on the machine disturb less. The floor of a step
is the larger of its arithmetic at the measured multiply-add rate and its weights at the measured read bandwidth.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from elmo_fast import _native as native

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from test_projected_lstm_native import Schedule, Weights, batch_schedule, run, state  # noqa: E402

CLIPS = (3.0, 3.0)


def machine_floor(threads, isa):
    """(GFLOP/s, GB/s) of all threads, from benchmarks/native/machine_floor.cpp."""
    flags = {"avx512": ["-mavx512f"], "avx2": ["-mavx2", "-mfma"]}.get(isa, [])
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "floor")
        source = ROOT / "benchmarks" / "native" / "machine_floor.cpp"
        compiler = os.environ.get("CXX", "c++")
        subprocess.run([compiler, "-O3", "-std=c++17", *flags, source, "-o", program, "-lpthread"], check=True)
        lines = subprocess.run([program, str(threads)], check=True, capture_output=True, text=True).stdout.split()
    return float(lines[0]), float(lines[1])


class Torch:
    """The same layer by torch.mm: input product of all rows, then one recurrent product a step and direction."""

    def __init__(self, weights):
        n = weights.inputs
        self.w = [(torch.from_numpy(w[:n].copy()), torch.from_numpy(w[n:].copy())) for w in weights.w]
        self.b = [torch.from_numpy(b) for b in weights.b]
        self.p = [None if p is None else torch.from_numpy(p) for p in weights.p]

    def __call__(self, schedule, inputs, h, c):
        rows, begin = torch.from_numpy(schedule.rows.astype(np.int64)), 0
        z = [torch.addmm(self.b[d], inputs, self.w[d][0]) for d in range(2)]
        h, c = [list(x.clone().chunk(2, 1)) for x in (h, c)]
        for n in schedule.live.tolist():
            for d in range(2):
                i, j, f, o = (z[d][rows[d, begin : begin + n]] + h[d][:n] @ self.w[d][1]).chunk(4, 1)
                cell = torch.sigmoid(f + 1) * c[d][:n] + torch.sigmoid(i) * torch.tanh(j)
                c[d][:n] = cell.clamp_(-CLIPS[0], CLIPS[0])
                m = torch.sigmoid(o) * torch.tanh(c[d][:n])
                h[d][:n] = m if self.p[d] is None else (m @ self.p[d]).clamp_(-CLIPS[1], CLIPS[1])
            begin += n


def workloads(rng, steps):
    """name -> (schedule, distinct rows, lanes): full batches, then one like 64 sentences of running text."""
    for lanes in (1, 8, 16, 64):
        rows = [np.arange(lanes * steps)] * 2
        yield f"{lanes} lanes", Schedule([lanes] * steps, rows, rows), lanes * steps, lanes
    lengths = np.sort(np.clip(rng.lognormal(3.0, 0.6, 64).astype(int), 2, 66))[::-1]
    distinct = int(lengths.sum() * 0.31)
    schedule = batch_schedule(lengths, distinct, rng)
    yield f"64 sentences, {schedule.size / len(schedule.live):.0f} live", schedule, distinct, 64


def floor_seconds(w, schedule, distinct, flops, bandwidth):
    """Arithmetic or streaming, whichever is longer, per step, and the input product, at fp32 width."""
    step_weights = 2 * (4 * w.dim * w.projection + (w.dim * w.projection if w.p[0] is not None else 0))
    steps = sum(max(2 * step_weights * n / flops, 4 * step_weights / bandwidth) for n in schedule.live.tolist())
    return steps + 2 * 2 * 4 * w.dim * w.inputs * distinct / flops


def timed(call):
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in dict(threads=2, dim=4096, projection=512, input=512, steps=25, rounds=5, precision=0).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    isa = native.lstm_isa(args.precision)
    flops, bandwidth = (1e9 * x for x in machine_floor(args.threads, native.lstm_isa(0)))
    print(f"{isa}, {args.threads} threads: {flops / 1e9:.0f} GFLOP/s fp32, {bandwidth / 1e9:.0f} GB/s read")
    rng = np.random.default_rng(0)
    weights = Weights(rng, args.input, args.dim, args.projection, scale=0.03)
    packed, baseline = weights.pack(args.precision), Torch(weights)
    jobs = []
    for name, schedule, distinct, lanes in workloads(rng, args.steps):
        x = rng.standard_normal((distinct, args.input)).astype(np.float32)
        h, c = state(rng, lanes, weights)
        ours = lambda s=schedule, x=x, h=h, c=c: run(  # noqa: E731
            weights, s, x, h, c, clips=CLIPS, packed=packed, threads=args.threads, precision=args.precision)  # fmt: skip
        theirs = lambda s=schedule, t=[torch.from_numpy(a) for a in (x, h, c)]: baseline(s, *t)  # noqa: E731
        jobs.append((name, schedule, floor_seconds(weights, schedule, distinct, flops, bandwidth), ours, theirs))
    times = [([], []) for _ in jobs]
    for _ in range(args.rounds + 1):
        for job, (a, b) in zip(jobs, times):
            a.append(timed(job[3]))
            b.append(timed(job[4]))
    print(f"{'':28}{'tokens/s':>9}{'ms':>8}{'cpu ms':>8}{'floor':>7}{'cpu':>6}{'torch':>9}{'ratio':>7}")
    for (name, schedule, floor, *_), (a, b) in zip(jobs, times):
        (ours, cpu), theirs = sorted(a[1:])[len(a) // 2 - 1], sorted(b[1:])[len(b) // 2 - 1][0]
        print(f"{name:28}{schedule.size / ours:9.0f}{ours * 1e3:8.1f}{cpu * 1e3:8.1f}{floor / ours:7.0%}"
              f"{floor * args.threads / cpu:6.0%}{schedule.size / theirs:9.0f}{theirs / ours:7.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
