"""The errors for invalid models, options and files, and for models that cannot be downloaded."""

import contextlib
from collections.abc import Iterator

_KINDS = {b"\x1f\x8b": "gzip data, whose name must end in .gz,", b"BZh": "bzip2 data, whose name must end in .bz2,",
          b"\xfd7zXZ": "xz data, whose name must end in .xz,", b"PK\3\4": "a ZIP file", b"\x89HDF": "HDF5",
          b"\x28\xb5\x2f\xfd": "Zstandard data, whose name must end in .zst,",
          b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def undecodable(error: UnicodeDecodeError) -> str:
    """What bytes are that are no UTF-8, in words, by the first of them."""
    return next((kind for start, kind in _KINDS.items() if error.object.startswith(start)), "undecodable bytes")


class ConfigurationError(ValueError):
    """Raised for an invalid model, option or file. The name is AllenNLP's."""


class UnavailableError(OSError):
    """No public address of a model gave its files. The message has a line for each address."""


class MissingModelError(UnavailableError, FileNotFoundError):
    """As `UnavailableError`, where every address was asked and has no such file."""


@contextlib.contextmanager
def parsing(where: str, expected: str) -> Iterator[None]:
    """Convert any error that a parser raises in the body for a foreign file to `ConfigurationError`.

    Libraries raise errors of all types for damaged files. Errors that say more than damage pass: `ConfigurationError`,
    a missing package, a missing file, and an `OSError` with the name of a file.
    """
    try:
        yield
    except (ConfigurationError, ImportError, FileNotFoundError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigurationError(f"{where}: expected {expected} ({reason:.300})") from error
