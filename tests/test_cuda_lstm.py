"""The LSTM on a GPU, where there is one: tier A against float64, in graphs, on several streams, without waiting."""

import gc

import pytest
import test_projected_lstm as op_tests
import torch
from models import SENTENCES, SHAPES, bilm
from tolerances import AGAINST_FLOAT64, SAME_MODEL, relative_error

from elmo_fast.model.layout import in_text_order
from elmo_fast.ops import torch_lstm_pointwise
from elmo_fast.ops.cuda import choice, lstm, steps
from elmo_fast.ops.projected_lstm import projected_lstm
from elmo_fast.ops.schedule import make_schedule

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]
LIMITS = {"highest": AGAINST_FLOAT64["highest"], "high": AGAINST_FLOAT64["high-tf32"],
          "medium": AGAINST_FLOAT64["medium-fp16"]}


@pytest.fixture(autouse=True)
def tier(monkeypatch):
    monkeypatch.setenv(choice.VARIABLE, choice.GRAPH)
    torch.use_deterministic_algorithms(False)  # cuBLAS asks for an environment variable otherwise


def operands(of, seed=0):
    inputs, index, state = op_tests.draw(of, torch.float32, seed)
    return inputs.cuda(), index, tuple(each.cuda() for each in state)


def layer(of, number=0):
    return tuple(tuple(None if each is None else each.cuda() for each in direction)
                 for direction in op_tests.layer(of, torch.float32, number))


def run(of, inputs, index, state, weights, precision="highest", rows_on="cpu"):
    schedule = make_schedule(op_tests.LENGTHS)
    order = torch.from_numpy(schedule.tokens).long()
    found, final = projected_lstm(inputs, index[order].to(rows_on), schedule, state, weights, cell_clip=of.lstm.cell_clip,
                                  proj_clip=of.lstm.proj_clip, backend="native", precision=precision)
    return in_text_order(found, order.cuda()), final


@pytest.mark.parametrize("kernels", ["triton", "torch"])
@pytest.mark.parametrize("rows_on", ["cpu", "cuda"])
@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("shape", ["two layers", "no projection", "clips that fire"])
def test_agrees_with_float64_plainly_and_replayed(shape, precision, rows_on, kernels, monkeypatch):
    if kernels == "torch":
        monkeypatch.setattr(steps, "pointwise_of", lambda device: torch_lstm_pointwise)
    elif reason := steps.why_no_triton(torch.device("cuda", torch.cuda.current_device())):
        pytest.skip(reason)
    of, weights = SHAPES[shape], layer(SHAPES[shape])
    monkeypatch.setattr(lstm, "_arenas", lstm.Arenas())
    for seed in range(4):
        truth = op_tests.run(of, *op_tests.draw(of, seed=seed), "reference")
        found = run(of, *operands(of, seed), weights, precision, rows_on)
        for one, other in zip((found[0], *found[1]), (truth[0], *truth[1])):
            assert relative_error(one.cpu(), other) < LIMITS[precision]
    (arena, _), = lstm._arenas._kept.values()
    assert sum(len(each._graphs) for bucket in arena._buckets.values() for each in bucket._graphs.values()) >= 2


@pytest.mark.parametrize("precision", LIMITS)
def test_nothing_is_waited_for(precision):
    of, weights = SHAPES["clips that fire"], layer(SHAPES["clips that fire"])
    given = operands(of)
    for _ in range(3):
        run(of, *given, weights, precision)
    torch.cuda.synchronize()
    schedule = make_schedule(op_tests.LENGTHS)
    rows = given[1][torch.from_numpy(schedule.tokens).long()]
    torch.cuda.set_sync_debug_mode("error")
    try:
        projected_lstm(given[0], rows, schedule, given[2], weights, cell_clip=0.3, proj_clip=0.05, backend="native",
                       precision=precision)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_streams_do_not_disturb_each_other():
    of, weights = SHAPES["clips that fire"], [layer(SHAPES["clips that fire"], number) for number in (0, 1)]
    given = [operands(of, seed) for seed in (0, 1)]
    expected = [run(of, *each, w)[0].clone() for each, w in zip(given, weights)]
    streams = [torch.cuda.Stream() for _ in given]
    torch.cuda.synchronize()
    for _ in range(20):
        found = []
        for stream, each, w in zip(streams, given, weights):
            with torch.cuda.stream(stream):
                found.append(run(of, *each, w)[0])
        torch.cuda.synchronize()
        for one, other in zip(found, expected):
            assert torch.allclose(one, other, atol=SAME_MODEL)


def test_memory_goes_with_the_last_model():
    torch.cuda.synchronize()
    gc.collect()
    before, arenas = torch.cuda.memory_allocated(), len(lstm._arenas)
    model = bilm(SHAPES["two layers"], backend="auto").cuda()
    for _ in range(3):
        model.embed_tokens(SENTENCES)
    del model
    gc.collect()
    torch.cuda.synchronize()
    assert len(lstm._arenas) == arenas
    assert torch.cuda.memory_allocated() - before < 1 << 26  # cuBLAS may have set up its workspace
