"""`allennlp.data.token_indexers.elmo_indexer`: maps tokens to ELMo's character ids."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from elmo_fast.compat.allennlp import registry
from elmo_fast.compat.allennlp.common.checks import raises_either
from elmo_fast.errors import ConfigurationError
from elmo_fast.text import characters
from elmo_fast.text.batching import check_iterable

_TokenIndexer = registry.base_class("allennlp.data.token_indexers.token_indexer", "TokenIndexer", object)
_KEY = "elmo_tokens"  # name of the ids in AllenNLP 1.0 and later


class _AlsoOfTheClass:
    """A method that can be called on its class too, without an instance, as AllenNLP's before 0.9."""

    def __init__(self, function: Callable):
        functools.update_wrapper(self, function)
        self._function = function

    def __get__(self, instance: Any, owner: type) -> Callable:
        if instance is not None:
            return functools.partial(self._function, instance)
        return lambda *arguments, **words: self._function(
            *(arguments if arguments and isinstance(arguments[0], owner) else (owner(), *arguments)), **words)


class ELMoCharacterMapper:
    """Maps a word to a list of `max_word_length` character ids, 1 to 261. From AllenNLP's `ELMoCharacterMapper`.

    `tokens_to_add` maps words to the character (0 to 260) that replaces the whole word. For a model with another
    `max_characters_per_token`, set it as `max_word_length` in a subclass.
    """

    max_word_length = characters.MAX_CHARACTERS_PER_TOKEN
    beginning_of_sentence_character = characters.BEGIN_SENTENCE
    end_of_sentence_character = characters.END_SENTENCE
    beginning_of_word_character = characters.BEGIN_WORD
    end_of_word_character = characters.END_WORD
    padding_character = characters.PADDING
    beginning_of_sentence_characters = characters.mark_ids(characters.BEGIN_SENTENCE).tolist()
    end_of_sentence_characters = characters.mark_ids(characters.END_SENTENCE).tolist()
    bos_token, eos_token = characters.BEGIN_SENTENCE_TOKEN, characters.END_SENTENCE_TOKEN

    @raises_either
    def __init__(self, tokens_to_add: Mapping[str, int] | None = None):
        if tokens_to_add is not None and not isinstance(tokens_to_add, Mapping):
            raise ConfigurationError(f"tokens_to_add: expected a mapping, got {type(tokens_to_add).__name__}")
        self.tokens_to_add = dict(tokens_to_add or {})
        for word, character in self.tokens_to_add.items():
            if character not in range(self.padding_character + 1):
                raise ConfigurationError(f"tokens_to_add: expected a character from 0 to {self.padding_character} "
                                         f"per word, got {character!r} for {word!r}")

    @_AlsoOfTheClass
    def convert_word_to_char_ids(self, word: str) -> list[int]:
        """Return the character ids of a word; also called on the class."""
        return self.convert_words([word])[0].tolist()

    def convert_words(self, words: Sequence[str]) -> np.ndarray:
        """Return the character ids of words, int32 [words, max_word_length]."""
        special = {**characters.SENTENCE_MARKS, **self.tokens_to_add}
        return characters.to_model_ids(characters.encode_tokens(words, self.max_word_length, special))

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if isinstance(self, other.__class__) else NotImplemented

    __hash__ = None


class ELMoTokenCharactersIndexer(_TokenIndexer):
    """Maps tokens to character ids. From AllenNLP's `ELMoTokenCharactersIndexer`, 0.9 and later.

    `tokens` are strings or objects with an attribute `text`. `vocabulary` and `namespace` are ignored.
    """

    def __init__(self, namespace: str = "elmo_characters", tokens_to_add: Mapping[str, int] | None = None,
                 token_min_padding_length: int = 0):
        self._token_min_padding_length = token_min_padding_length
        self._namespace = namespace
        self._mapper = ELMoCharacterMapper(tokens_to_add)

    @classmethod
    @raises_either
    def from_params(cls, params: Mapping[str, Any] | None = None, **extras: Any) -> "ELMoTokenCharactersIndexer":
        """Construct from a section of an AllenNLP configuration, or from a dict of the constructor's arguments."""
        return cls(**registry.pop_arguments(params, cls.__name__, {
            "namespace": str, "token_min_padding_length": int,
            "tokens_to_add": lambda words: {word: int(character) for word, character in words.items()}}))

    def count_vocab_items(self, token: Any, counter: dict[str, dict[str, int]]) -> None:
        """Do nothing: characters need no vocabulary."""

    @raises_either
    def tokens_to_indices(self, tokens: Sequence[Any], vocabulary: Any = None,
                          index_name: str = _KEY) -> dict[str, list[list[int]]]:
        """Return `{index_name: character ids of every token}`; AllenNLP 0.9 passes the name, later versions do not."""
        check_iterable(tokens, "tokens")
        texts = [token if isinstance(token, str) else getattr(token, "text", token) for token in tokens]
        if None in texts:
            raise ConfigurationError("tokens: expected tokens with their text, got a token whose text is None; "
                                     "use a tokenizer that keeps the text")
        return {index_name: self._mapper.convert_words(texts).tolist()}

    def get_padding_lengths(self, token: Any) -> dict[str, int]:
        """Return the padded length of every list in a dictionary (1.0 and later), or {} for a token's ids (0.9)."""
        if not isinstance(token, Mapping):
            return {}
        return {name: max(len(ids), self._token_min_padding_length) for name, ids in token.items()}

    def as_padded_tensor(self, tokens: Mapping[str, list[list[int]]], desired_num_tokens: Mapping[str, int],
                         padding_lengths: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """Return an int64 tensor [desired tokens, characters] per list: padded with zeros, or truncated."""
        padded = {name: torch.zeros(desired_num_tokens[name], self._mapper.max_word_length, dtype=torch.int64)
                  for name in tokens}
        for name, ids in padded.items():
            if values := tokens[name][: len(ids)]:
                ids[: len(values)] = torch.tensor(values)
        return padded

    def as_padded_tensor_dict(self, tokens: Mapping[str, list[list[int]]],
                              padding_lengths: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """As `as_padded_tensor`, called by AllenNLP 1.0 and later."""
        return self.as_padded_tensor(tokens, padding_lengths, {})

    def get_empty_token_list(self) -> dict[str, list]:
        """Return the ids of an empty list of tokens."""
        return {_KEY: []}

    def get_keys(self, index_name: str) -> list[str]:
        """Return the names of the lists that `tokens_to_indices` returns."""
        return [index_name]

    def get_token_min_padding_length(self) -> int:
        """Return the smallest number of tokens that a field is padded to."""
        return self._token_min_padding_length

    __eq__ = ELMoCharacterMapper.__eq__
    __hash__ = None


registry.register(_TokenIndexer, "elmo_characters", ELMoTokenCharactersIndexer)
