"""Each torch with the Triton that it brings, faked by its version and by what it lacks, on a GPU that is faked too.

`auto` takes a path that this torch has, results on the CPU are the same, and `doctor` says why a path is passed over.
"""

import json

import numpy as np
import pytest

import elmo_fast
from tests.support.files import python

FAKE = """
import json, sys, types
import torch, torch._dynamo

torch_version, triton_version = sys.argv[1:]
release = tuple(map(int, torch_version.split(".")[:2]))
torch.__version__ = type(torch.__version__)(torch_version)
sys.modules["triton"] = types.SimpleNamespace(__version__=triton_version, runtime=types.SimpleNamespace(
    driver=types.SimpleNamespace(active=types.SimpleNamespace(utils=None))))
if release < (2, 9):
    del torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter

torch.cuda.device_count = lambda: 1
torch.cuda.get_device_capability = lambda device=None: (9, 0)
torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(name="a GPU", major=9, minor=0,
                                                                        total_memory=80 << 30)

import elmo_fast
from elmo_fast.ops import backend, doctor, numerics
from torch._subclasses.fake_tensor import FakeTensorMode

with FakeTensorMode():
    x = torch.empty(3, 5, device="cuda")
    paths = {op: backend.resolve(op, "auto", x) for op in backend.OPS}
    said = doctor._backends([x.device])
has_fp32_results = numerics._has_fp32_results(x.device)
vectors = elmo_fast.load("bundled", backend="auto").embed(["The cat sat ."])[0]
print(json.dumps([paths, said, has_fp32_results, vectors[-1, 1, :4].tolist()]))
"""
ENCODER = "char_cnn", "highway", "linear"


@pytest.mark.long
@pytest.mark.parametrize("version, triton, path, reason", [
    ("2.6.0+cu126", "3.2.0", "torch", "need Triton 3.4 or newer on this GPU, which torch 2.8 brings, and this is 3.2"),
    ("2.8.0+cu128", "3.4.0", "native", None),
    ("2.11.0+cu130", "3.6.0", "native", None),
    ("2.13.0+cu130", "3.9.0", "native", None),
])
def test_auto_takes_a_path_that_this_torch_has(version, triton, path, reason):
    run = python("-c", FAKE, version, triton)
    paths, said, has_fp32_results, vectors = json.loads(run.stdout.splitlines()[-1])
    assert paths == {**dict.fromkeys(ENCODER, path), "projected_lstm": "native"}
    for op in ENCODER:
        line, = (line for line in said if line.startswith("cuda") and f" {op} " in line)
        assert f"{op} runs on {path}" in line and (reason or "runs on") in line
    assert has_fp32_results == (path == "native")  # both since torch 2.8
    expected = elmo_fast.load("bundled").embed(["The cat sat ."])[0]
    np.testing.assert_array_equal(np.float32(vectors), expected[-1, 1, :4])
