"""Real kernels with an instruction broken: the interpreter or the results must notice each one that matters."""

import contextlib
import random
import re

import pytest

from elmo_fast.testing import relative_error
from tests.support import cuda_ops, lstm_on_ptx
from tests.support.engines import ON_TRITON, REFERENCE
from tests.support.gpu_lstm import one_layer, ragged
from tests.support.op_cases import highway_case
from tests.support.ptx_machine import SHIPPED, lines
from tests.support.triton_on_ptx import configs, on_ptx, run

pytestmark = pytest.mark.long

# Kind: the instruction, what takes its place, the sites that are tried, and how many may survive, being no faults.
LSTM = {
    # Of the barriers around a verdict one is enough while no wait fails.
    "no barrier": (r"bar\.sync[^;]*;", "", 6, 2),
    "no arrival at the grid barrier": (r"red\.release[^;]*;", "", 3, 0),
    "relaxed arrival": (r"red\.release", "red.relaxed", 3, 0),
    "relaxed wait": (r"ld\.acquire", "ld.relaxed", 6, 0),
    "relaxed flag": (r"st\.release", "st.relaxed", 2, 0),
    # Each step waits for all copies before weights are used.
    "a wait for copies less": (r"cp\.async\.wait_all;", "", 4, 1),
    # The last: no block leaves before a grid barrier behind the last remote access.
    "no barrier of the cluster": (r"barrier\.cluster\.(arrive|wait)[^;]*;", "", 4, 1),
    "another block of the cluster": (r"(mapa[^,]*, [^,]*), [^;]*;", r"\1, 7;", 4, 0),
    "no product": (r"mma\.sync[^;]*;", "", 4, 0),
    # Of four blocks' m a cluster of two, as here, stores the second's three times.
    "another place in shared memory": (r"((?:ld|st)\.shared\.[^\]]*)\]", r"\1+16]", 8, 1),
    "another place in global memory": (r"((?:ld|st)\.global\.(?:nc|f32|u16|cg)[^\]]*)\]", r"\1+65536]", 6, 0),
}
TRITON = {
    "no barrier": (r"bar\.sync[^;]*;", "", 9, 2),
    # The last wait finds no copy left.
    "a wait for copies less": (r"(cp\.async\.wait_group\s+)(\d+)", lambda m: f"{m[1]}{int(m[2]) + 2}", 4, 1),
    # Joins two groups of a stage, which are waited for together.
    "no group of copies": (r"cp\.async\.commit_group;", "", 4, 2),
    "a wait for products less": (r"(wgmma\.wait_group\S*) (\d+)", lambda m: f"{m[1]} {int(m[2]) + 1}", 3, 0),
    "no group of products": (r"wgmma\.commit_group[^;]*;", "", 2, 0),
    # The second of an iteration: nothing was written since the first.
    "no fence of products": (r"wgmma\.fence[^;]*;", "", 2, 1),
    "no fence between proxies": (r"fence\.proxy[^;]*;", "", 2, 1),
    "another place in shared memory": (r"(ldmatrix[^\]]*)\]", r"\1+32]", 4, 0),
}


def check(same, text, ran, pattern, to, count, equivalent):
    """Changes some of the lines that ran and hold `pattern`: but for so many, a trap or another result must follow."""
    rows, left = text.split("\n"), []
    sites = [line for line in sorted(ran) if re.search(pattern, rows[line - 1])]
    for line in random.Random(1).sample(sites, min(count, len(sites))):
        changed = re.sub(pattern, to, rows[line - 1])
        with contextlib.suppress(RuntimeError):
            left += [changed] * same("\n".join([*rows[: line - 1], changed, *rows[line:]]))
    assert len(left) <= equivalent, left


@pytest.mark.parametrize("kind", LSTM)
def test_the_persistent_lstm(kind):
    of = one_layer(150, 40, 3.0, 3.0)
    call = ragged([9, 9, 4], of, seed=1)

    def same(changed):
        native.machine.replace(SHIPPED, changed)
        for seed in (0, 5, 6, 7, 8):  # those in which a block that reads partial sums comes last
            native.machine.set(seed=seed)
            native.device(*native.limits)
            try:
                lstm_on_ptx.check(native, of, call)
            except AssertionError:
                return False
        return True

    with pytest.MonkeyPatch.context() as patch, lstm_on_ptx.lstm_on_ptx(90, patch) as native:
        native.changes = {"timeout_ns": 10**6}
        text = native.machine.source(SHIPPED)
        try:
            assert same(text)
            ran = [line.number for line in lines(native.machine, SHIPPED)
                   if line.executed and "persistent" in line.kernel]
            check(same, text, ran, *LSTM[kind])
        finally:
            native.machine.replace(SHIPPED, text)


@pytest.mark.parametrize("kind", TRITON)
@pytest.mark.parametrize("generation", configs.GENERATIONS)
def test_a_triton_kernel(monkeypatch, generation, kind):
    tile = configs.tiles("highway", generation, "fp16", "many")[0]
    driver = on_ptx(monkeypatch, generation, tile)
    case = highway_case(tile.bm, 512)
    expected, = case.run(REFERENCE)

    def same(changed):
        driver.text = changed
        with cuda_ops.registered_on_cpu():
            return relative_error(run(case, "fp16"), expected) < ON_TRITON["fp16"]

    assert same(None)
    check(same, driver.ran, range(1, driver.ran.count("\n")), *TRITON[kind])
