"""The body of a trial: kernels pass in interpreted PTX, and kernels with a fault do not."""

import functools
import itertools
import re

import pytest
import torch

from elmo_fast.ops import trial_child
from elmo_fast.ops.projected_lstm.cuda import choice
from elmo_fast.ops.projected_lstm.cuda import pointwise as torch_pointwise
from tests.support.lstm_on_ptx import lstm_on_ptx

CPU = torch.device("cpu")
layer = functools.partial(trial_child.layer, CPU, dim=37, projection=11, slots=5)
# Places of the kernel's text, what takes them, and what the trial says.
MUTATIONS = {"no upper clip": (r"setp\.gt\.f32 (%p\d+), (%f\d+), %f\d+", r"setp.gt.f32 \1, \2, \2", "relative errors"),
             "another sigmoid": ("0fBFB8AA3B", "0fBF80AA3B", "relative errors"),
             "an arrival at the grid barrier": (r"red\.release[^;]*;", "", "a wait of 10 s")}


@pytest.fixture
def judge():
    return functools.partial(trial_child.judge, memory=trial_child.Guarded(CPU), runs=1)


def test_the_operations_of_pytorch_pass_and_both_clips_fire(judge):
    for case in (layer("highest", choice.GRAPH), layer("medium", choice.GRAPH), trial_child.training(CPU, 37, 11, 3)):
        judge(case)
        out, _, c = case.exact[:3]
        for values, clip in ((out, 0.1), (c, 0.3)):
            assert 0.1 < (values.abs() > clip - 1e-9).double().mean() < 0.9


def wrong_values(function, *arguments):
    function(*arguments)
    arguments[7].mul_(1.01)


def other_bits(function, *arguments, calls=itertools.count()):  # noqa: B008 (counts all calls)
    function(*arguments)
    arguments[7].mul_(1 + 1e-7 * next(calls))


def out_of_bounds(function, *arguments):
    function(*arguments)
    m = arguments[7]
    torch.as_strided(m, (m.numel() + 3,), (1,))[-3:] = 1.0


def unwritten(function, *arguments):
    m = arguments[7].clone()
    function(*arguments)
    arguments[7][:, 0] = torch.empty_like(m[:, 0])


@pytest.mark.parametrize("fault, message", [
    (wrong_values, "1 slots in highest: relative errors"), (other_bits, "other bits for the same inputs"),
    (out_of_bounds, "wrote outside of its outputs"), (unwritten, "relative errors .*nan")])
def test_a_fault_of_a_kernel_is_noticed(fault, message, judge, monkeypatch):
    case = trial_child.layer(CPU, "highest", choice.GRAPH, 37, 11, 1)
    judge(case)
    monkeypatch.setattr(torch_pointwise, "gates", functools.partial(fault, torch_pointwise.gates))
    with pytest.raises(RuntimeError, match=message):
        judge(case)


@pytest.mark.long
@pytest.mark.parametrize("mutation", [None, *MUTATIONS])
def test_the_persistent_kernel(mutation, judge, monkeypatch):
    with lstm_on_ptx("sm_90", monkeypatch) as native:
        case = layer("medium", choice.PERSISTENT)
        if mutation is None:
            judge(case)
            assert len(native.calls) == 2 + 1 + 3 * 2
            return
        place, other, message = MUTATIONS[mutation]
        native.replace(re.sub(place, other, native.machine.ptx))
        with pytest.raises((RuntimeError, AssertionError), match=message):
            judge(case)


@pytest.mark.long
@pytest.mark.parametrize("family", ["char_cnn", "highway"])
def test_the_kernels_of_the_char_encoder(family, judge, monkeypatch):
    triton_on_ptx = pytest.importorskip("tests.support.triton_on_ptx")
    triton_on_ptx.on_ptx(monkeypatch, 80)
    few = {"char_cnn": lambda: itertools.islice(trial_child.char_cnn(CPU, (5,)), 0, None, 3),
           "highway": lambda: trial_child.highway(CPU, ((5, 32),))}
    for case in few[family]():
        judge(case)
