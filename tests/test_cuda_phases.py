"""What the CUDA kernels' blocks do, run on the host by the simulator, against NumPy float64."""

from dataclasses import replace

import numpy as np
import pytest
from cuda_simulator import BF16, FP16, PERSISTENT, SECOND, STEPS, STEPS_LAST_BLOCK
from cuda_simulator import errors, make, only, oracle, run, same
from test_sanitizers import sanitizers_link
from tolerances import AGAINST_FLOAT64

TIERS = {"steps": STEPS, "steps, last block sums": STEPS_LAST_BLOCK, "persistent": PERSISTENT}
LIMIT = {FP16: AGAINST_FLOAT64["medium-fp16"], BF16: AGAINST_FLOAT64["medium-bf16"]}
# A sum in another order may fall on the other side of a rounding to 16 bits, and that is all that is left then.
ROUNDED = {FP16: 3e-4, BF16: 3e-3}
SIZES = [(37, 11), (37, 37), (1, 1), (5, 2), (300, 70), (130, 33), (48, 200), (64, 16)]


@pytest.fixture(params=TIERS.values(), ids=TIERS)
def tier(request):
    return request.param


def check(case, found):
    *expected, fired = oracle(case)
    assert max(errors(found, expected)) <= ROUNDED[case.operand]
    assert max(errors(found, oracle(case, rounded=False))) <= LIMIT[case.operand]
    assert found[3] == 0
    return fired


def test_sizes_and_operands(tier, tmp_path):
    rng = np.random.default_rng(0)
    cases = [make(rng, dim, projection, [9, 9, 4, 1], distinct=7, resets="state", tier=tier, operand=operand, seed=dim)
             for dim, projection in SIZES for operand in (FP16, BF16)]
    for case, found in zip(cases, run(cases, tmp_path)):
        check(case, found)


def test_schedules(tier, tmp_path):
    """One step, one lane, lanes that never run, every number of lane tiles, rows that are their own number."""
    rng = np.random.default_rng(1)
    live = [[1], [1] * 9, [3, 3, 2], [17, 12, 8], [32, 16, 7]] + ([] if tier == PERSISTENT else [[70, 66, 9], [64]])
    cases = [make(rng, 60, 20, each, tier=tier, lanes=each[0] if each[0] > 31 else each[0] + 3, resets=at % 2)
             for at, each in enumerate(live)]
    for case, found in zip(cases, run(cases, tmp_path)):
        check(case, found)
        still = slice(case.live[0], None)
        assert (found[1][still] == case.h[still]).all() and (found[2][still] == case.c[still]).all()


def test_clips_fire(tier, tmp_path):
    rng = np.random.default_rng(2)
    case = make(rng, 80, 24, [10] * 5, distinct=20, tier=tier, cell_clip=0.3, proj_clip=0.1, scale=0.2)
    (found,) = run([case], tmp_path)
    fired = check(case, found)
    assert (fired > 0.1).all() and (fired < 0.99).all()
    assert abs(found[2]).max() <= np.float32(0.3) and abs(found[0]).max() <= np.float32(0.1)


@pytest.mark.parametrize("dim,projection", [(70, 21), (40, 40)])
def test_same_bits_alone_and_in_a_batch(tier, dim, projection, tmp_path):
    rng = np.random.default_rng(3)
    case = make(rng, dim, projection, [19, 18, 11, 3], distinct=9, resets="state", tier=tier, scale=0.3)
    case = replace(case, rows=list(case.rows))
    lanes = (0, 3, 7, 18)
    whole, *alone = run([case, *(only(case, lane) for lane in lanes)], tmp_path)
    begin = np.cumsum(case.live) - case.live
    for lane, found in zip(lanes, alone):
        mine = begin[case.live > lane] + lane
        assert same(found, (whole[0][mine], whole[1][lane : lane + 1], whole[2][lane : lane + 1]))


def test_both_ways_to_sum_have_the_same_bits(tmp_path):
    rng = np.random.default_rng(4)
    case = make(rng, 200, 40, [11, 5, 2], resets=True)
    one, other = run([case, replace(case, tier=STEPS_LAST_BLOCK)], tmp_path)
    assert same(one, other)


