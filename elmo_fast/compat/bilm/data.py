"""The names of bilm-tf's module `bilm.data` that inference needs."""

from elmo_fast.model.options import ConfigurationError
from elmo_fast.text.batching import Batcher, TokenBatcher
from elmo_fast.text.vocabulary import UnicodeCharsVocabulary, Vocabulary

# bilm-tf refuses options with 261 characters with this error. Here the weight file says which it is.
InvalidNumberOfCharacters = ConfigurationError

__all__ = ["Batcher", "InvalidNumberOfCharacters", "TokenBatcher", "UnicodeCharsVocabulary", "Vocabulary"]
