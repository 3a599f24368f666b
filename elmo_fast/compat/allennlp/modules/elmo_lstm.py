"""`allennlp.modules.elmo_lstm`: the stack of LSTM layers, over padded vectors and a mask."""

from elmo_fast.compat.allennlp.common.checks import raises_either
from elmo_fast.nn.layers import lstm


class ElmoLstm(lstm.ElmoLstm):
    """`elmo_fast.nn.layers.lstm.ElmoLstm`, whose errors are AllenNLP's as well."""

    __init__ = raises_either(lstm.ElmoLstm.__init__)
