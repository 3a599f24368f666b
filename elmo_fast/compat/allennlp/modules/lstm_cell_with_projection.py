"""`allennlp.modules.lstm_cell_with_projection`: one direction of an LSTM layer, in plain torch."""

from elmo_fast.compat.allennlp.common.checks import raises_either
from elmo_fast.nn.layers import cell


class LstmCellWithProjection(cell.LstmCellWithProjection):
    """`elmo_fast.nn.layers.cell.LstmCellWithProjection`, whose errors are AllenNLP's as well."""

    __init__ = raises_either(cell.LstmCellWithProjection.__init__)
