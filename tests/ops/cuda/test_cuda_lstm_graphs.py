"""Replays of the CUDA LSTM's graph path, with fake graphs."""

import itertools

import torch

from tests.support.gpu_lstm import check, weights_of
from tests.support.op_cases import LOOSE, SLOTS, TIGHT, lstm_case


def test_every_setting_and_layer_has_its_own_graphs(graphs):
    """Clips, starts, weights and inputs in turn on one arena per operand type, until all graphs are replayed."""
    layers = [weights_of(lstm_case(seed=number)) for number in (0, 1)]
    calls = [(LOOSE, "highest", 0, False), (LOOSE, "highest", 1, False), (LOOSE, "medium", 1, False),
             (LOOSE | {"cell_clip": 0.3}, "highest", 0, True), (TIGHT, "medium", 0, True)]
    plain, _, replayed = ([
        check(lstm_case(slots=SLOTS, starts=starts, clips=clips, seed=seed), precision, layers[number])
        for clips, precision, number, starts in calls] for seed in (0, 1, 0))
    assert len(graphs) == 2 and all(capture.replayed for capture in graphs)
    assert all(map(torch.equal, itertools.chain(*plain), itertools.chain(*replayed)))
