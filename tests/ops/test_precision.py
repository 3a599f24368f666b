"""`highest` is IEEE fp32 under any flags of torch and autocast, and restores the flags."""

import sys
import threading

import pytest
import torch

from elmo_fast import arguments, batch_to_ids
from elmo_fast.engine.backend import native_module
from elmo_fast.engine.precision import OPERANDS, PRECISIONS
from elmo_fast.ops.char_cnn.activations import ACTIVATIONS
from elmo_fast.ops.numerics import FP32_FLAGS, fp32_precision, numerics, set_fp32_precision
from elmo_fast.testing import AGAINST_FLOAT64, relative_error
from tests.support.models import SENTENCES, bilm

IDS = batch_to_ids(SENTENCES)
MATMUL = torch.backends.cuda.matmul
# Settings of cuBLAS that let sums of 16-bit products be other than fp32.
SUMS = [name for name in ("allow_fp16_accumulation", "allow_fp16_reduced_precision_reduction",
                          "allow_bf16_reduced_precision_reduction") if hasattr(MATMUL, name)]
# What scripts set before they call the library, and in the last two where PyTorch's older getters raise already.
SETTINGS = {"nothing": lambda: None, "allow_tf32": lambda: setattr(MATMUL, "allow_tf32", True),
            **{word: lambda word=word: torch.set_float32_matmul_precision(word)
               for word in ("highest", "high", "medium")},
            **({"tf32 flag": lambda: setattr(MATMUL, "fp32_precision", "tf32"),
                "bf16 flag": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16")}
               if len(FP32_FLAGS) > 1 else {})}


def flags():
    return [fp32_precision(*flag) for flag in FP32_FLAGS]


@pytest.fixture
def threads_alternate():
    """Threads of Python take turns after a few microseconds."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(autouse=True)
def restored_flags():
    before, sums = flags(), {name: getattr(torch.backends.cuda.matmul, name) for name in SUMS}
    yield
    torch.set_float32_matmul_precision("highest")  # the older setting, with which the flags agree
    for flag, value in zip(FP32_FLAGS, before):
        set_fp32_precision(*flag, value)
    for name, value in sums.items():
        setattr(torch.backends.cuda.matmul, name, value)


def run(backend):
    return torch.stack(bilm(backend=backend)(IDS).activations)


@pytest.mark.parametrize("backend", ["reference", "torch", "auto"])
def test_flags_and_autocast_change_nothing(backend):
    expected = run(backend)
    torch.set_float32_matmul_precision("medium")
    before = flags()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = run(backend)
    assert actual.dtype == torch.float32
    assert torch.equal(actual, expected)
    assert flags() == before


def test_products_are_ieee_and_an_error_restores_the_flags():
    torch.set_float32_matmul_precision("medium")
    before, x = flags(), torch.randn(64, 512, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ZeroDivisionError), numerics("highest", x.device):
        assert set(flags()) <= {"ieee", "none"}
        inside = x @ x.T
        raise ZeroDivisionError
    assert flags() == before
    assert relative_error(inside, x.double() @ x.double().T) < AGAINST_FLOAT64["ieee"]


def test_threads_share_the_flags():
    torch.set_float32_matmul_precision("medium")
    before = flags()
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with numerics("highest", torch.device("cpu")):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(10)
    with numerics("highest", torch.device("cpu")):
        pass
    assert set(flags()) <= {"ieee", "none"}
    leave.set()
    thread.join()
    assert flags() == before


def older():
    """The older settings; None where their getters raise."""
    try:
        return MATMUL.allow_tf32, torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("inner", ["highest", "high"])
@pytest.mark.parametrize("outer", ["highest", "high", "medium"])
def test_older_settings_stay_readable_by_other_threads(setting, outer, inner, threads_alternate):
    SETTINGS[setting]()
    tf32 = ("tf32",) if len(FP32_FLAGS) > 1 else ("tf32", "bf16")  # before torch 2.9 "medium" is tf32 on CUDA as well
    before, failures, stop = (flags(), older()), [], threading.Event()

    def read():
        failures.append(older() is None)  # a busy machine may start the thread late
        while not stop.is_set():
            failures.append(older() is None)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    for _ in range(20):
        with numerics(outer, torch.device("cuda")):
            assert fp32_precision("cuda", "matmul") in (tf32 if outer == "high" else ("ieee", "none"))
            with numerics(inner, torch.device("cpu")):
                assert set(flags()) <= {"ieee", "none"}
        assert (flags(), older()) == before
    stop.set()
    thread.join()
    assert before[1] is None or (failures and not any(failures))


@pytest.mark.parametrize("device, held", [("cuda", False), ("cpu", True)])
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_16_bit_products_are_fp32_on_a_gpu(name, device, held):
    """Whatever a user has set, which a second thread may have opened a call under."""
    setattr(MATMUL, name, True)
    seen = []
    with numerics("medium", torch.device(device)):
        thread = threading.Thread(target=lambda: seen.append(getattr(MATMUL, name)))
        thread.start()
        thread.join()
        with numerics("high", torch.device(device)):
            pass
        seen.append(getattr(MATMUL, name))
    assert seen == [held, held] and getattr(MATMUL, name) is True


@pytest.mark.skipif(not hasattr(MATMUL, "allow_fp16_reduced_precision_reduction_split_k"), reason="newer in torch")
def test_the_setting_of_split_sums_is_kept():
    MATMUL.allow_fp16_reduced_precision_reduction = (False, False)
    with numerics("medium", torch.device("cuda")):
        assert MATMUL.allow_fp16_reduced_precision_reduction_split_k is False
    assert MATMUL.allow_fp16_reduced_precision_reduction_split_k is False


def test_tables_match_the_engine_and_the_arguments():
    module, _ = native_module()
    assert module is None or set(module.precisions) == {*PRECISIONS}
    assert list(ACTIVATIONS) == list(arguments.ACTIVATIONS)
    for row in PRECISIONS.values():
        assert {row.cpu, row.gpu, row.bounded} <= OPERANDS.keys()
