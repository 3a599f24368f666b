"""The child of a trial, `python -m elmo_fast.ops.trial_child FAMILY DEVICE NAME`: runs a family of kernels on a GPU.

Ops run on ragged shapes, LSTMs with starts of sequences and clips that fire. Results are compared with float64 in
PyTorch's operations, and have the same bits in all runs of a stream, also where two streams run at once.
"""

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from elmo_fast.engine.precision import GRADIENT_TOLERANCE, OPERANDS, operands_of
from elmo_fast.engine.schedule import make_schedule
from elmo_fast.ops import trial
from elmo_fast.ops.char_cnn import cuda as char_cnn_op
from elmo_fast.ops.char_cnn import pytorch, reference
from elmo_fast.ops.linear import cuda as linear_op
from elmo_fast.ops.linear import reference as linear_reference
from elmo_fast.ops.projected_lstm import reference as lstm_reference
from elmo_fast.ops.projected_lstm.arguments import LstmCall
from elmo_fast.ops.projected_lstm.cuda import choice, lstm, persistent

_RUNS = 20
_CLIPS = 0.3, 0.1  # of cells and of projected values
_PRODUCTS = ("highest", True), ("high", True), ("medium", True), ("medium", False)  # precision, and whether fp16 fits


class Case(NamedTuple):
    """`run` gives results, whose relative errors to the `exact` values are below `tolerance`.

    `same_bits`: in all runs on a stream.
    """

    title: str
    run: Callable[[], list[torch.Tensor]]
    exact: list[torch.Tensor]
    tolerance: float
    same_bits: bool = True


class Guarded(TorchDispatchMode):
    """In the body uninitialized memory is NaN and lies between two zones, which have to keep their values.

    Without zones: memory of 64 MiB and more, and that of operations' results.
    """

    _ZONE, _VALUE, _MOST = 4096, 0xA5, 1 << 26  # bytes
    _EMPTY = tuple(getattr(torch.ops.aten, name) for name in ("empty", "new_empty", "empty_like", "empty_strided"))

    def __init__(self, device: torch.device):
        super().__init__()
        self.device, self._zones = device, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket not in self._EMPTY or result.device.type != self.device.type:
            return result
        size = result.untyped_storage().nbytes()
        if not 0 < size < self._MOST:
            return result
        memory = torch.full((size + 2 * self._ZONE,), self._VALUE, dtype=torch.uint8, device=result.device)
        before, inside, after = memory.split([self._ZONE, size, self._ZONE])
        self._zones += [before, after]
        return inside.fill_(0xFF).view(result.dtype).as_strided(result.shape, result.stride())

    def are_kept(self) -> bool:
        """Whether all zones have their values."""
        return all(bool((zone == self._VALUE).all()) for zone in self._zones)

    @contextlib.contextmanager
    def forgetting(self) -> Iterator[None]:
        """After the body, zones of memory that was allocated in it are not looked at."""
        count = len(self._zones)
        yield
        del self._zones[count:]


def judge(case: Case, memory: Guarded, runs: int = _RUNS) -> None:
    """Raise `RuntimeError` unless the kernels of a case pass; `memory` of a family's cases, which share buffers."""
    def check(results: list[torch.Tensor], before: list[torch.Tensor]) -> None:
        errors = [float((result.double() - exact).norm() / exact.norm()) for result, exact in zip(results, case.exact)]
        if not all(error < case.tolerance for error in errors):
            raise RuntimeError(f"{case.title}: relative errors {errors}, expected less than {case.tolerance}")
        if case.same_bits and not all(map(torch.equal, results, before)):
            raise RuntimeError(f"{case.title}: other bits for the same inputs")
        if not memory.are_kept():
            raise RuntimeError(f"{case.title}: wrote outside of its outputs")

    device = memory.device
    streams = [torch.cuda.Stream(device) for _ in range(2)] if device.type == "cuda" else [None] * 2
    with torch.no_grad(), memory:
        case.run()  # compiles kernels; the next run captures graphs
        expected = case.run()
        for _ in range(runs):
            with memory.forgetting():
                check(case.run(), expected)
        first = None  # results of each stream, where cuBLAS may choose another order of sums
        for _ in range(3):
            results = []
            for stream in streams:
                with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
                    results.append(case.run())
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            first = first or results
            for each, before in zip(results, first):
                check(each, before)


