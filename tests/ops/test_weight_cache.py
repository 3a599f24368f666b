"""What is computed from weights and kept: it may be read on any stream, since the first call waits for its own."""

import pytest
import torch

from elmo_fast.ops import weight_cache
from elmo_fast.ops.weight_cache import LastResult, cached


@pytest.fixture
def events(monkeypatch):
    """What happens on a stand-in for a stream, in order."""
    happened = []
    monkeypatch.setattr(weight_cache, "synchronize_stream", lambda device: happened.append(("wait", device.type)))
    return happened


def test_a_cached_value_is_complete_before_another_call_gets_it(events):
    weights = [torch.ones(3, 4), torch.ones(4), None]

    def make(tensors):
        events.append("make")
        return tensors[0] * 2

    value = cached(weights, "double", make)
    assert events == ["make", ("wait", "cpu")]
    assert cached(weights, "double", make) is value and len(events) == 2
    weights[1].add_(1)
    cached(weights, "double", make)
    assert events[2:] == ["make", ("wait", "cpu")]


def test_a_value_that_is_not_kept_is_not_waited_for(events):
    cached([torch.ones(3, 4)], "double", lambda tensors: events.append("make") or tensors[0] * 2, keep=False)
    assert events == ["make"]


def test_a_last_result_is_complete(events):
    result, layers = LastResult(), [[torch.ones(2, 2)], [torch.ones(3)]]
    for _ in range(2):
        result.get("key", layers, lambda: events.append("compute") or layers[0][0] + 1)
    assert events == ["compute", ("wait", "cpu"), ("wait", "cpu")]
