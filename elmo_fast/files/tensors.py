"""Read tensors from files that `torch.save` wrote, without running code from the files."""

import os
import warnings
import zipfile
from typing import TYPE_CHECKING, Any

from elmo_fast.arguments import local_path
from elmo_fast.environment import extra
from elmo_fast.errors import ConfigurationError

if TYPE_CHECKING:
    import torch


def load_tensors(path: str | os.PathLike, name: str, expected: str, remedy: str = "") -> Any:
    """The content of a file that `torch.save` wrote, on the CPU. Errors call it `name` and say `expected`."""
    if not os.path.isfile(path := local_path(path)):
        raise FileNotFoundError(f"{name}: expected a file, found none at {path}")
    with extra("torch"):
        import torch
    try:
        is_packed = _is_packed(path)
        with warnings.catch_warnings(action="ignore"):  # of a pickle that torch did not write
            content = None if is_packed else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle may raise any error
        raise ConfigurationError(f"{name} {path}: expected {expected}, got another or a truncated file "
                                 f"({type(error).__name__}){remedy}") from error
    if is_packed:
        raise ConfigurationError(f"{name} {path}: expected {expected}, got a compressed file{remedy}")
    return content


def _is_packed(path: str | os.PathLike) -> bool:
    """Whether an archive has compressed members, which `torch.save` never writes and which may unpack to any size."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist())


def is_plain(value: Any, dtype: "torch.dtype | None" = None) -> bool:
    """Whether `value` is a tensor in memory, not sparse, quantized or on meta, whose storage holds all its numbers.

    A file can give a tensor of a single number any size, with a stride of 0. Without `dtype` any floating-point type is
    accepted.
    """
    import torch

    return (isinstance(value, torch.Tensor) and not value.is_nested and value.layout == torch.strided
            and value.device.type == "cpu" and (value.is_floating_point() if dtype is None else value.dtype == dtype)
            and value.numel() * value.element_size() <= value.untyped_storage().nbytes())


def described(value: Any) -> str:
    """Describe, for a message, a value that is not a plain tensor."""
    import torch

    if not isinstance(value, torch.Tensor):
        return "none" if value is None else type(value).__name__
    shape = "nested shapes" if value.is_nested else f"shape {tuple(value.shape)}"
    return f"{value.dtype} of {shape}, {value.layout}, on {value.device}".replace("torch.", "")