# ---- families --------------------------------------------------------------------------------------------------------


class Normal:
    """Normal values in float64, the same on every machine."""

    def __init__(self, device: torch.device, seed: int = 0):
        self._device, self._generator = device, torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=self._generator, dtype=torch.float64) * scale).to(self._device)

    def weight(self, *shape: int) -> torch.Tensor:
        """A weight whose products have values of about the size of their inputs."""
        return self(*shape, scale=np.prod(shape[:-1]) ** -0.5)


def char_cnn(device: torch.device, counts: tuple[int, ...] = (9, 700)) -> Iterator[Case]:
    """Few tokens and many, of every length, with windows that are one product and those that are several."""
    normal, dim = Normal(device), 16
    embed = normal(261, dim)
    filters = [(normal.weight(1, width, dim, count), normal(count)) for width, count in ((1, 32), (2, 40), (7, 72))]
    activations = itertools.cycle(("relu", "tanh"))
    for (precision, bounded), count in itertools.product(_PRODUCTS, counts):
        position = torch.arange(50, device=device)
        ids = (normal(count, 50).abs() * 80).long().clamp(1, 260)
        ids[position >= 1 + (torch.arange(count, device=device) % 50)[:, None]] = pytorch.PADDING_ID
        floats = [embed.float(), *([pair[k].float() for pair in filters] for k in (0, 1))]
        activation = next(activations)
        run = functools.partial(char_cnn_op.forward, ids, *floats, activation, precision, bounded, False)
        yield Case(f"{count} tokens in {precision}", lambda run=run: [run()[0]],
                   [reference.char_cnn(ids, embed, filters, activation)], _tolerance(precision, bounded))


def _tolerance(precision: str, bounded: bool) -> float:
    return OPERANDS[operands_of(precision, bounded)].tolerance


def highway(device: torch.device, shapes: tuple[tuple[int, int], ...] = ((9, 71), (700, 256))) -> Iterator[Case]:
    """Few tokens and many, of sizes that tiles divide and do not divide."""
    normal = Normal(device)
    for (precision, bounded), (rows, size) in itertools.product(_PRODUCTS[1:], shapes):
        x, weights = normal(rows, size), [make() for _ in range(2) for make in (
            functools.partial(normal.weight, size, size), functools.partial(normal, size))]
        floats = [part.float() for part in weights]
        run = functools.partial(linear_op.highway, x.float(), floats, precision, bounded)
        yield Case(f"{rows} tokens of {size} in {precision}", lambda run=run: [run()],
                   [linear_reference.highway(x, *weights)], _tolerance(precision, bounded))


def layer(device: torch.device, precision: str, path: str, dim: int, projection: int, slots: int,
          steps: int = 6) -> Case:
    """A layer of the LSTM over tokens of so many slots, all but the first of fewer steps, and of a slot without any."""
    call = _call(device, dim, projection, [steps, *(1 + slot % steps for slot in range(1, slots)), 0])
    run = functools.partial(lstm.run, *_float(call, precision).arguments(), path=path)
    return Case(f"{slots} slots in {precision}", lambda: list(run()[:3]), _exact(call), _tolerance(precision, True))


def training(device: torch.device, dim: int, projection: int, slots: int) -> Case:
    """As `layer`, with the gradients of inputs and weights."""
    call = _call(device, dim, projection, [1 + slot % 6 for slot in range(slots)])
    leaves = [leaf.requires_grad_() for leaf in call.tensors]
    with torch.enable_grad():
        exact = _exact(call)
        grads = [Normal(device, 1)(*result.shape) for result in exact]
        gradients = torch.autograd.grad(exact, leaves, grads)
    arguments, grads = _float(call, "highest").arguments(save=True), [grad.float() for grad in grads]

    def run():
        *results, saved = lstm.run(*arguments)
        inputs, h, c, *rest = lstm.run_backward(*grads, saved, [True] * len(leaves), *arguments)
        return [*results, inputs, h, c, *rest]

    return Case("gradients", run, [*(result.detach() for result in exact), *gradients], GRADIENT_TOLERANCE, False)


