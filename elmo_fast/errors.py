"""The error of models, options and files that do not fit."""


class _ConfigurationErrorBase(ValueError):
    """`compat.allennlp.common.checks` puts AllenNLP's exception here: Python replaces no built-in base of a class."""


class ConfigurationError(_ConfigurationErrorBase):
    """A model, option or file that does not fit. The name is AllenNLP's."""
