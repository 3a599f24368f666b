"""Calls of the ops on operands drawn in float64, and their comparison with the reference."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from unittest import mock

import numpy as np
import torch

from elmo_fast.engine import native
from elmo_fast.engine.schedule import make_schedule
from elmo_fast.ops.char_cnn import char_cnn
from elmo_fast.ops.linear import highway, linear
from elmo_fast.ops.projected_lstm import projected_lstm
from elmo_fast.ops.projected_lstm.arguments import LstmCall
from elmo_fast.testing import relative_error
from elmo_fast.text.characters import encode_tokens, to_model_ids
from tests.support import cuda_ops
from tests.support.cuda_ops import on_backend
from tests.support.engines import REFERENCE
from tests.support.models import SENTENCES, weights

LENGTHS = [3, 1, 0, 7, 4, 1, 5]
SLOTS = np.array([0, 1, 1, 0, 2, 1, 0])  # of these sentences
TIGHT = {"cell_clip": 0.3, "proj_clip": 0.08}
LOOSE = {"cell_clip": 3.0, "proj_clip": 3.0}
TOKENS = sorted({token for sentence in SENTENCES for token in sentence} | {"<S>", "</S>"} |
                {"a" * n for n in range(49)})


def normal(*shape, seed=0, scale=1.0):
    """Normal float64 values; `seed` is a number or a generator."""
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale


def keep_from_zero(operands):
    """Enlarge small values of matrices until none rounds to zero in `low`: an infinity times a zero is NaN."""
    for values in operands:
        if values.dim() == 2:
            values.copy_(values.sign() * values.abs().clamp_min(float(values[values.abs() < 1e30].abs().max()) / 200))


def assert_same_nonfinite(actual, expected):
    """Assert that NaN and infinities, by sign, are at the same places."""
    assert torch.equal(actual.isnan(), expected.isnan()) and torch.equal(actual.isinf(), expected.isinf())
    assert torch.equal(actual[expected.isinf()], expected[expected.isinf()].float())


@dataclasses.dataclass(frozen=True)
class Case:
    """A call of an op: its operands by name, and the op as a function of them."""

    operands: dict
    function: Callable | None = None

    def call(self, operands, backend, precision="highest"):
        """The results; operands of any type."""
        return (self.function(*operands.values(), backend=backend, precision=precision),)

    def leaves(self, dtype=torch.float32, wanted=None, device="cpu"):
        """Operands that record gradients: those in `wanted`, or all."""
        return {name: each.detach().to(device, dtype, copy=True).requires_grad_(wanted is None or name in wanted)
                for name, each in self.operands.items()}

    def run(self, engine, **settings):
        """Results without gradients."""
        with torch.no_grad(), engine.active():
            return self.call(self.leaves(engine.dtype), engine.backend, engine.precision, **settings)

    def backward(self, results):
        """Runs backward from random gradients, the same for every type."""
        results = [each for each in results if each.requires_grad]
        if results:
            torch.autograd.backward(results, [normal(*each.shape, seed=9).to(each) for each in results])

    def gradients(self, engine, wanted=None, of=slice(None)):
        """Results by number, and by name the gradients of the results in `of`, for operands in `wanted` or all."""
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
            for name, actual in (self.gradients(engine) if trains else dict(enumerate(self.run(engine)))).items():
                truth, limit = expected[name], engine.limits[isinstance(name, str)]
                assert actual.shape == truth.shape
                if truth.norm() == 0:
                    assert not actual.any(), (engine, name)
                elif relative_error(actual, truth) >= limit:
                    moved = [self.moved(limit, seed).gradients(REFERENCE)[name] for seed in range(8)]
                    allowed = max((each - truth).norm() for each in moved)
                    assert (actual - truth).norm() < allowed, (engine, name)

    def moved(self, fraction, seed):
        """The same call with every operand moved up or down by `fraction` of itself.

        Where sums cancel, results move by more than the fraction, however they are computed.
        """
        return dataclasses.replace(self, operands={name: each * (1 + fraction * normal(*each.shape, seed=seed).sign())
                                                   for name, each in self.operands.items()})


def char_cnn_case(of, ids=None, change=lambda weight: weight):
    """The char-CNN of a model on `TOKENS` or other ids; `change` edits embedding and kernels."""
    parameters = {name: torch.from_numpy(values).double() for name, values in weights(of).items()}
    if ids is None:
        ids = torch.from_numpy(to_model_ids(encode_tokens(TOKENS, of.char_cnn.max_characters_per_token))).long()

    def function(table, *parts, **settings):
        return on_backend(char_cnn, ids, table, list(zip(parts[::2], parts[1::2])), of.char_cnn.activation, **settings)

    operands = {"char_embed": change(parameters["char_embed"])}
    for i in range(len(of.char_cnn.filters)):
        operands |= {f"w_{i}": change(parameters[f"CNN/W_cnn_{i}"]), f"b_{i}": parameters[f"CNN/b_cnn_{i}"]}
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

    def given(self, operands, **settings):
        """The op's arguments, and the token of each packed row: int64 [2, S] as `Schedule.tokens`."""
        schedule = make_schedule(self.lengths, self.slots)
        order, inputs = torch.from_numpy(schedule.tokens).long(), operands["inputs"]
        if self.index is None:
            inputs = torch.cat([half[tokens] for half, tokens in zip(inputs.chunk(2, dim=1), order)], dim=1)
        initial_state = (operands["initial_h"], operands["initial_c"]) if "initial_h" in operands else None
        return LstmCall(inputs, None if self.index is None else self.index[order], schedule,
                        (operands["h"], operands["c"]), layer(operands), **self.clips, initial_state=initial_state,
                        **settings), order

    def call(self, operands, backend, precision="highest", bounded=False, path=None):
        """Outputs in the order of the text, and the final h and c.

        The backend "cuda" is the GPU's on any device, on the `path` that `choice.choose` takes.
        """
        call, order = self.given(operands, precision=precision, bounded=bounded)
        op = (functools.partial(cuda_ops.projected_lstm, path=path) if backend == "cuda"
              else functools.partial(projected_lstm, backend=backend))
        steps, final = op(**vars(call))
        return torch.cat([half[tokens.argsort()] for half, tokens in zip(steps.chunk(2, dim=1), order)], dim=1), *final

    def part(self, numbers, state=None):
        """The case of these sentences alone, one per slot, and their tokens."""
        ends = np.cumsum(self.lengths)
        tokens = np.concatenate([np.arange(ends[k] - self.lengths[k], ends[k]) for k in numbers])
        h, c = (self.operands[name][numbers] for name in "hc") if state is None else state
        return dataclasses.replace(self, operands=self.operands | {"h": h, "c": c}, index=self.index[tokens],
                                   lengths=[self.lengths[k] for k in numbers], slots=None), tokens


def lstm_case(sizes=(11, 37, 11), lengths=LENGTHS, slots=None, gathered=True, starts=False, clips=None, seed=0,
              unique=None):
    """`sizes` of inputs, cells and projection; `unique` rows of inputs, of which tokens read any."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape, scale=0.3):
        return normal(*shape, seed=generator, scale=scale)

    (width, dim, projection), tokens = sizes, sum(lengths)
    count, unique = len(lengths) if slots is None else max(slots) + 1, unique or max(1, tokens // 3)
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


def layer(operands):
    """The weights among an LSTM's operands as the op takes them, forward then backward."""
    return tuple(tuple(operands.get(f"{name}_{d}") for name in "wbp") for d in (0, 1))


def on_threads(count, function, *arguments):
    """`function(*arguments)` while torch has `count` threads, however many processors there are."""
    with threads(count):
        return function(*arguments)


@contextlib.contextmanager
def threads(count):
    """Inside a with block torch and the engine have `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with mock.patch.object(native, "cores", return_value=count):
            yield
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
