"""`allennlp.commands.elmo`: `ElmoEmbedder` and its default files."""

from elmo_fast.choices import DEFAULT_BATCH_SIZE
from elmo_fast.compat.allennlp.data.token_indexers.elmo_indexer import ELMoTokenCharactersIndexer
from elmo_fast.compat.allennlp.modules.elmo import _ElmoBiLm, batch_to_ids
from elmo_fast.embed import embedder
from elmo_fast.embed.embedder import DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE
from elmo_fast.model.options import ConfigurationError

__all__ = ["DEFAULT_BATCH_SIZE", "DEFAULT_OPTIONS_FILE", "DEFAULT_WEIGHT_FILE", "ConfigurationError", "ElmoEmbedder",
           "batch_to_ids"]


class ElmoEmbedder(embedder.ElmoEmbedder):
    """Vectors of tokenized sentences; `elmo_bilm` is an `_ElmoBiLm`. From AllenNLP's `ElmoEmbedder`.

    It runs on the device of `elmo_bilm`, also after `elmo_bilm.to(device)`; `cuda_device` is only the argument.
    """

    _bilm = _ElmoBiLm

    def _take(self, bilm: _ElmoBiLm, cuda_device: int) -> None:
        super()._take(bilm, cuda_device)
        self.indexer = ELMoTokenCharactersIndexer()
