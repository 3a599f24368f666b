"""`highest` is IEEE fp32 under any flags of torch and autocast, and restores the flags."""

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


def flags():
    return [fp32_precision(*flag) for flag in FP32_FLAGS]


@pytest.fixture(autouse=True)
def restored_flags():
    before = flags()
    yield
    for flag, value in zip(FP32_FLAGS, before):
        set_fp32_precision(*flag, value)


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


def test_tables_match_the_engine_and_the_arguments():
    module, _ = native_module()
    assert module is None or set(module.precisions) == {*PRECISIONS}
    assert list(ACTIVATIONS) == list(arguments.ACTIVATIONS)
    for row in PRECISIONS.values():
        assert {row.cpu, row.gpu, row.bounded} <= OPERANDS.keys()
