"""The first layer from a table of its input products: the numbers of the direct path."""

import numpy as np
import pytest
import torch

from elmo_fast.ops.projected_lstm import accepts_input_projections, input_projections, projected_lstm
from elmo_fast.ops.schedule import make_schedule
from tests.support.models import SHAPES
from tests.support.native_lstm import ISAS, isa
from tests.support.op_cases import ALL, LENGTHS, draw, dtype_of, layer, same


def both(of, backend, initial_state=False, lengths=LENGTHS):
    """Outputs and state of the direct path, then from products."""
    inputs, index, state = draw(of, dtype_of(backend))
    weights = layer(of, inputs.dtype)
    schedule = make_schedule(lengths)
    rows = index[torch.from_numpy(schedule.tokens).long()]
    fresh = tuple(each[0] for each in state) if initial_state else None
    clips = {"cell_clip": of.lstm.cell_clip, "proj_clip": of.lstm.proj_clip, "initial_state": fresh, "backend": backend}
    direct = projected_lstm(inputs, rows, schedule, state, weights, **clips)
    products = input_projections(inputs, weights, backend=backend)
    assert products.shape == (6, 8 * of.lstm.dim)
    tabled = projected_lstm(products, rows, schedule, state, weights, precomputed=True, **clips)
    return [direct[0], *direct[1]], [tabled[0], *tabled[1]]


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("shape", ["two layers", "no projection", "clips that fire", "no clips"])
@pytest.mark.parametrize("initial_state", [False, True])
def test_products_give_the_direct_numbers(shape, backend, initial_state):
    direct, tabled = both(SHAPES[shape], backend, initial_state)
    for one, other in zip(direct, tabled):
        assert same(one, other, backend)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_to_the_bit_on_every_instruction_set(name, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with isa(name):
            for one, other in zip(*both(SHAPES["clips that fire"], "native")):
                assert torch.equal(one, other)
    finally:
        torch.set_num_threads(before)


def test_long_sums_in_many_chunks():
    """More inputs than one accumulation chain, more unique rows than one chunk of steps."""
    generator = torch.Generator().manual_seed(0)
    width, dim, projection, rows, slots = 600, 40, 24, 700, 9
    inputs = torch.randn(rows, width, generator=generator)
    weights = tuple((torch.randn(width + projection, 4 * dim, generator=generator) / 30,
                     torch.randn(4 * dim, generator=generator), torch.randn(dim, projection, generator=generator) / 6)
                    for _ in range(2))
    lengths = np.full(slots, 150)
    schedule = make_schedule(lengths)
    index = torch.randint(0, rows, (2, int(lengths.sum())), generator=generator)
    state = torch.zeros(slots, 2 * projection), torch.zeros(slots, 2 * dim)
    direct = projected_lstm(inputs, index, schedule, state, weights, backend="native")
    products = input_projections(inputs, weights, backend="native")
    tabled = projected_lstm(products, index, schedule, state, weights, precomputed=True, backend="native")
    assert torch.equal(direct[0], tabled[0]) and torch.equal(direct[1][1], tabled[1][1])


def test_refusals():
    of = SHAPES["two layers"]
    inputs, index, state = draw(of)
    schedule, weights = make_schedule(LENGTHS), layer(of)
    expected = "rows: expected the row of inputs that each packed row reads, since inputs are precomputed"
    with pytest.raises(ValueError, match=expected):
        projected_lstm(torch.zeros(21, 8 * 37), None, schedule, state, weights, precomputed=True)
    rows = index[torch.from_numpy(schedule.tokens).long()]
    with pytest.raises(ValueError, match=r"inputs: expected shape \(6, 296\), got \(6, 11\)"):
        projected_lstm(inputs, rows, schedule, state, weights, precomputed=True)


def test_products_are_not_for_training_nor_for_dropped_weights():
    weights = layer(SHAPES["two layers"], torch.float32, requires_grad=True)
    assert not accepts_input_projections("auto", "highest", weights)
    with torch.no_grad():
        assert accepts_input_projections("native", "highest", weights)
        assert accepts_input_projections("torch", "medium", weights)
        assert not accepts_input_projections("reference", "highest", weights)
        dropped = tuple((w.to("meta"), b, p) for w, b, p in weights)
        assert not accepts_input_projections("native", "highest", dropped)
