"""The warm state: what a text leaves behind when it runs from zeros."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from elmo_fast.model import states
from elmo_fast.model.lstm import LstmStack
from elmo_fast.model.token_source import TokenSource
from elmo_fast.ops.weight_cache import version_key
from elmo_fast.ops.device import to_device
from elmo_fast.ops.precision import numerics
from elmo_fast.ops.reference import State
from elmo_fast.ops.schedule import make_schedule
from elmo_fast.text import characters

Text = Sequence[Sequence[str]]


def edit_keys(*parts: nn.Module) -> tuple:
    """Equal while no parameter of the modules was edited or replaced."""
    return tuple(version_key(value) for part in parts for value in part.parameters())


class WarmState:
    """The state after a text, (h [L, 2 P], c [L, 2 D]): kept until weights or text change."""

    def __init__(self):
        self._kept: tuple[tuple, State] | None = None

    def after(self, text: Text, source: TokenSource, stack: LstmStack, backend: str) -> State:
        """The state that `text` leaves in `stack`, in `highest` whatever the call around it computes in."""
        key = _key(text, source, stack)
        if self._kept is None or self._kept[0] != key:
            self._kept = key, _run(text, source, stack, backend)
        return self._kept[1]

    def hold(self, text: Text, source: TokenSource, stack: LstmStack) -> None:
        """Take what is kept for that of the weights as they are now."""
        if self._kept is not None:
            self._kept = _key(text, source, stack), self._kept[1]


def _key(text: Text, source: TokenSource, stack: LstmStack) -> tuple:
    return edit_keys(source, stack) + tuple(map(tuple, text))


def _run(text: Text, source: TokenSource, stack: LstmStack, backend: str) -> State:
    framed = [token for sentence in text
              for token in (characters.BEGIN_SENTENCE_TOKEN, *sentence, characters.END_SENTENCE_TOKEN)]
    ids = to_device(source.token_ids(framed), stack.B_0_0.device)
    lengths = np.array([len(sentence) + 2 for sentence in text])
    with torch.no_grad(), numerics("highest", ids.device):
        vectors = source(ids, backend)
        layers, h_dim, c_dim = stack.state_sizes
        schedule = make_schedule(lengths, np.zeros_like(lengths))
        _, (h, c) = stack.run(vectors, torch.from_numpy(schedule.tokens), schedule,
                              states.zero_state(layers, 1, h_dim, c_dim, vectors), backend=backend)
    return h[:, 0], c[:, 0]
