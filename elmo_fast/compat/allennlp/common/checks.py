"""`allennlp.common.checks`: `ConfigurationError`, for code that catches it by this name."""

import functools
from collections.abc import Callable
from typing import TypeVar

from elmo_fast import errors
from elmo_fast.compat.allennlp import registry

__all__ = ["ConfigurationError"]

_Function = TypeVar("_Function", bound=Callable)

# AllenNLP's class if AllenNLP is installed.
ConfigurationError = registry.base_class("allennlp.common.checks", "ConfigurationError", errors.ConfigurationError)

if ConfigurationError is not errors.ConfigurationError:
    class _EitherError(errors.ConfigurationError, ConfigurationError):
        """For `except` with either name. AllenNLP's class sets `message` in its constructor alone, and prints it."""

        message = property(ValueError.__str__)
        __str__ = ValueError.__str__


def raises_either(function: _Function) -> _Function:
    """Make a function raise its `ConfigurationError`s so that `except` with AllenNLP's class catches them too."""
    if ConfigurationError is errors.ConfigurationError:
        return function

    @functools.wraps(function)
    def translated(*arguments, **keywords):
        try:
            return function(*arguments, **keywords)
        except errors.ConfigurationError as error:
            if isinstance(error, ConfigurationError):
                raise
            raise _EitherError(*error.args) from error

    return translated
