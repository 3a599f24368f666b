"""Operands for the tests of the ops: layers of the small models, running text, and one call over it."""

import torch

from elmo_fast.model.weights import lstm_name
from elmo_fast.ops.projected_lstm import projected_lstm
from elmo_fast.ops.schedule import make_schedule
from elmo_fast.text.characters import encode_tokens, to_model_ids
from tests.support.models import SENTENCES, weights

FAST = ["torch", "native"]
ALL = ["reference", *FAST]
LENGTHS = [3, 1, 0, 7, 4, 1, 5]
TOKENS = sorted({token for sentence in SENTENCES for token in sentence} | {"<S>", "</S>"} |
                {"a" * n for n in range(49)})


def layer(of, dtype=torch.float64, number=0, requires_grad=False):
    """The weights of LSTM layer `number`, forward then backward."""
    drawn, names = weights(of), ("W_0", "B", "W_P_0") if of.lstm.is_projected else ("W_0", "B")

    def direction_weights(direction):
        parts = [torch.tensor(drawn[lstm_name(direction, number, name)], dtype=dtype, requires_grad=requires_grad)
                 for name in names]
        return tuple(parts) if of.lstm.is_projected else (*parts, None)

    return direction_weights(0), direction_weights(1)


def dtype_of(backend):
    return torch.float32 if backend == "native" else torch.float64


def same(found, expected, backend):
    """To the bit where the order of sums is fixed, to rounding in float64 elsewhere."""
    if backend == "native":
        return torch.equal(found, expected)
    return torch.allclose(found, expected, rtol=1e-12, atol=1e-14)


def draw(of, dtype=torch.float64, seed=0):
    """Six input rows, the row of each token in running text, and a state for each sentence's slot."""
    generator = torch.Generator().manual_seed(seed)
    p, d = of.lstm.projection_dim, of.lstm.dim
    inputs = torch.randn(6, p, generator=generator, dtype=torch.float64).to(dtype)
    index = torch.randint(0, 6, (sum(LENGTHS),), generator=generator)
    state = tuple(torch.randn(len(LENGTHS), 2 * size, generator=generator, dtype=torch.float64).to(dtype) / 4
                  for size in (p, d))
    return inputs, index, state


def run(of, inputs, index, state, backend, lengths=LENGTHS, slots=None, initial_state=None, weights=None):
    """Outputs in the order of the text, and the final state."""
    schedule = make_schedule(lengths, slots)
    order = torch.from_numpy(schedule.tokens).long()
    steps, final = projected_lstm(inputs, index[order], schedule, state, weights or layer(of, inputs.dtype),
                                  cell_clip=of.lstm.cell_clip, proj_clip=of.lstm.proj_clip, initial_state=initial_state,
                                  backend=backend)
    return text_order(steps, order), final


def text_order(steps, order):
    """Outputs [S, 2 P] of packed rows -> of tokens in running text; `order` int64 [2, S] as `Schedule.tokens`."""
    halves = [torch.empty_like(half).index_copy(0, tokens, half) for half, tokens in zip(steps.chunk(2, dim=1), order)]
    return torch.cat(halves, dim=1)


def char_cnn_arguments(of, dtype=torch.float64, requires_grad=False):
    """Ids of `TOKENS`, the character embedding, the filters and the activation of a model."""
    drawn = {name: torch.tensor(values, dtype=dtype, requires_grad=requires_grad)
             for name, values in weights(of).items()}
    count = len(of.char_cnn.filters)
    filters = [(drawn[f"CNN/W_cnn_{i}"], drawn[f"CNN/b_cnn_{i}"]) for i in range(count)]
    ids = torch.from_numpy(to_model_ids(encode_tokens(TOKENS, of.char_cnn.max_characters_per_token))).long()
    return ids, drawn["char_embed"], filters, of.char_cnn.activation


def highway_arguments(dtype):
    """x [9, 33] and the weights of a highway layer."""
    generator = torch.Generator().manual_seed(0)
    x, w_c, w_t = (torch.randn(shape, generator=generator, dtype=torch.float64) / 4
                   for shape in ((9, 33), (33, 33), (33, 33)))
    b_c, b_t = (torch.randn(33, generator=generator, dtype=torch.float64) for _ in range(2))
    return [each.to(dtype) for each in (x, w_c, b_c, w_t, b_t)]


def on_threads(count, function, *arguments):
    """`function(*arguments)` while torch has `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return function(*arguments)
    finally:
        torch.set_num_threads(before)


class RecordedOps(torch.utils._python_dispatch.TorchDispatchMode):
    """The ops that run inside a with block: `calls` has (op, arguments)."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append((func, args))
        return func(*args, **(kwargs or {}))
