"""Both paths of the CUDA LSTM on the CPU: the graph path without graphs, the persistent path in interpreted PTX."""

import dataclasses
import itertools

import pytest
import torch

from elmo_fast.ops.projected_lstm.cuda import blocks, lstm
from tests.support import cuda_ops
from tests.support.gpu_lstm import LIMITS, check, ragged
from tests.support.grid import mostly_long
from tests.support.op_cases import LOOSE, SLOTS, TIGHT, lstm_case

# Rows of input projections in an arena: a whole table; a block's unique rows; few slots, which step in turn.
ARENA_ROWS = (None, 14, 8)
CASES = {"two layers": ((11, 37, 11), LOOSE), "no projection": ((11, 11, 11), LOOSE), "no clips": ((11, 37, 11), {}),
         "clips that fire": ((11, 37, 11), TIGHT)}  # sizes and clips
ON_GRAPHS = [(None, [*CASES][number % 4], precision, arena_rows)
             for number, (arena_rows, precision) in enumerate(itertools.product(ARENA_ROWS, LIMITS))]
ON_PTX = mostly_long([(chip, "clips that fire", "medium", arena_rows)
                      for chip, arena_rows in zip(("sm_90", "sm_80", "sm_90"), ARENA_ROWS)], quick=0)


def with_unread_rows(case):
    """The case with many unread rows of inputs, which must not be projected."""
    inputs = case.operands["inputs"]
    padded = torch.cat([torch.full((9 * len(inputs), inputs.shape[1]), torch.nan), inputs])
    return dataclasses.replace(case, operands=case.operands | {"inputs": padded}, index=case.index + 9 * len(inputs))


@pytest.mark.parametrize("native, name, precision, arena_rows", ON_GRAPHS + ON_PTX, indirect=["native"])
def test_both_paths_agree_with_float64(native, name, precision, arena_rows, monkeypatch):
    """Also with a separate half of the inputs for each direction."""
    sizes, clips = CASES[name]
    plain, started = lstm_case(sizes, clips=clips), lstm_case(sizes, slots=SLOTS, starts=True, clips=clips)
    if arena_rows:
        monkeypatch.setattr(blocks, "rows_held", lambda layer: arena_rows)
        plain, started = map(with_unread_rows, (plain, started))
    if arena_rows == 8:
        monkeypatch.setitem(lstm.MOST_SLOTS, "graph", 4)
    check(plain, precision)
    for bounded in (False, True):
        check(lstm_case(sizes, gathered=False, clips=clips), precision, bounded=bounded)
    check(started, precision)
    if native:
        assert all(call["scale"] for call in native.calls)
        assert not native.calls[0]["initial_c"] and native.calls[-1]["initial_h"]


@pytest.mark.parametrize("sizes, slots, count", mostly_long([
    ((37, 11), 7, 3), ((700, 600), 7, 3), *(((37, 11), slots, 40) for slots in (1, 2, 16, 32, 64, 200))]))
@pytest.mark.parametrize("precision, bf16", [*((precision, False) for precision in LIMITS), ("medium", True)])
@pytest.mark.parametrize("native", mostly_long(["triton sm_90", "triton sm_80"], quick=0), indirect=True)
def test_triton_kernels_of_a_step_agree_with_float64(native, precision, bf16, sizes, slots, count):
    """One program per slot, and two with separate inputs and fp16 row factors for each direction."""
    case = ragged(torch.linspace(slots, 1, count).int().tolist(), *sizes, bf16=bf16, gathered=sizes[0] < 700)
    _, h, c = check(case, precision)
    assert all((part.abs() >= clip - 1e-6).any() for part, clip in zip((c, h), case.clips.values()))


def test_rows_of_any_size_fit_fp16():
    case = lstm_case(clips=LOOSE)
    case.operands["inputs"][:4] *= torch.tensor([1e5, 1e30, 1e-3, 1.0])[:, None]
    check(case, "medium")


@pytest.mark.parametrize("slots, starts", [(None, False), (SLOTS, True)])
def test_registered_as_one_op(slots, starts):
    case = lstm_case(slots=slots, starts=starts, clips=TIGHT)
    call, _ = case.given(case.leaves(wanted=[]))
    with cuda_ops.registered_on_cpu():
        torch.library.opcheck(torch.ops.elmo_fast.projected_lstm.default, call.arguments())