def _call(device: torch.device, dim: int, projection: int, lengths: list[int]) -> LstmCall:
    """A layer in float64 over so many tokens of every slot, cut into sequences; the first of even slots continue."""
    normal, cuts = Normal(device), np.random.default_rng(0)
    slots, counts = np.array([(slot, count) for slot, length in enumerate(lengths) for count in np.diff(
        [0, *(1 + np.flatnonzero(cuts.random(max(0, length - 1)) < 0.3)), length])]).T
    schedule = make_schedule(counts, slots, continued=np.diff(slots, prepend=-1) * (slots % 2 == 0) > 0)
    weights = tuple((normal.weight(2 * projection, 4 * dim), normal(4 * dim, scale=0.3), normal.weight(dim, projection))
                    for _ in range(2))
    state, initial = (tuple(normal(*shape, 2 * size, scale=0.1) for size in (projection, dim))
                      for shape in ((len(lengths),), ()))
    return LstmCall(normal(sum(lengths), 2 * projection), None, schedule, state, weights, *_CLIPS, initial)


def _float(call: LstmCall, precision: str) -> LstmCall:
    parts = {name: torch.utils._pytree.tree_map(lambda tensor: tensor.detach().float(), getattr(call, name))
             for name in ("inputs", "state", "weights", "initial_state")}
    return LstmCall(**vars(call) | parts | {"precision": precision})


def _exact(call: LstmCall) -> list[torch.Tensor]:
    out, state = lstm_reference.projected_lstm(
        call.inputs, None, call.schedule, call.state, call.weights, cell_clip=call.cell_clip, proj_clip=call.proj_clip,
        initial_state=call.initial_state)
    return [out, *state]


def cases(family: str, device: torch.device) -> Iterator[Case]:
    """The cases of a family."""
    name, *sizes = family.split()
    if name == "persistent":  # every instance of the kernel, and more steps than its counters have phases
        sizes = tuple(map(int, sizes))
        for slots, steps in ((1, 300), (7, 6), (16, 6), (32, 6), (persistent.MOST_SLOTS, 6)):
            if not persistent.does_not_fit(device, *sizes, slots):
                yield layer(device, "medium", choice.PERSISTENT, *sizes, slots, steps)
    elif name in ("char_cnn", "highway"):
        yield from {"char_cnn": char_cnn, "highway": highway}[name](device)
    else:
        for precision, slots in itertools.product(("highest", "high", "medium"), (1, 40)):
            case = layer(device, precision, choice.GRAPH, 700, 530, slots, 40)
            yield case._replace(same_bits=name == "pointwise")  # cuBLAS has another workspace in captures
        if name == "pointwise":
            yield training(device, 600, 53, 3)


def main(family: str, index: str, name: str) -> int:
    """Exit status of a child; prints `passed NAME` after a pass."""
    device = torch.device("cuda", int(index))
    # Others' kernels do not run, but those of a step are captured.
    allowed = {family, "pointwise"} if family == "captures" else {family}
    trial.trials = SimpleNamespace(
        why_not=lambda _, other: None if other in allowed else "another family is tried",
        watching=lambda _: contextlib.nullcontext())
    memory = None
    try:
        torch.zeros(1, device=device)
        if trial.file_name(device.index, family) != name:
            raise RuntimeError("the child sees another GPU or other packages than the caller")
        memory = Guarded(device)
        for case in cases(family, device):
            judge(case, memory)
    except (RuntimeError, AssertionError) as error:  # the latter from a PyTorch without CUDA
        if memory and not any(words in str(error) for words in ("out of memory", "ALLOC_FAILED")):
            raise
        print(str(error).partition("\n")[0], file=sys.stderr)
        return trial.POSTPONED
    print(f"passed {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
