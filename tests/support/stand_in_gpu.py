"""A stand-in for a GPU: tensors on the CPU that say they are on `cuda:0`, and compute as PyTorch's operations do."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from elmo_fast.ops import backend, doctor
from elmo_fast.ops.projected_lstm.cuda import lstm, persistent
from tests.support.cuda_ops import OPS

GPU = torch.device("cuda", 0)
_TO_HOST = torch.Tensor.cpu, torch.Tensor.numpy
_WITHOUT_EFFECT = torch.Tensor.pin_memory, torch.Tensor.record_stream


def _is_gpu(value) -> bool:
    return (isinstance(value, torch.device) and value.type == "cuda") or (
        isinstance(value, str) and value.startswith("cuda"))


class StandInGpu(TorchFunctionMode):
    """In the body, `.to("cuda")` and the like make tensors on the stand-in; results are there if an operand is."""

    def __init__(self):
        super().__init__()
        self._there = WeakIdKeyDictionary()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if isinstance(function, torch._ops.OpOverloadPacket) and str(function).startswith("elmo_fast."):
            with self:
                return OPS[function.__name__](*args, **kwargs)
        is_there = any(tensor in self._there for tensor in self._tensors((args, kwargs)))
        if function == torch.Tensor.device.__get__:
            return GPU if is_there else function(*args)
        if function == torch.Tensor.is_cuda.__get__:
            return is_there
        if function in (torch.device, torch._C._nn._parse_to):
            return function(*args, **kwargs)
        if function in _WITHOUT_EFFECT:
            return args[0]
        leaves = tree_leaves((args, kwargs))
        asked = any(map(_is_gpu, leaves))
        is_moved = function == torch.Tensor.to and any(
            (isinstance(leaf, torch.device) and leaf.type == "cpu") or leaf == "cpu" for leaf in leaves[1:]
            if not isinstance(leaf, torch.Tensor))
        args, kwargs = tree_map(lambda value: torch.device("cpu") if _is_gpu(value) else value, (args, kwargs))
        kwargs.pop("pin_memory", None)
        if kwargs.pop("out_dtype", None):  # of products of 16-bit operands, which the CPU does not have
            return kwargs["out"].copy_(function(*(operand.float() for operand in args)))
        if function == torch.Tensor.to and asked:
            kwargs["copy"] = True
        result = function(*args, **kwargs)
        if function == torch.Tensor.data.__set__ and args[1] in self._there:
            self._there[args[0]] = True
        if (asked or is_there) and function not in _TO_HOST and not is_moved:
            for tensor in self._tensors(result):
                self._there[tensor] = True
        elif is_moved or function in _TO_HOST:
            return result.clone() if isinstance(result, torch.Tensor) else result
        return result

    @staticmethod
    def _tensors(tree):
        return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@contextlib.contextmanager
def stand_in_gpu(patch: pytest.MonkeyPatch):
    """In the body a GPU of compute capability 9.0 is there, with Triton. Kernels and captures are `AssertionError`s."""
    def ran(*_, **__):
        raise AssertionError("a kernel or a capture ran")

    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None)
    native = SimpleNamespace(cuda_lstm_run=ran, cuda_lstm_plan=lambda *_: {"reason": None, "scratch_bytes": 1})
    for name, value in (("get_device_capability", (9, 0)), ("device", contextlib.nullcontext()), (
            "get_device_name", "Stand-in"), ("current_stream", stream), ("is_current_stream_capturing", False)):
        patch.setattr(torch.cuda, name, lambda device=None, value=value: value)
    for owner, name, value in ((persistent, "native_module", lambda: (native, None)),
                               (persistent, "lacks", lambda device: None), (persistent, "limits", lambda device: (1,)),
                               (lstm, "capture_on", ran), (backend, "why_no_triton", lambda device: None),
                               (doctor, "why_no_triton", lambda device: None)):
        patch.setattr(owner, name, value)
    for name in ("char_cnn.char_cnn", "highway.highway", "lstm_pointwise.gates"):
        patch.setattr(f"elmo_fast.kernels.{name}", ran)
    with StandInGpu():
        yield
