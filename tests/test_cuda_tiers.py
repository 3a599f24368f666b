import json
import logging

import pytest
import test_projected_lstm as op_tests
import torch
from models import SHAPES

from elmo_fast.ops import cuda_lstm, cuda_tiers
from elmo_fast.ops.cuda_tiers import Rule, Work
from elmo_fast.ops.doctor import tier_lines
from elmo_fast.ops.schedule import make_schedule

CPU = torch.device("cpu")
RUNS, NONE = {"A": None, "B": None, "C": None}.get, {"A": None, "B": "no kernels", "C": "no kernels"}.get


ESTIMATES = [Rule("C", ("medium",), least_dim=1024, most_lanes=32, least_steps=8),
             Rule("B", ("medium",), least_dim=1024, most_lanes=128), Rule("A")]


def test_rules_by_size_lanes_steps_and_precision():
    for lanes, steps, precision, tier in ((1, 1000, "medium", "C"), (32, 8, "medium", "C"), (32, 7, "medium", "B"),
                                          (64, 30, "medium", "B"), (256, 30, "medium", "A"), (1, 1000, "highest", "A")):
        assert cuda_tiers.by_rules(ESTIMATES, Work(4096, 512, lanes, steps, precision), RUNS) == tier
        assert cuda_tiers.by_rules(ESTIMATES, Work(4096, 512, lanes, steps, precision), NONE) == "A"


def test_the_installed_table_takes_what_was_measured_alone():
    table = json.loads(cuda_tiers.TABLE.read_text())
    assert cuda_tiers.rules_of(CPU)[-1] == Rule("A")
    assert table["measured"] or {rule["tier"] for rule in table["rules"]} == {"A"}


def test_the_first_rule_that_fits_and_runs_decides(caplog):
    rules = [Rule("C", most_lanes=8), Rule("B", least_lanes=4, most_dim=100), Rule("A")]
    asked = []

    def reasons(tier):
        asked.append(tier)
        return "it is Sunday" if tier == "C" else None

    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert cuda_tiers.by_rules(rules, Work(64, 16, 4, 10, "high"), reasons) == "B"
    assert caplog.text.count("tier C is passed over: it is Sunday") == 1
    assert asked == ["C", "B"] * 2  # a reason may cost a self-test: only where a rule fits
    assert cuda_tiers.by_rules(rules, Work(128, 16, 4, 10, "high"), reasons) == "A"
    assert cuda_tiers.by_rules([Rule("C")], Work(128, 16, 4, 10, "high"), reasons) == "A"


def test_a_gpu_may_have_rules_of_its_own():
    table = {"rules": [{"tier": "A"}], "by_gpu": {"NVIDIA H200": [{"tier": "B", "precisions": ["high"]}, {"tier": "A"}]}}
    assert cuda_tiers.read_rules(table, "NVIDIA H200")[0] == Rule("B", precisions=("high",))
    assert cuda_tiers.read_rules(table, "another") == (Rule("A"),)


@pytest.mark.parametrize("rule", [{"tier": "D"}, {}, {"tier": "A", "lanes": 3}, {"tier": "A", "precisions": ["fp8"]}])
def test_a_rule_that_is_none_is_refused(rule):
    with pytest.raises(ValueError, match="rule: expected a tier"):
        cuda_tiers.read_rules({"rules": [rule]}, "")


def test_a_forced_tier(monkeypatch):
    work = Work(4096, 512, 64, 100, "medium")
    monkeypatch.setenv(cuda_tiers.VARIABLE, "A")
    assert cuda_tiers.choose(work, CPU) == "A"
    monkeypatch.setattr(cuda_tiers, "why_not", lambda tier, device, work: NONE(tier))
    monkeypatch.setenv(cuda_tiers.VARIABLE, "C")
    with pytest.raises(RuntimeError, match="tier C was asked for and does not run here: no kernels"):
        cuda_tiers.choose(work, CPU)
    monkeypatch.setenv(cuda_tiers.VARIABLE, "fastest")
    with pytest.raises(ValueError, match="ELMO_FAST_CUDA_TIER: expected one of A, B, C, got 'fastest'"):
        cuda_tiers.choose(work, CPU)


def test_a_layer_runs_on_the_tier_that_is_chosen(monkeypatch):
    of = SHAPES["two layers"]
    inputs, index, state = op_tests.draw(of, torch.float32)
    schedule = make_schedule(op_tests.LENGTHS)
    rows, weights = index[torch.from_numpy(schedule.tokens).long()], op_tests.layer(of, torch.float32)

    def run():
        return cuda_lstm.projected_lstm(inputs, rows, schedule, state, weights, cell_clip=3.0, precision="medium")

    asked = []
    monkeypatch.setattr(cuda_tiers, "choose", lambda work, device: asked.append(work) or "A")
    out, _ = run()
    assert out.shape == (len(index), 22) and asked == [Work(37, 11, 6, 7, "medium", "bf16")]
    monkeypatch.setattr(cuda_lstm, "is_capturing", lambda device: True)
    with pytest.raises(RuntimeError, match="schedule: expected none while a CUDA graph is captured"):
        run()


def test_doctor_names_every_tier():
    text = "\n".join(tier_lines(CPU))
    assert all(f"LSTM tier {tier}" in text for tier in cuda_tiers.TIERS) and "LSTM steps" in text


def test_the_table_is_json_that_says_whether_it_was_measured():
    table = json.loads(cuda_tiers.TABLE.read_text())
    assert table["schema"] == 1 and "measured" in table and table["note"]
