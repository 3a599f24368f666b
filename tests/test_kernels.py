"""The char encoder on a GPU that is not here: results by Triton's interpreter, resources by its compiler, dispatch, bounds of fp16."""

import concurrent.futures
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from models import bilm, options
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import kernel_resources
from elmo_fast.ops import backend, precision
from elmo_fast.ops.char_cnn import char_cnn
from elmo_fast.ops.cuda.fp16_bounds import LARGEST, fits_fp16

ROOT = Path(__file__).parent.parent
CUDA = SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.float32, requires_grad=False)
COMMANDS = {"interpreter": ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/interpreted_encoder.py"),
            80: ("-m", "benchmarks.kernel_resources", "--generation", "80"),
            90: ("-m", "benchmarks.kernel_resources", "--generation", "90")}


def python(*arguments, interpret="0"):
    """What an interpreter of its own prints: Triton reads its variables while it is imported."""
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=560,
                          env={**os.environ, "TRITON_INTERPRET": interpret, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


@pytest.fixture(scope="module")
def printed():
    """What the interpreter's tests and the compilers print: two processes at a time."""
    pytest.importorskip("triton")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = {key: pool.submit(python, *command, interpret=str(int(key == "interpreter"))) for key, command in COMMANDS.items()}
        yield lambda key: jobs[key].result()


def test_results_in_the_interpreter(printed):
    assert re.search(r"\b[1-9]\d* passed", printed("interpreter"))


@pytest.mark.parametrize("generation", [80, 90])
def test_resources_of_every_configuration(generation, printed):
    lines = printed(generation).splitlines()
    assert len(lines) == len(list(kernel_resources.cases((generation,))))
    for line in lines:
        found = {name: int(value) for name, value in re.findall(r"(\w+)\s+(\d+)(?=  |$)", line)}
        assert found["spills"] == 0 and found["local"] == 0, line
        assert found["registers"] <= 255 and found["shared"] <= kernel_resources.SHARED_LIMIT[generation], line
        assert (found["tensor"] == 0 < found["fp32"]) if line.split()[2] == "ieee" else found["tensor"] > 0, line


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of compute capability 9.0 as far as the choice of a backend goes."""
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.delenv("ELMO_FAST_NO_TRITON", raising=False)
    backend.why_no_triton.cache_clear()
    yield
    backend.why_no_triton.cache_clear()


@pytest.mark.parametrize("op", ["char_cnn", "highway", "linear"])
def test_auto_takes_triton_on_a_gpu(gpu, op):
    assert backend.resolve(op, "auto", CUDA) == backend.resolve(op, "native", CUDA) == "native"
    assert backend.resolve(op, "auto", SimpleNamespace(**{**vars(CUDA), "requires_grad": True})) == "native"
    assert backend.resolve(op, "auto", SimpleNamespace(**{**vars(CUDA), "dtype": torch.float64})) == "torch"


@pytest.mark.parametrize("case, reason", [("old", "compute capability 8.0 or newer, and this one has 7.5"),
                                          ("absent", r"pip install 'elmo-fast\[triton\]'"),
                                          ("switched off", "ELMO_FAST_NO_TRITON=1 is set")])
def test_auto_falls_back_with_the_reason(gpu, monkeypatch, case, reason):
    if case == "old":
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    elif case == "absent":
        monkeypatch.setitem(sys.modules, "triton", None)
    else:
        monkeypatch.setenv("ELMO_FAST_NO_TRITON", "1")
    assert backend.resolve("highway", "auto", CUDA) == "torch"
    with pytest.raises(RuntimeError, match=reason):
        backend.resolve("highway", "native", CUDA)


class Seen(TorchDispatchMode):
    """Names of this project's ops that ran."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "elmo_fast":
            self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("level, dtype", [("highest", torch.float32), ("medium", torch.bfloat16)])
def test_the_encoder_runs_on_kernels_on_a_gpu(gpu, monkeypatch, level, dtype):
    """On fake CUDA tensors, which have no data: which ops would run, on what, and what they give."""
    monkeypatch.setattr("elmo_fast.model.token_source.fits_fp16", lambda *_: False)
    encoder = bilm(options()).token_source
    with FakeTensorMode():
        for name, shape in [(name, getattr(encoder, name).shape) for name in encoder.datasets]:
            setattr(encoder, name, torch.nn.Parameter(torch.empty(shape, device="cuda"), requires_grad=False))
        ids, filters = torch.empty(7, 50, dtype=torch.int64, device="cuda"), [(encoder.W_cnn_0, encoder.b_cnn_0)]
        with Seen() as seen, precision.numerics(level, torch.device("cuda")):
            vectors, first = encoder(ids), char_cnn(ids, encoder.char_embed, filters, "relu")
    assert seen.names == ["char_cnn", "highway", "highway", "product", "char_cnn"]
    assert vectors.shape == (7, 11) and vectors.dtype == torch.float32 and vectors.device.type == "cuda"
    assert first.dtype == dtype
    with pytest.raises(ValueError, match="ids: expected character ids from 0 to 261, got 0 to 262"):
        char_cnn(torch.tensor([[0, 262]]), encoder.char_embed, filters, "relu")


def test_plain_torch_needs_no_triton():
    python("-c", "import sys; sys.modules['triton'] = None; import torch, elmo_fast; from elmo_fast.ops import reference;"
                 "from elmo_fast.ops.char_cnn import char_cnn; from elmo_fast.ops.doctor import report; report();"
                 "x = torch.randint(0, 262, (3, 50)), torch.randn(261, 4), [(torch.randn(1, 2, 4, 3), torch.randn(3))], 'relu';"
                 "assert torch.allclose(char_cnn(*x, backend='torch'), reference.char_cnn(*x), atol=1e-5)")


def test_fp16_is_taken_where_every_value_fits():
    draw = [torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)))
            for shape in ((261, 4), (1, 2, 4, 3), (3,), (3, 3), (3,), (3, 3), (3,))]
    embed, filters, highways = draw[0], [(draw[1], draw[2])], [tuple(draw[3:])]
    assert fits_fp16(embed, filters, "relu", highways, None)
    assert not fits_fp16(embed * 1e4, filters, "relu", highways, None)  # a window can reach the limit
    assert not fits_fp16(embed, filters, "relu", highways * 40, None)  # the layers can
    assert not fits_fp16(embed, filters, "relu", highways, (torch.tensor([[7e4]]), torch.zeros(1)))
    for factor, fits in ((1, True), (LARGEST, False), (1 / LARGEST, True)):  # the bound follows edits of the weights
        filters[0][0].mul_(factor)
        assert fits_fp16(embed, filters, "tanh", highways, None) == fits
    filters[0][1].requires_grad_()
    assert not fits_fp16(embed, filters, "tanh", highways, None)
    with torch.no_grad():
        assert fits_fp16(embed, filters, "tanh", highways, None)
        embed[5, 2] = float("nan")
        assert not fits_fp16(embed, filters, "relu", highways, None)
