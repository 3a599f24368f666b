"""Threads of the C++ engine, its own or OpenMP's: any number of threads gives the same bits."""

import pytest

from tests.support.engines import native, needs_native
from tests.support.files import python
from tests.support.grid import mostly_long

PROGRAM = """
import sys
from concurrent.futures import ThreadPoolExecutor
import torch
from tests.support.models import SENTENCES, bilm
from elmo_fast import _native, batch_to_ids
from elmo_fast.ops import cpu

if sys.argv[1] == "own":
    _native.use_openmp_threads = lambda: False
cpu.cores = lambda: 64
_native.set_least_share(0)  # small models run on all threads, as long calls do
models, ids = [bilm(seed=seed, backend="native", state="zero") for seed in range(4)], batch_to_ids(SENTENCES)

def run(model):
    with torch.no_grad():
        return torch.cat([each.flatten() for each in model(ids)["activations"]])

torch.set_num_threads(1)
expected = [run(model) for model in models]
for threads in (2, 3, 7, 2):
    torch.set_num_threads(threads)
    for _ in range(5):
        assert torch.equal(run(models[0]), expected[0]), threads
with ThreadPoolExecutor(4) as pool:  # models side by side, and callers of one model
    assert all(map(torch.equal, pool.map(run, [*models, *models[:1] * 4] * 2), [*expected, *expected[:1] * 4] * 2))
print("agrees", _native.threads_are_openmp())
"""


@needs_native
@pytest.mark.parametrize("threads, variables", mostly_long([
    ("openmp", {}), ("own", {}), ("openmp", {"OMP_THREAD_LIMIT": "1"}), ("openmp", {"OMP_DYNAMIC": "true"})], quick=2),
                         ids=["openmp", "own", "openmp gives too few", "openmp may give fewer"])
def test_every_choice_of_threads_gives_the_same_bits(threads, variables):
    if threads == "openmp" and not native.use_openmp_threads():
        pytest.skip("this PyTorch has no GNU OpenMP")
    process = python("-c", PROGRAM, threads, OMP_NUM_THREADS="2", **variables)
    assert process.stdout.split() == ["agrees", str(threads == "openmp")]
