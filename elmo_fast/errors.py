"""The error for invalid models, options and files."""


class _ConfigurationErrorBase(ValueError):
    """`compat.allennlp.common.checks` makes AllenNLP's exception a base of this class.

    A separate class, because Python cannot replace a built-in base of a class.
    """


class ConfigurationError(_ConfigurationErrorBase):
    """Raised for an invalid model, option or file. The name is AllenNLP's."""