@pytest.mark.parametrize("cluster,processors", [(1, 6), (2, 20), (4, 60), (8, 132)])
def test_clusters_and_processors(tier, cluster, processors, tmp_path):
    rng = np.random.default_rng(5)
    cases = [make(rng, dim, projection, [5, 2], tier=tier, cluster=cluster, processors=processors)
             for dim, projection in ((150, 40), (260, 10))]
    for case, found in zip(cases, run(cases, tmp_path)):
        check(case, found)


def test_two_calls_are_one_long_call(tier, tmp_path):
    rng = np.random.default_rng(6)
    case = make(rng, 50, 18, [6] * 6, tier=tier)
    first = replace(case, live=case.live[:2], products=[each[:12] for each in case.products])
    whole, half = run([case, first], tmp_path)
    rest = replace(case, live=case.live[2:], products=[each[12:] for each in case.products], h=half[1], c=half[2])
    (end,) = run([rest], tmp_path)
    # The second call rounds an fp32 h that the first had rounded already: the same operand.
    assert same(whole, (np.concatenate([half[0], end[0]]), end[1], end[2]))


def test_what_is_no_number_stays_in_its_lane(tier, tmp_path):
    rng = np.random.default_rng(7)
    case = make(rng, 40, 12, [10] * 4, tier=tier, cell_clip=3.0, proj_clip=3.0)
    poisoned = replace(case, products=[each.copy() for each in case.products], h=case.h.copy())
    poisoned.products[0][13] = np.nan  # lane 3 of step 1, forward
    poisoned.h[5, 12:] = np.inf  # lane 5, backward
    clean, found = run([case, poisoned], tmp_path)
    rows = np.arange(40).reshape(4, 10)
    assert np.isnan(found[0][rows[1:, 3], :12]).all()
    assert np.isnan(found[0][rows[:, 5], 12:]).any()
    others = np.delete(rows, (3, 5), axis=1).ravel()
    assert (found[0][others] == clean[0][others]).all()
    assert (found[0][rows[:, 3], 12:] == clean[0][rows[:, 3], 12:]).all()


@pytest.mark.parametrize("dim,projection", [(150, 40), (90, 90)])
def test_a_launch_that_gives_up_is_replayed_with_the_same_bits(dim, projection, tmp_path):
    rng = np.random.default_rng(8)
    case = make(rng, dim, projection, [19, 19, 11, 8, 2, 1, 1, 1], distinct=12, resets="state", tier=PERSISTENT,
                proj_clip=0.5)
    aborted = replace(case, absent_block=2, nanoseconds=SECOND // 50)
    whole, found = run([case, aborted], tmp_path)
    assert (whole[3], found[3]) == (0, 2)  # one for each direction
    assert same(whole, found)


def test_the_barrier_wraps_around(tmp_path):
    rng = np.random.default_rng(9)
    case = make(rng, 96, 24, [4] * 8, tier=PERSISTENT)
    starts = [2**32 - 1, 2**32 - 40, 2**31 - 17, 2**31]
    plain, *wrapped = run([case, *(replace(case, first_count=each, seed=each % 97) for each in starts)], tmp_path)
    check(case, plain)
    assert all(same(plain, each) and each[3] == 0 for each in wrapped)


@pytest.mark.parametrize("kind,environment", [
    ("_address", {"ASAN_OPTIONS": "abort_on_error=0"}), ("_thread", {"TSAN_OPTIONS": "halt_on_error=1"})])
def test_no_stray_access_and_no_race(kind, environment, tmp_path):
    if not sanitizers_link(tmp_path):
        pytest.skip("no g++ with AddressSanitizer and ThreadSanitizer")
    rng = np.random.default_rng(10)
    cases = []
    for number in TIERS.values():
        for dim, projection, live in ((37, 11, [9, 4, 1]), (90, 90, [3, 2]), (150, 70, [17, 2, 2]), (3, 2, [1])):
            cases.append(make(rng, dim, projection, live, distinct=5, resets="state", tier=number, seed=dim,
                              cell_clip=0.3, proj_clip=0.1))
    long = make(rng, 96, 24, [4] * 9, tier=PERSISTENT)
    cases += [replace(long, first_count=2**32 - 30), replace(long, absent_block=1, nanoseconds=SECOND // 100)]
    results = run(cases, tmp_path, kind, environment)
    assert [each[3] for each in results[:-1]] == [0] * (len(cases) - 1) and results[-1][3] == 2
    for case, found in zip(cases, results):
        assert max(errors(found, oracle(case))) <= ROUNDED[FP16]
