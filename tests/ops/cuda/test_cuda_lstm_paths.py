"""Both paths of the CUDA LSTM on the CPU: the graph path without graphs, the persistent one over its kernels' PTX."""

import dataclasses
import itertools

import pytest
import torch

from elmo_fast.ops import choices
from elmo_fast.ops.numerics import type_of
from elmo_fast.ops.projected_lstm.arguments import flat_weights
from elmo_fast.ops.projected_lstm.cuda import blocks, lstm, pointwise, step
from elmo_fast.testing import relative_error
from tests.support import cuda_ops
from tests.support.gpu_lstm import LIMITS, check, ragged
from tests.support.grid import mostly_long
from tests.support.op_cases import LOOSE, SLOTS, TIGHT, layer, lstm_case

POINTWISE = "z", "scale", "bias", "meta", "initial_c", "c", "m"  # operands that the two ways of a step share
# Rows of input projections that an arena holds: those of a table in full; of a block's unique rows; of few slots, which
# step by turns.
HELD = (None, 14, 8)
CASES = {"two layers": ((11, 37, 11), LOOSE), "no projection": ((11, 11, 11), LOOSE), "no clips": ((11, 37, 11), {}),
         "clips that fire": ((11, 37, 11), TIGHT)}  # sizes and clips
ON_GRAPHS = [(None, [*CASES][number % 4], precision, held)
             for number, (held, precision) in enumerate(itertools.product(HELD, LIMITS))]
ON_PTX = [(chip, of, "medium", held) for chip, held in zip(("sm_90", "sm_80", "sm_90"), HELD)
          for of in ("clips that fire", "no clips")]


def with_unread_rows(case):
    """Many more rows of inputs than are read: they are not projected."""
    inputs = case.operands["inputs"]
    padded = torch.cat([torch.full((9 * len(inputs), inputs.shape[1]), torch.nan), inputs])
    return dataclasses.replace(case, operands=case.operands | {"inputs": padded}, index=case.index + 9 * len(inputs))


@pytest.mark.parametrize("native, of, precision, held", ON_GRAPHS + ON_PTX, indirect=["native"])
def test_both_paths_agree_with_float64(native, of, precision, held, monkeypatch):
    """Each direction from its half of the inputs too."""
    sizes, clips = CASES[of]
    plain, started = lstm_case(sizes, clips=clips), lstm_case(sizes, slots=SLOTS, starts=True, clips=clips)
    if held:
        monkeypatch.setattr(blocks, "rows_held", lambda layer: held)
        plain, started = map(with_unread_rows, (plain, started))
    if held == 8:
        monkeypatch.setitem(lstm.MOST_SLOTS, "graph", 4)
    check(plain, precision)
    for bounded in (False, True):
        check(lstm_case(sizes, gathered=False, clips=clips), precision, bounded=bounded)
    check(started, precision)
    if native:
        bf16 = of == "no clips"
        assert all((call["operand"], bool(call["scale"])) == (bf16, not bf16) for call in native.calls)
        assert not native.calls[0]["initial_c"] and native.calls[-1]["initial_h"]


@pytest.mark.parametrize("sizes, slots, count", mostly_long([
    ((37, 11), 7, 3), ((700, 600), 7, 3), *(((37, 11), slots, 40) for slots in (1, 2, 16, 32, 64, 200))]))
@pytest.mark.parametrize("precision, bf16, way", [
    *((precision, False, step.CUBLAS) for precision in LIMITS), ("medium", False, step.TRITON),
    ("medium", True, step.TRITON)])
@pytest.mark.parametrize("native", mostly_long(["triton sm_90", "triton sm_80"]), indirect=True)
def test_triton_kernels_of_a_step_agree_with_float64(native, precision, bf16, way, sizes, slots, count, monkeypatch):
    """In a program for each slot, and in two with inputs, and factors of fp16 rows, that differ by direction."""
    if way == step.TRITON:
        skip_without_fence(pytest.importorskip("elmo_fast.kernels.configs").generation_of(None))
    used, gates = set(), step.gates
    monkeypatch.setattr(choices, "choose", lambda device, name, measure: way)
    monkeypatch.setattr(step, "gates", lambda way, *given: used.add(way) or gates(way, *given))
    case = ragged(torch.linspace(slots, 1, count).int().tolist(), *sizes, bf16=bf16, gathered=sizes[0] < 700)
    _, h, c = check(case, precision)
    assert all((part.abs() >= clip - 1e-6).any() for part, clip in zip((c, h), case.clips.values())) and used == {way}


def skip_without_fence(generation):
    if reason := step.lacks_fence(generation):
        pytest.skip(reason)


