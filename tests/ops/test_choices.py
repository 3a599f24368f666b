"""Measured choices: what is kept, in memory and in a file, and when it is measured again."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from elmo_fast.ops import choices
from elmo_fast.ops.choices import Choices

CPU = torch.device("cpu")
FASTER, SLOWER = {"slow": 3e-4, "fast": 1e-4}, {"slow": 1e-4, "fast": 2e-4}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "cache" / "gpu-choices.json"


def path(file, machine="an H100", name="a class", found=FASTER):
    """What another process takes, which measures `found` where it has to measure."""
    return Choices(lambda: file).choose(CPU, machine, name, lambda: found)


def test_what_was_measured_twice_is_found_again(file):
    assert path(file) == path(file) == path(file, found=SLOWER) == "fast"
    assert path(file, "an H200", found=SLOWER) == path(file, name="another", found=SLOWER) == "slow"
    assert Choices(lambda: file).read() == {"an H100": {"a class": [FASTER, FASTER], "another": [SLOWER]},
                                            "an H200": {"a class": [SLOWER]}}
    assert [found.name for found in file.parent.iterdir()] == ["gpu-choices.json"]


def test_a_class_is_measured_until_two_measurements_apart_agree(file, monkeypatch):
    clock, found = SimpleNamespace(monotonic=lambda: clock.now, now=100.0), [SLOWER, FASTER, SLOWER, SLOWER]
    monkeypatch.setattr(choices, "time", clock)
    each, taken = Choices(lambda: file), []
    for clock.now in (100, 109, 111, 120, 122, 133, 1000):
        taken.append((each.choose(CPU, "an H100", "a class", lambda: found.pop(0)), len(found)))
    assert taken == [("slow", 3), ("slow", 3), ("fast", 2), ("fast", 2), ("slow", 1), ("slow", 0), ("slow", 0)]
    assert Choices(lambda: file).read() == {"an H100": {"a class": [SLOWER, SLOWER]}}


def test_one_device_does_not_wait_for_another(file):
    """While one is measured, which ends only after the others have their paths."""
    each, begun, others_done = Choices(lambda: file), threading.Event(), threading.Event()
    each.choose(CPU, "an H100", "known", lambda: FASTER)
    measured = []

    def measure():
        measured.append("slow")
        begun.set()
        assert others_done.wait(60)
        return FASTER

    with ThreadPoolExecutor(2) as pool:
        slow = [pool.submit(each.choose, CPU, "an H100", "a class", measure) for _ in range(2)]
        assert begun.wait(60)
        assert each.choose(torch.device("cuda", 1), "an H100", "another", lambda: SLOWER) == "slow"
        assert each.choose(CPU, "an H100", "known", lambda: SLOWER) == "fast"
        others_done.set()
        assert [future.result(60) for future in slow] == ["fast"] * 2 and measured == ["slow"]
    assert Choices(lambda: file).read()["an H100"] == {"known": [FASTER], "another": [SLOWER], "a class": [FASTER]}


def test_a_measurement_without_triton_is_another(monkeypatch):
    monkeypatch.setattr(choices, "_versions", lambda device: "an H100")
    found = set()
    for reason in (None, "triton cannot be imported"):
        monkeypatch.setattr(choices, "why_no_triton", lambda device, reason=reason: reason)
        found.add(choices.machine(CPU))
    assert found == {"an H100", "an H100, without Triton"}


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"\xff\x00", b'{"an H100": []}', b'{"an H100": {"a class": 1}}',
    b'{"an H100": {"a class": {"slow": 2.0, "fast": 1.0}}}',  # as before measurements were confirmed
    *(b'{"an H100": {"a class": [{"slow": 2.0%s}]}}' % more
      for more in (b"", b', "fast": "x"', b', "fast": 0', b', "fast": 1.0, "third": []')), None])
def test_a_broken_file_or_a_place_that_cannot_be_written_means_measuring_again(content, file):
    if content is None:
        file.parent.write_text("in the way")
    else:
        file.parent.mkdir()
        file.write_bytes(content)
    assert path(file) == "fast" and path(file, found=SLOWER) == "slow"
    assert content is None or Choices(lambda: file).read() == {"an H100": {"a class": [FASTER, SLOWER]}}


def test_without_a_measurement_only_what_is_known_is_chosen(file):
    each = Choices(lambda: file)
    assert each.choose(CPU, "an H100", "a class", None) is None
    assert each.choose(CPU, "an H100", "a class", lambda: None) is None
    assert each.choose(CPU, "an H100", "another", lambda: FASTER) == "fast"
    assert each.choose(CPU, "an H100", "another", None) == "fast"
    assert each.choose(CPU, "an H100", "a class", None) is None


@pytest.mark.parametrize("slow, fast, rounds", [(0.003, 0.002, 9), (0.03, 0.02, 4), (1.0, 0.5, 1)])
def test_ways_are_timed_by_turns_until_the_time_is_used(slow, fast, rounds, monkeypatch):
    ran = []
    monkeypatch.setattr(choices, "seconds", lambda work: work())
    found = choices.times_of({"slow": lambda: ran.append("slow") or slow, "fast": lambda: ran.append("fast") or fast})
    assert found == {"slow": slow, "fast": fast} and ran == ["slow", "fast"] * rounds
