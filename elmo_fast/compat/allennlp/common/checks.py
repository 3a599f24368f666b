"""`allennlp.common.checks`: the exception that is caught around ELMo."""

from elmo_fast import errors
from elmo_fast.compat.allennlp import registry

__all__ = ["ConfigurationError"]

# AllenNLP's own class where AllenNLP is installed. Ours then derives from it: `except` with either name catches both.
ConfigurationError = registry.base_class("allennlp.common.checks", "ConfigurationError", errors.ConfigurationError)

if not issubclass(errors.ConfigurationError, ConfigurationError):
    class _Base(ValueError, ConfigurationError):
        """AllenNLP's prints and pickles `message`, which only its own constructor sets."""

        message = property(ValueError.__str__)
        __str__ = ValueError.__str__

    errors.ConfigurationError.__bases__ = (_Base,)
