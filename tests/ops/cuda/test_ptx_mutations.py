"""Real kernels with an instruction broken: the interpreter or the results must notice each one that matters."""

import random
import re

import pytest
import torch

from elmo_fast.testing import relative_error
from tests.support.lstm_kernel_case import errors, make, oracle, run
from tests.support.ptx_machine import Program, coverage, machine
from tests.support.triton_on_ptx import LIMIT, OnPtx, configs, highway, products

pytestmark = pytest.mark.long

# Kind: the instruction, what takes its place (a function of the match), and how many sites are tried.
LSTM = {
    "no barrier": (r"bar\.sync[^;]*;", "", 6),
    "no arrival at the grid barrier": (r"red\.release[^;]*;", "", 3),
    "relaxed arrival": (r"red\.release", "red.relaxed", 3),
    "relaxed wait": (r"ld\.acquire", "ld.relaxed", 6),
    "relaxed flag": (r"st\.release", "st.relaxed", 2),
    "a wait for copies less": (r"cp\.async\.wait_all;", "", 4),
    "no barrier of the cluster": (r"barrier\.cluster\.(arrive|wait)[^;]*;", "", 4),
    "another block of the cluster": (r"(mapa[^,]*, [^,]*), [^;]*;", r"\1, 7;", 4),
    "no product": (r"mma\.sync[^;]*;", "", 4),
    "another place in shared memory": (r"((?:ld|st)\.shared\.[^\]]*)\]", lambda m: _moved(m[1], 16), 8),
    "another place in global memory": (r"((?:ld|st)\.global\.(?:nc|f32|u16|cg)[^\]]*)\]",
        lambda m: _moved(m[1], 1 << 16), 6),
}
TRITON = {
    "no barrier": (r"bar\.sync[^;]*;", "", 9),
    "a wait for copies less": (r"cp\.async\.wait_group\s+(\d+)", lambda m: f"cp.async.wait_group {int(m[1]) + 2}", 4),
    "no group of copies": (r"cp\.async\.commit_group;", "", 4),
    "a wait for products less": (r"wgmma\.wait_group\.sync\.aligned (\d+)",
        lambda m: f"wgmma.wait_group.sync.aligned {int(m[1]) + 1}", 3),
    "no group of products": (r"wgmma\.commit_group[^;]*;", "", 2),
    "no fence of products": (r"wgmma\.fence[^;]*;", "", 2),
    "no fence between proxies": (r"fence\.proxy[^;]*;", "", 2),
    "another place in shared memory": (r"(ldmatrix[^\]]*)\]", lambda m: _moved(m[1], 32), 4),
}


# Survivors that are no faults: how many at most, and why.
EQUIVALENT = {
    "no barrier": (2, "of the barriers around a verdict one is enough while no wait fails"),
    "a wait for copies less": (
        1, "LSTM: each step waits for all copies before weights are used. Triton: the last wait finds no copy left"),
    "no barrier of the cluster": (1, "the last: no block leaves before a grid barrier behind the last remote access"),
    "no group of copies": (2, "joins two groups of a stage, which are waited for together"),
    "no fence of products": (1, "the second of an iteration: no register was written since the first"),
    "no fence between proxies": (1, "the second of an iteration: nothing was written since the first"),
}


def _moved(address: str, by: int) -> str:
    """"... [%r1+8" with another offset."""
    found = re.search(r"\+\s*(\d+)\s*$", address)
    return f"{address[: found.start()]}+{int(found[1]) + by}]" if found else f"{address}+{by}]"


def mutants(text, lines, pattern, to, count):
    """(line, text with that line changed) for some of the lines that ran and hold `pattern`."""
    rows = text.split("\n")
    sites = [at for at in lines if re.search(pattern, rows[at - 1])]
    for at in random.Random(1).sample(sites, min(count, len(sites))):
        changed = rows[at - 1 : at]
        yield at, "\n".join([*rows[: at - 1], re.sub(pattern, to, changed[0]), *rows[at:]])


def survivors(found, check):
    """Those of (line, text) that `check` finds nothing wrong with: neither a trap nor another result."""
    result = []
    for line, text in found:
        try:
            if check(text):
                result.append(line)
        except RuntimeError:
            pass
    return result


@pytest.mark.parametrize("kind", LSTM)
def test_the_persistent_lstm(kind):
    module = machine()
    (source,) = module.embedded()
    text = module.source(source)
    case = make(150, 40, [9, 9, 4], seed=1, timeout_ns=10**6)
    expected = oracle(case)

    def same(changed):
        module.replace(source, changed)
        for seed in (0, 5, 6, 7, 8):  # those in which a block that reads partial sums comes last
            module.set(seed=seed)
            found = run(module, case)
            if found[3] or max(errors(found, expected)) > 3e-4:
                return False
        return True

    try:
        assert same(text)
        lines = sorted(line for kernel, (ran, _) in coverage(module, source).items() if "persistent" in kernel
            for line, _ in ran)
        left = survivors(mutants(text, lines, *LSTM[kind]), same)
    finally:
        module.replace(source, text)
        module.set()
    assert len(left) <= EQUIVALENT.get(kind, (0,))[0], [text.split("\n")[line - 1] for line in left]


@pytest.mark.parametrize("kind", TRITON)
@pytest.mark.parametrize("generation", configs.GENERATIONS)
def test_a_triton_kernel(monkeypatch, generation, kind):
    tile = configs.tiles("highway", generation, "fp16", "many")[0]
    stand_in = OnPtx(highway._highway, generation, tile)
    monkeypatch.setattr(highway, "choose", lambda *_: stand_in)

    def same(changed):
        torch.manual_seed(0)
        stand_in.text = changed
        return relative_error(*products("highway", "fp16", tile.bm, 512, 512)) < LIMIT["fp16"]

    assert same(None)
    text = stand_in.ran
    program = Program(text)
    lines = sorted({line for line, _ in program.coverage()["_highway"][1]})
    left = survivors(mutants(text, lines, *TRITON[kind]), same)
    assert len(left) <= EQUIVALENT.get(kind, (0,))[0], [text.split("\n")[line - 1] for line in left]
