import logging

import pytest
import torch

from elmo_fast.engine import backend as engine
from elmo_fast.ops import backend

CPU = torch.empty(0)


@pytest.mark.parametrize("op", backend.OPS)
def test_auto_uses_the_fastest_available_backend(op):
    assert backend.resolve(op, "auto", CPU) == ("torch" if backend.why_not_native(op, [CPU]) else "native")
    for name in ("reference", "torch"):
        assert backend.resolve(op, name, CPU) == name


def test_an_unavailable_backend_is_refused_by_name_and_skipped_by_auto(caplog):
    feature = "a feature of this test"
    with pytest.raises(RuntimeError, match=f"'native' was asked for highway and is not available: .* {feature}"):
        backend.resolve("highway", "native", CPU, unsupported=feature)
    with caplog.at_level(logging.INFO):
        assert [backend.resolve("highway", "auto", CPU, unsupported=feature) for _ in range(3)] == ["torch"] * 3
    assert caplog.text.count(feature) == 1


def test_unknown_name():
    with pytest.raises(ValueError, match="backend: expected one of auto, reference, torch, native, got 'cuda'"):
        backend.resolve("highway", "cuda", CPU)


def test_switched_off(monkeypatch):
    monkeypatch.setenv("ELMO_FAST_NO_NATIVE", "1")
    cached = engine.native_module, engine.native_build
    for function in cached:
        function.cache_clear()
    try:
        assert engine.native_module() == (None, "ELMO_FAST_NO_NATIVE=1 is set")
    finally:
        for function in cached:
            function.cache_clear()
