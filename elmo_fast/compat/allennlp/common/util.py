"""`allennlp.common.util`, the functions that AllenNLP's ELMo modules and code derived from them import."""

from collections.abc import Callable, Sequence
from typing import Any

from elmo_fast.compat.allennlp.registry import import_submodules
from elmo_fast.text.batching import groups_of as lazy_groups_of

__all__ = ["import_submodules", "lazy_groups_of", "pad_sequence_to_length"]


def pad_sequence_to_length(sequence: Sequence[Any], desired_length: int, default_value: Callable[[], Any] = lambda: 0,
                           padding_on_right: bool = True) -> list[Any]:
    """Return a list of `desired_length`: truncated, or padded with results of `default_value`, on the same side."""
    cut = list(sequence[:desired_length] if padding_on_right else sequence[-desired_length:])
    padding = [default_value() for _ in range(desired_length - len(cut))]
    return cut + padding if padding_on_right else padding + cut
