"""The errors for invalid models, options and files, and for models that cannot be downloaded."""


class ConfigurationError(ValueError):
    """Raised for an invalid model, option or file. The name is AllenNLP's."""


class UnavailableError(OSError):
    """No public address of a model gave its files. The message has a line for each address."""


class MissingModelError(UnavailableError, FileNotFoundError):
    """As `UnavailableError`, where every address was asked and has no such file."""
