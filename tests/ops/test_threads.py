"""The threads of the C++ engine: on any number of them, and with callers side by side, the bits are the same."""

from tests.support.engines import needs_native
from tests.support.files import python

PROGRAM = """
from concurrent.futures import ThreadPoolExecutor
import torch
from tests.support.models import SENTENCES, bilm
from elmo_fast import _native, batch_to_ids
from elmo_fast.ops import cpu

cpu.cores = lambda: 64
_native.set_least_share(0)  # small models would run on one thread
models, ids = [bilm(seed=seed, backend="native", state="zero") for seed in range(4)], batch_to_ids(SENTENCES)

def run(model):
    with torch.no_grad():
        return torch.cat([each.flatten() for each in model(ids)["activations"]])

torch.set_num_threads(1)
expected = [run(model) for model in models]
for threads in (2, 3, 7, 2):
    torch.set_num_threads(threads)
    for _ in range(20):
        assert torch.equal(run(models[0]), expected[0]), threads
with ThreadPoolExecutor(4) as pool:  # models side by side, and callers of one model
    assert all(map(torch.equal, pool.map(run, [*models, *models[:1] * 4] * 5), [*expected, *expected[:1] * 4] * 5))
print("agrees")
"""


@needs_native
def test_any_number_of_threads_gives_the_same_bits():
    assert python("-c", PROGRAM, OMP_NUM_THREADS="2").stdout.split() == ["agrees"]
