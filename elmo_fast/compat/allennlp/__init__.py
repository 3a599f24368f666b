"""AllenNLP 0.9's ELMo calls: `from elmo_fast.compat.allennlp import Elmo, ElmoEmbedder, batch_to_ids`.

The modules have the names of AllenNLP's (`modules.elmo`, `commands.elmo`, `data.token_indexers.elmo_indexer`, ...): put
`elmo_fast.compat.` in front of an old import. docs/migrating.md lists the intended differences. If AllenNLP is
installed, its configurations build these classes once this package is imported.
"""

from elmo_fast import nn  # noqa: F401 (first: it says how to install torch where torch is missing)
from elmo_fast.arguments import DEFAULT_BATCH_SIZE
from elmo_fast.compat.allennlp.commands.elmo import ElmoEmbedder
from elmo_fast.compat.allennlp.common.checks import ConfigurationError
from elmo_fast.compat.allennlp.data.token_indexers.elmo_indexer import ELMoCharacterMapper, ELMoTokenCharactersIndexer
from elmo_fast.compat.allennlp.modules.elmo import Elmo, _ElmoBiLm, _ElmoCharacterEncoder, batch_to_ids
from elmo_fast.compat.allennlp.modules.elmo_lstm import ElmoLstm
from elmo_fast.compat.allennlp.modules.highway import Highway
from elmo_fast.compat.allennlp.modules.scalar_mix import ScalarMix
from elmo_fast.compat.allennlp.modules.token_embedders.elmo_token_embedder import ElmoTokenEmbedder
from elmo_fast.compat.allennlp.nn.util import add_sentence_boundary_token_ids, remove_sentence_boundaries
from elmo_fast.compat.allennlp.registry import say_what_stays
from elmo_fast.compat.elmo_embedder import DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE

__all__ = ["DEFAULT_BATCH_SIZE", "DEFAULT_OPTIONS_FILE", "DEFAULT_WEIGHT_FILE", "ConfigurationError",
           "ELMoCharacterMapper", "ELMoTokenCharactersIndexer", "Elmo", "ElmoEmbedder", "ElmoLstm", "ElmoTokenEmbedder",
           "Highway", "ScalarMix", "_ElmoBiLm", "_ElmoCharacterEncoder", "add_sentence_boundary_token_ids",
           "batch_to_ids", "create_elmo_embeddings_from_vocab", "remove_sentence_boundaries"]

for _module in ("", ".commands", ".common", ".common.checks", ".common.file_utils", ".common.util", ".data",
                ".data.token_indexers", ".modules", ".modules.token_embedders", ".nn", ".nn.util", ".tools"):
    say_what_stays(f"{__name__}{_module}")


def __getattr__(name: str):
    if name != "create_elmo_embeddings_from_vocab":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from elmo_fast.compat.allennlp.tools import create_elmo_embeddings_from_vocab as tool

    return tool.main  # imported on first use: `python -m` warns about a module that was imported before
