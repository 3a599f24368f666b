"""Calls of the ops on operands drawn in float64, and their comparison with the reference."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import torch

from elmo_fast.model.weights import lstm_name
from elmo_fast.ops.char_cnn import char_cnn
from elmo_fast.ops.linear import highway, linear
from elmo_fast.ops.projected_lstm import input_projections, projected_lstm
from elmo_fast.ops.schedule import make_schedule
from elmo_fast.testing import relative_error
from elmo_fast.text.characters import encode_tokens, to_model_ids
from tests.support.cuda_ops import on_backend
from tests.support.engines import REFERENCE
from tests.support.models import SENTENCES, weights

LENGTHS = [3, 1, 0, 7, 4, 1, 5]
SLOTS = np.array([0, 1, 1, 0, 2, 1, 0])  # of those sentences
TIGHT = {"cell_clip": 0.3, "proj_clip": 0.08}
TOKENS = sorted({token for sentence in SENTENCES for token in sentence} | {"<S>", "</S>"} |
                {"a" * n for n in range(49)})


def normal(*shape, seed=0, scale=1.0):
    """Float64; `seed` a number or a generator."""
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale


@dataclasses.dataclass(frozen=True)
class Case:
    """A call of an op: its operands by name, and the op as a function of them."""

    operands: dict
    function: Callable | None = None

    def call(self, operands, backend, precision="highest"):
        """The results; operands of any type."""
        return (self.function(*operands.values(), backend=backend, precision=precision),)

    def leaves(self, dtype=torch.float32, wanted=None):
        """Operands that record gradients: those in `wanted`, or all."""
        return {name: each.detach().to(dtype, copy=True).requires_grad_(wanted is None or name in wanted)
                for name, each in self.operands.items()}

    def run(self, engine, **how):
        """Results without gradients."""
        with torch.no_grad(), engine.active():
            return self.call(self.leaves(engine.dtype), engine.backend, engine.precision, **how)

    def backward(self, results):
        """Runs backward from random gradients, the same for every type."""
        results = [each for each in results if each.requires_grad]
        if results:
            torch.autograd.backward(results, [normal(*each.shape, seed=9).to(each.dtype) for each in results])

    def gradients(self, engine, wanted=None, of=slice(None)):
        """Results by number, and by name the gradients, of the results in `of`, of operands in `wanted` or all."""
        with engine.active():
            leaves = self.leaves(engine.dtype, wanted)
            results = self.call(leaves, engine.backend)
            self.backward(results[of])
        return dict(enumerate(each.detach() for each in results)) | {
            name: each.new_zeros(each.shape) if each.grad is None else each.grad
            for name, each in leaves.items() if each.requires_grad}

    def check(self, *engines):
        """Results, and gradients where the engine has them, against the reference in float64."""
        expected = self.gradients(REFERENCE)
        for engine in engines:
            trains = engine.precision == "highest"
            for name, found in (self.gradients(engine) if trains else dict(enumerate(self.run(engine)))).items():
                truth, limit = expected[name], engine.limits[isinstance(name, str)]
                assert found.shape == truth.shape
                if truth.norm() == 0:
                    assert not found.any(), (engine, name)
                elif relative_error(found, truth) >= limit:
                    moved = [self.moved(limit, seed).gradients(REFERENCE)[name] for seed in range(8)]
                    allowed = max((each - truth).norm() for each in moved)
                    assert (found - truth).norm() < allowed, (engine, name)

    def moved(self, fraction, seed):
        """The same call, each operand moved up or down by that fraction of itself.

        Where sums cancel, results move by more than the fraction, however they are computed.
        """
        return dataclasses.replace(self, operands={
            name: each * (1 + fraction * normal(*each.shape, seed=seed).sign()) for name, each in self.operands.items()})


def char_cnn_case(of, ids=None, change=lambda weight: weight):
    """The char-CNN of a model on `TOKENS` or other ids; `change` edits embedding and kernels."""
    drawn = {name: torch.from_numpy(values).double() for name, values in weights(of).items()}
    if ids is None:
        ids = torch.from_numpy(to_model_ids(encode_tokens(TOKENS, of.char_cnn.max_characters_per_token))).long()

    def function(table, *parts, **how):
        return on_backend(char_cnn, ids, table, list(zip(parts[::2], parts[1::2])), of.char_cnn.activation, **how)

    operands = {"char_embed": change(drawn["char_embed"])}
    for i in range(len(of.char_cnn.filters)):
        operands |= {f"w_{i}": change(drawn[f"CNN/W_cnn_{i}"]), f"b_{i}": drawn[f"CNN/b_cnn_{i}"]}
    return Case(operands, function)


def linear_case(rows, inputs, outputs):
    sizes = {"x": (rows, inputs), "weight": (inputs, outputs), "bias": (outputs,)}
    return Case({name: normal(*size, seed=len(name)) + 0.5 for name, size in sizes.items()},
                functools.partial(on_backend, linear))


def highway_case(rows=9, size=33, _=None):
    sizes = {"x": (rows, size), "w_carry": (size, size), "b_carry": (size,), "w_transform": (size, size),
             "b_transform": (size,)}
    return Case({name: normal(*shape, seed=len(name), scale=0.25) for name, shape in sizes.items()},
                functools.partial(on_backend, highway))


@dataclasses.dataclass(frozen=True)
class LstmCase(Case):
    """One layer over running text. Without `index`, `inputs` [tokens, 2 I] have a half for each direction."""

    lengths: list = dataclasses.field(default_factory=list)
    slots: np.ndarray | None = None
    index: torch.Tensor | None = None  # int64 [tokens]: the row of `inputs` of each token
    clips: dict = dataclasses.field(default_factory=dict)

    def call(self, operands, backend, precision="highest", precomputed=False):
        """Outputs in the order of the text, and the final h and c."""
        layer = tuple(tuple(operands.get(f"{name}_{d}") for name in "wbp") for d in (0, 1))
        initial_state = (operands["initial_h"], operands["initial_c"]) if "initial_h" in operands else None
        inputs = operands["inputs"]
        if precomputed:
            inputs = input_projections(inputs, layer, backend=backend)
        out, final = run_text(inputs, self.index, (operands["h"], operands["c"]), layer, self.lengths, self.slots,
                              **self.clips, initial_state=initial_state, precomputed=precomputed, backend=backend,
                              precision=precision)
        return out, *final

    def part(self, numbers, state=None):
        """Those sentences alone, in a slot each, and their tokens."""
        ends = np.cumsum(self.lengths)
        tokens = np.concatenate([np.arange(ends[k] - self.lengths[k], ends[k]) for k in numbers])
        h, c = (self.operands[name][numbers] for name in "hc") if state is None else state
        return dataclasses.replace(self, operands=self.operands | {"h": h, "c": c}, index=self.index[tokens],
                                   lengths=[self.lengths[k] for k in numbers], slots=None), tokens


def lstm_case(sizes=(11, 37, 11), lengths=LENGTHS, slots=None, gathered=True, starts=False, clips=None, seed=0):
    """`sizes` of inputs, cells and projection."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape, scale=0.3):
        return normal(*shape, seed=generator, scale=scale)

    (width, dim, projection), tokens = sizes, sum(lengths)
    count, unique = len(lengths) if slots is None else max(slots) + 1, max(1, tokens // 3)
    operands = {"inputs": random(unique, width, scale=1) if gathered else random(tokens, 2 * width, scale=1),
                "h": random(count, 2 * projection), "c": random(count, 2 * dim)}
    for d in (0, 1):
        operands |= {f"w_{d}": random(width + projection, 4 * dim, scale=(width + projection) ** -0.5),
                     f"b_{d}": random(4 * dim)}
        if dim != projection:
            operands[f"p_{d}"] = random(dim, projection, scale=dim ** -0.5)
    if starts:
        operands |= {"initial_h": random(2 * projection), "initial_c": random(2 * dim)}
    index = torch.randint(0, unique, (tokens,), generator=generator) if gathered else None
    return LstmCase(operands, None, lengths, slots, index, clips or {})


def run_text(inputs, index, state, weights, lengths=LENGTHS, slots=None, **more):
    """`projected_lstm` over running text: outputs in its order, and the final state."""
    schedule = make_schedule(lengths, slots)
    order = torch.from_numpy(schedule.tokens).long()
    if index is None:
        inputs, rows = torch.cat([half[tokens] for half, tokens in zip(inputs.chunk(2, dim=1), order)], dim=1), None
    else:
        rows = index[order]
    steps, final = projected_lstm(inputs, rows, schedule, state, weights, **more)
    return text_order(steps, order), final


def text_order(steps, order):
    """Outputs [S, 2 P] of packed rows -> of tokens in running text; `order` int64 [2, S] as `Schedule.tokens`."""
    halves = [torch.empty_like(half).index_copy(0, tokens, half) for half, tokens in zip(steps.chunk(2, dim=1), order)]
    return torch.cat(halves, dim=1)


def layer(of, dtype=torch.float64, number=0, requires_grad=False):
    """The weights of LSTM layer `number` of a model, forward then backward."""
    drawn = {name: torch.tensor(values, dtype=dtype, requires_grad=requires_grad)
             for name, values in weights(of).items()}
    return tuple(tuple(drawn.get(lstm_name(direction, number, name)) for name in ("W_0", "B", "W_P_0"))
                 for direction in (0, 1))


def draw(of, dtype=torch.float64, seed=0):
    """Six input rows, the row of each token in running text, and a state for each sentence's slot."""
    generator = torch.Generator().manual_seed(seed)
    inputs = normal(6, of.lstm.projection_dim, seed=generator).to(dtype)
    index = torch.randint(0, 6, (sum(LENGTHS),), generator=generator)
    return inputs, index, tuple(normal(len(LENGTHS), 2 * size, seed=generator, scale=0.25).to(dtype)
                                for size in (of.lstm.projection_dim, of.lstm.dim))


def run(of, inputs, index, state, backend, lengths=LENGTHS, slots=None, initial_state=None, weights=None):
    """`run_text` with the clips and, unless given, the weights of a model."""
    return run_text(inputs, index, state, weights or layer(of, inputs.dtype), lengths, slots, backend=backend,
                    cell_clip=of.lstm.cell_clip, proj_clip=of.lstm.proj_clip, initial_state=initial_state)


def on_threads(count, function, *arguments):
    """`function(*arguments)` while torch has `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return function(*arguments)
    finally:
        torch.set_num_threads(before)


class RecordedOps(torch.utils._python_dispatch.TorchDispatchMode):
    """This project's ops that run inside a with block: `calls` has (op, arguments)."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "elmo_fast":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))
