"""Copies between the host and a GPU that wait only where they must.

A copy from ordinary memory makes the host wait for all work queued on the stream; a copy from page-locked memory is
queued behind that work. PyTorch keeps page-locked blocks for reuse and reuses a block only when its copy is done.
"""

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

from elmo_fast.arguments import shown
from elmo_fast.ops import trial


def to_device(values: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """`values` copied to `device`: for a GPU, queued on its current stream; the host does not wait."""
    tensor = torch.from_numpy(np.ascontiguousarray(values)) if isinstance(values, np.ndarray) else values
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device, non_blocking=True)
    if tensor.numel() == 0:
        return tensor.new_empty(tensor.shape, device=device)
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` copied to the host; waits once for the work of the current stream."""
    stream = torch.cuda.current_stream(tensor.device) if tensor.device.type == "cuda" else None
    return HostCopy([tensor], stream).result()[0]


def available_device(device: str | int | torch.device | None) -> torch.device:
    """The device, by default the first GPU or else the CPU; `ValueError` unless this machine has the device."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        available = torch.zeros(1, device=torch.device(device)).device
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        reason = "cpu, cuda and cuda:1 are names" if reason.startswith("Expected one of") else reason
        raise ValueError(f"device: expected an available device, got {shown(device)} ({reason})") from error
    refuse_meta(available)
    return available


def refuse_meta(device: torch.device) -> None:
    """Raise `ValueError` for the device `meta`."""
    if device.type == "meta":
        raise ValueError("device: expected a device that holds values, such as cpu or cuda, got meta, whose tensors "
                         "have only a shape: make the model, or move it, outside of torch.device('meta')")


@contextlib.contextmanager
def on(device: torch.device) -> Iterator[None]:
    """Make `device`, where it is a GPU, the current device in the body, which launches kernels or waits for them."""
    if device.type != "cuda":
        yield
        return
    with trial.trials.watching(device), torch.cuda.device(device):
        yield


def current_stream(device: torch.device) -> int:
    """The handle of the current stream of `device`, 0 for a device other than a GPU."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def is_capturing(device: torch.device) -> bool:
    """Whether the current stream of `device` is being captured into a CUDA graph."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def refuse_capture(device: torch.device) -> None:
    """Raise `RuntimeError` while the current stream of `device` is being captured into a CUDA graph."""
    if is_capturing(device):
        raise RuntimeError("torch.cuda.graph: expected a call outside of a capture, got one inside, whose graph would "
                           "hold the tokens and lengths of this batch; compute the vectors before the capture, and "
                           "capture the part of your model that reads them")


def synchronize_stream(device: torch.device) -> None:
    """Wait for the current stream of `device`: its results may then be read on any stream."""
    if device.type == "cuda":
        with on(device):
            torch.cuda.current_stream(device).synchronize()


class HostCopy:
    """Tensors that are being copied to the host: `result` waits for the copies, not for work queued later.

    The copies run on `stream` after the work that the current stream holds at construction. Without a stream, or off
    the GPU, the tensors are copied at once.
    """

    def __init__(self, tensors: list[torch.Tensor], stream: "torch.cuda.Stream | None"):
        self._done, self._device = None, tensors[0].device if tensors else None
        if stream is None or not tensors or tensors[0].device.type != "cuda":
            self._arrived = [tensor.cpu() for tensor in tensors]
            return
        stream.wait_stream(torch.cuda.current_stream(tensors[0].device))
        with torch.cuda.stream(stream):
            self._arrived = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                             .copy_(tensor, non_blocking=True) for tensor in tensors]
            self._done = torch.cuda.Event()
            self._done.record(stream)
        for tensor in tensors:
            tensor.record_stream(stream)

    def result(self) -> list[torch.Tensor]:
        """The tensors, on the host."""
        if self._done is not None:
            with on(self._device):
                self._done.synchronize()
        return self._arrived
