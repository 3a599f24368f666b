"""Calls that stay outside the graphs of torch.compile, and that exporters and tracers refuse."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import nn

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def outside_graphs(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorate a function that torch.compile runs eagerly between two graphs: its operations depend on the text.

    A decorated method of a module raises `RuntimeError` in torch.export, torch.jit.trace and ONNX export, whose graphs
    would hold the tokens and lengths of one batch.
    """

    @functools.wraps(function)
    def called(*arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> _Result:
        # not is_exporting(), which torch 2.6 lacks and which inside torch.compile is True in torch 2.9
        is_exporting = getattr(torch.compiler, "_is_exporting_flag", False)
        if torch.compiler.is_dynamo_compiling() and not is_exporting:
            from elmo_fast.nn import uncompiled  # imports torch's compiler, which is already loaded here

            return uncompiled.call(function, *arguments, **keywords)
        if (torch.jit.is_tracing() or is_exporting) and _are_traced(arguments, keywords):
            raise refusal(arguments[0])
        return function(*arguments, **keywords)

    return called


class OutsideGraphs(nn.Module):
    """A module that torch.jit.script refuses, also as a submodule. Decorate its `forward` with `outside_graphs`."""

    def __prepare_scriptable__(self):
        raise refusal(self)


def refusal(module: nn.Module) -> RuntimeError:
    """The error that exporters and tracers get."""
    return RuntimeError(f"{type(module).__name__}: expected a call in Python, got torch.export, torch.jit or ONNX "
                        "export, whose graphs cannot follow the tokens and lengths of each batch; export the "
                        "part of your model that reads the vectors (torch.compile accepts the whole model)")


def _are_traced(arguments: tuple, keywords: dict) -> bool:
    """Whether this thread's exporter or tracer calls a module; False if only another thread exports."""
    if not arguments or not isinstance(arguments[0], nn.Module):
        return False
    if torch.jit.is_tracing() or torch.compiler.is_dynamo_compiling():
        return True
    from torch._subclasses import FakeTensor

    return any(isinstance(value, FakeTensor) for value in (*arguments, *keywords.values()))
