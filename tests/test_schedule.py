import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo_fast.ops.schedule import make_schedule


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), max_size=12))
def test_each_lane_reads_its_sentences_in_turn(sentences):
    lengths = [length for length, _ in sentences]
    lanes = [lane for _, lane in sentences]
    schedule = make_schedule(np.array(lengths, dtype=np.int64), np.array(lanes, dtype=np.int64), lane_count=4)
    first = np.cumsum([0, *lengths])
    expected = {lane: ([], [], []) for lane in range(4)}
    for number, (length, lane) in enumerate(sentences):
        tokens = list(range(first[number], first[number] + length))
        expected[lane][0].extend(tokens)
        expected[lane][1].extend(reversed(tokens))
        expected[lane][2].extend([True] + [False] * (length - 1) if length else [])
    found = {lane: ([], [], []) for lane in range(4)}
    row = 0
    for live in schedule.live:
        for lane in schedule.lanes[:live]:
            found[lane][0].append(schedule.tokens[0, row])
            found[lane][1].append(schedule.tokens[1, row])
            found[lane][2].append(schedule.starts[row])
            row += 1
    assert found == expected
    assert row == sum(lengths)
    assert (np.diff(schedule.live) <= 0).all() and (schedule.live > 0).all()


def test_one_sentence_a_lane_by_default():
    schedule = make_schedule([2, 0, 3])
    assert schedule.lanes.tolist() == [2, 0, 1]
    assert schedule.live.tolist() == [2, 2, 1]
    assert schedule.tokens.tolist() == [[2, 0, 3, 1, 4], [4, 1, 3, 0, 2]]


@pytest.mark.parametrize("lengths, lanes, count, named", [
    ([-1], None, None, "lengths"),
    ([1.5], None, None, "lengths"),
    ([[1]], None, None, "lengths"),
    ([1, 2], [0], None, "lanes"),
    ([1], [-1], None, "lanes"),
    ([1], [3], 2, "lanes"),
])
def test_refuses(lengths, lanes, count, named):
    with pytest.raises(ValueError, match=named):
        make_schedule(lengths, lanes, count)