def step_operands(slots, dim, projection, operands, seed=0):
    """Of `lstm_step.step`, by name: two thirds of the slots have a token, and some of these start a sequence."""
    generator, dtype, rows = torch.Generator().manual_seed(seed), type_of(operands), slots + 3

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    meta = torch.zeros(3, slots, dtype=torch.int32)
    for direction in (0, 1):
        meta[direction] = torch.randperm(rows, generator=generator)[:slots]
    meta[:2, slots * 2 // 3 + 1 :] = -1
    meta[2] = torch.rand(slots, generator=generator) < 0.3
    w_h = (random(2, 4 * dim, projection) / projection**0.5).to(dtype).transpose(1, 2)
    return {"operand": random(2, slots, projection).to(dtype), "w_h": w_h, "z": random(rows, 2, dim, 4).to(dtype),
            "scale": None if operands == "bf16" else 0.5 + torch.rand(rows, 2, generator=generator),
            "bias": random(2, 4 * dim), "meta": meta, "initial_c": random(2, dim), "c": random(2, slots, dim),
            "m": torch.full((2, slots, dim), torch.nan, dtype=dtype)}


def tiles_of_a_step():
    return mostly_long([(generation, operands, amount) for operands in ("fp16", "bf16")
                        for generation in (90, 80) for amount in ("many", "few")], quick=2)


@pytest.mark.parametrize("generation, operands, amount", tiles_of_a_step())
def test_every_tile_of_a_step_in_one_kernel(generation, operands, amount, monkeypatch):
    """Masked and not; a slot's bits do not depend on other slots, nor on how many there are."""
    skip_without_fence(generation)
    lstm_step = pytest.importorskip("elmo_fast.kernels.lstm_step")
    tile, = lstm_step.configs.tiles("lstm_step", generation, operands, amount)
    on_ptx = pytest.importorskip("tests.support.triton_on_ptx").on_ptx
    driver = on_ptx(monkeypatch, generation, tile)
    for slots, dim, projection in ((tile.bm + 6, tile.bn + 5, tile.bk + 3), (9, tile.bn, tile.bk)):
        given = step_operands(slots, dim, projection, operands)
        found, expected, few = ({name: each if each is None else each.clone(memory_format=torch.preserve_format)
                                 for name, each in given.items()} for _ in range(3))
        lstm_step.step(**found, operands=operands, cell_clip=0.9)
        assert driver.ran
        zh = torch.bmm(given["operand"].float(), given["w_h"].float())
        pointwise.gates(zh, *(expected[name] for name in POINTWISE), cell_clip=0.9)
        has_token = given["meta"][:2] >= 0
        for name, limit in (("c", 1e-6), ("m", 2e-3 if operands == "fp16" else 1e-2)):
            assert relative_error(found[name][has_token], expected[name][has_token]) < limit
        assert torch.equal(found["c"][~has_token], given["c"][~has_token]) and found["m"][~has_token].isnan().all()
        assert (found["c"].abs() == 0.9)[has_token].any()
        few |= {"operand": few["operand"][:, :5].contiguous(), "meta": few["meta"][:, :5].contiguous(),
                "c": few["c"][:, :5].contiguous(), "m": few["m"][:, :5].contiguous()}
        lstm_step.step(**few, operands=operands, cell_clip=0.9)
        assert all(torch.equal(few[name], found[name][:, :5]) for name in ("c", "m"))


@pytest.mark.long
@pytest.mark.parametrize("chip", [100, 120])
@pytest.mark.parametrize("operands", ["fp16", "bf16"])
def test_a_step_in_one_kernel_compiles_for_newer_chips(chip, operands, monkeypatch):
    lstm_step = pytest.importorskip("elmo_fast.kernels.lstm_step")
    triton_on_ptx = pytest.importorskip("tests.support.triton_on_ptx")
    generation, _ = triton_on_ptx.COMPILED[chip]
    skip_without_fence(generation)
    for amount in ("many", "few"):
        tile, = lstm_step.configs.tiles("lstm_step", generation, operands, amount)
        driver = triton_on_ptx.on_ptx(monkeypatch, chip, tile)
        lstm_step.step(**step_operands(9, 2 * tile.bn, 2 * tile.bk, operands), operands=operands, cell_clip=0.9)
        assert driver.ran


@pytest.mark.parametrize("dim, proj_clip, dtype", [
    (37, 3.0, torch.float16), (37, torch.inf, torch.bfloat16), (37, 1e5, torch.bfloat16),
    (11, torch.inf, torch.float16)])
def test_medium_takes_fp16_where_the_operands_are_bounded(dim, proj_clip, dtype):
    weights = flat_weights(layer(lstm_case((11, dim, 11)).leaves(wanted=[])))
    assert blocks.operands(weights, "medium", proj_clip).dtype == dtype
    assert blocks.operands(weights, "high", proj_clip).dtype == torch.float32
    weights[0][3, 5] = 4e4  # noticed although the copies are made
    assert blocks.operands(weights, "medium", proj_clip).dtype == torch.bfloat16


def test_rows_of_any_size_fit_fp16():
    """Each row within the rounding of its own size, for both directions from one table and from rows of their own."""
    case = lstm_case(clips=LOOSE)
    case.operands["inputs"][:4] *= torch.tensor([1e5, 1e30, 1e-3, 1.0])[:, None]
    check(case, "medium")
    operands = case.leaves(wanted=[])
    inputs, weights = operands["inputs"], flat_weights(layer(operands))
    with lstm.prepared(weights, "medium", (3.0, 3.0), inputs.device) as steps:
        arena = steps.arena
        for x in (inputs, torch.stack([inputs, inputs.flip(0)])):
            steps.project(x, False)
            for direction, rows in enumerate(x if x.dim() == 3 else (x, x)):
                gates = arena.z[: len(rows), direction].double().transpose(1, 2).flatten(1)
                found = gates * arena.scale[: len(rows), direction, None]
                expected = rows.double() @ operands[f"w_{direction}"][: rows.shape[1]].double()
                assert (((found - expected).norm(dim=1) / expected.norm(dim=1)) < 1e-3).all()


@pytest.mark.parametrize("slots, starts", [(None, False), (SLOTS, True)])
def test_registered_as_one_op(slots, starts):
    case = lstm_case(slots=slots, starts=starts, clips=TIGHT)
    call, _ = case.given(case.leaves(wanted=[]))
    with cuda_ops.registered_on_cpu():
        torch.library.opcheck(torch.ops.elmo_fast.projected_lstm.default, call.arguments())
