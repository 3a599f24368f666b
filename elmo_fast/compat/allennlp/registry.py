"""Connects to the registry and parameters of AllenNLP 0.9 to 2.x if it is installed; AllenNLP is optional."""

import importlib
import logging
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from elmo_fast.arguments import shown
from elmo_fast.errors import ConfigurationError

logger = logging.getLogger(__name__)

MODEL_FILES = "options_file", "weight_file"
_STAYS = "stays with AllenNLP (docs/migrating.md)"


def base_class(module: str, name: str, otherwise: type) -> type:
    """Return AllenNLP's class, as a base of ours; `otherwise` if AllenNLP is not installed or cannot be imported.

    The import also registers AllenNLP's classes, so that they cannot replace ours later.
    """
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # any error: an old AllenNLP may fail in any of its requirements
        if not isinstance(error, ModuleNotFoundError) or error.name != "allennlp":
            logger.warning("%s cannot be imported (%s: %s): ELMo classes are not registered with AllenNLP", module,
                           type(error).__name__, error)
        return otherwise


def say_what_stays(module_name: str) -> None:
    """Make imports of what a module or package lacks, and attributes, say that it stays with AllenNLP.

    Python asks the finders of `__path__` for names that the module lacks. The last entry is no folder, and its finder
    raises. Attributes raise `AttributeError`, for `hasattr` and for pickle, which looks for names in all modules.
    """
    def missing(name: str) -> Any:
        raise AttributeError(f"module {module_name!r} has no attribute {name!r}: it {_STAYS}")

    def find_spec(name: str, target: Any = None) -> None:
        # `from` replaces an error whose name is what it asked for by "cannot import name".
        raise ModuleNotFoundError(f"cannot import {name!r}: it {_STAYS}", name=name.removeprefix("elmo_fast.compat."))

    module = importlib.import_module(module_name)
    entry = os.path.join(os.path.dirname(module.__file__), f"<{module_name}>")
    sys.path_importer_cache[entry] = SimpleNamespace(find_spec=find_spec)
    module.__path__ = [*getattr(module, "__path__", ()), entry]
    vars(module).setdefault("__getattr__", missing)


def register(base: type, name: str, subclass: type) -> None:
    """Make AllenNLP build `subclass` where a configuration says `"type": name`."""
    if hasattr(base, "register"):
        base.register(name, exist_ok=True)(subclass)


def import_submodules(package: str) -> None:
    """Import a package or module, also from the working directory, and all its submodules, for `--include-package`."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    root = importlib.import_module(package)
    for module in pkgutil.walk_packages(getattr(root, "__path__", []), f"{package}."):
        importlib.import_module(module.name)


def pop_arguments(params: Mapping[str, Any] | None, owner: str, convert: Mapping[str, Callable[[Any], Any]],
                  required: Sequence[str] = ()) -> dict[str, Any]:
    """Convert the arguments of a constructor from AllenNLP's `Params`, which are emptied, or from a dict, which is not.

    `convert` maps every allowed name to a function of the value. `ConfigurationError` for unknown and missing names,
    and for invalid values.
    """
    if params is not None and not hasattr(params, "pop"):
        raise ConfigurationError(f"{owner}: expected a mapping of arguments, got {type(params).__name__}")
    remaining = dict(params or {}) if params is None or isinstance(params, dict) else params
    missing = [name for name in required if name not in remaining]
    if missing:
        raise ConfigurationError(f"{owner}: expected {', '.join(required)}, missing {', '.join(missing)}")
    arguments = {}
    for name, function in convert.items():
        if name in remaining:
            value = remaining.pop(name)
            try:
                arguments[name] = value if value is None else function(value)
            except (TypeError, ValueError, AttributeError) as error:
                raise ConfigurationError(f"{owner}: {name}: got {shown(value)} ({error})") from error
    if len(remaining):
        raise ConfigurationError(f"{owner}: expected only {', '.join(convert)}, got {', '.join(sorted(remaining))}")
    return arguments


def elmo_arguments(params: Mapping[str, Any] | None) -> dict[str, Callable[[Any], Any]]:
    """Return `convert` for the arguments of both ELMo modules; adds the files to the archive of `params`, if any."""
    for name in MODEL_FILES:
        if hasattr(params, "add_file_to_archive") and name in params:
            params.add_file_to_archive(name)
    return {**dict.fromkeys(MODEL_FILES, lambda value: value), "requires_grad": boolean, "do_layer_norm": boolean,
            "dropout": float, "vocab_to_cache": list, "state": str, "precision": str, "backend": str,
            "allow_nonfinite": boolean,
            "scalar_mix_parameters": lambda values: [float(value) for value in values]}


def boolean(value: Any) -> bool:
    """Return a bool, also from the strings `true` and `false`; `ValueError` for other values."""
    value = {"true": True, "false": False}.get(value) if isinstance(value, str) else value
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value
