"""What the tests of the CUDA tiers share: the simulator behind whole models, operands of one call, rules."""

import logging

import pytest
import torch
from models import SENTENCES, bilm
from simulated_cuda import simulated
from test_projected_lstm import LENGTHS, draw, layer
from tolerances import AGAINST_FLOAT64, relative_error

from elmo_fast.ops import cuda_lstm, cuda_tiers, reference, stepwise_lstm
from elmo_fast.ops.cuda_tiers import Rule
from elmo_fast.ops.schedule import make_schedule

CPU = torch.device("cpu")
LIMIT = AGAINST_FLOAT64["medium-fp16"]
BATCHES = [SENTENCES[:4], SENTENCES[1:3], SENTENCES[::-1], SENTENCES[2:5], [[], []], SENTENCES[:1]]
LADDER = Rule("C", most_lanes=32), Rule("B"), Rule("A")


@pytest.fixture
def gpu(simulated, monkeypatch):
    """The simulator; the LSTM of every model goes through the CUDA tiers. `ran_a` counts the calls of tier A."""
    simulated.ran_a = 0

    def through_tiers(*operands, backend, multiplied, **settings):
        assert not multiplied
        if backend == "reference":
            return reference.projected_lstm(*operands, **{key: settings[key] for key in settings if key != "precision"})
        return cuda_lstm.projected_lstm(*operands, **{**settings, "precision": "medium"})

    def tier_a(*operands, run=stepwise_lstm.run):
        simulated.ran_a += 1
        return run(*operands)

    monkeypatch.setattr("elmo_fast.model.lstm.projected_lstm", through_tiers)
    monkeypatch.setattr(stepwise_lstm, "run", tier_a)
    return simulated


@pytest.fixture
def tested(monkeypatch):
    """Shapes are trusted without a self-test."""
    monkeypatch.setattr("elmo_fast.ops.cuda_self_test.failure", lambda *layer: None)


def take(monkeypatch, *rules):
    monkeypatch.setattr(cuda_tiers, "rules_of", lambda device: rules)


def warnings(caplog):
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def agrees_over_batches(of, state):
    truth, found = bilm(of, state=state, backend="reference").double(), bilm(of, state=state)
    for batch in BATCHES:
        assert truth._elmo_lstm.W_0_0_0.dtype == torch.float64
        expected, layers = truth.embed_tokens(batch)[0], found.embed_tokens(batch)[0]
        for one, other in zip(layers, expected):
            assert relative_error(one, other) < LIMIT
    if state == "carry":
        for one, other in zip(found._elmo_lstm._states, truth._elmo_lstm._states):
            assert relative_error(one, other) < LIMIT


def call_operands(of, lengths=LENGTHS, lane_count=None, **more):
    inputs, _, state = draw(of, torch.float32)
    schedule = make_schedule(lengths, None, lane_count)
    count = schedule.lanes.size
    state = tuple(torch.cat([each] * 6)[:count] for each in state)
    rows = torch.from_numpy(schedule.tokens % len(inputs))
    return inputs, rows, schedule, state, layer(of, torch.float32)


def agrees(operands, **settings):
    found, final = cuda_lstm.projected_lstm(*operands, precision="medium", **settings)
    inputs, rows, schedule, state, weights = operands
    double = tuple(tuple(None if each is None else each.double() for each in one) for one in (*weights, state))
    expected, expected_final = reference.projected_lstm(inputs.double(), rows, schedule, double[2], double[:2], **settings)
    for one, other in zip((found, *final), (expected, *expected_final)):
        assert one.shape == other.shape and one.dtype == torch.float32 and relative_error(one, other) < LIMIT
    return found, final
