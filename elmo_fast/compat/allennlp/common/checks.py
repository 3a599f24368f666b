"""`allennlp.common.checks`: `ConfigurationError`, for code that catches it by this name."""

from elmo_fast import errors
from elmo_fast.compat.allennlp import registry

__all__ = ["ConfigurationError"]

# AllenNLP's class if AllenNLP is installed. Ours then derives from it, so that `except` with either name catches ours.
ConfigurationError = registry.base_class("allennlp.common.checks", "ConfigurationError", errors.ConfigurationError)

if not issubclass(errors.ConfigurationError, ConfigurationError):
    class _Base(ValueError, ConfigurationError):
        """Replaces `message`, which AllenNLP's class prints and pickles but which only its constructor sets."""

        message = property(ValueError.__str__)
        __str__ = ValueError.__str__

    errors.ConfigurationError.__bases__ = (_Base,)
