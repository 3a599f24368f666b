import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo_fast.ops.schedule import make_schedule


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), max_size=12))
def test_each_slot_reads_its_sentences_in_turn(sentences):
    lengths = [length for length, _ in sentences]
    slots = [slot for _, slot in sentences]
    schedule = make_schedule(np.array(lengths, dtype=np.int64), np.array(slots, dtype=np.int64), slot_count=4)
    first = np.cumsum([0, *lengths])
    expected = {slot: ([], [], []) for slot in range(4)}
    for number, (length, slot) in enumerate(sentences):
        tokens = list(range(first[number], first[number] + length))
        expected[slot][0].extend(tokens)
        expected[slot][1].extend(reversed(tokens))
        expected[slot][2].extend([True] + [False] * (length - 1) if length else [])
    found = {slot: ([], [], []) for slot in range(4)}
    row = 0
    for live in schedule.batch_sizes:
        for slot in schedule.slots[:live]:
            found[slot][0].append(schedule.tokens[0, row])
            found[slot][1].append(schedule.tokens[1, row])
            found[slot][2].append(schedule.sequence_starts[row])
            row += 1
    assert found == expected
    assert row == sum(lengths)
    assert (np.diff(schedule.batch_sizes) <= 0).all() and (schedule.batch_sizes > 0).all()


def test_one_sentence_a_slot_by_default():
    schedule = make_schedule([2, 0, 3])
    assert schedule.slots.tolist() == [2, 0, 1]
    assert schedule.batch_sizes.tolist() == [2, 2, 1]
    assert schedule.tokens.tolist() == [[2, 0, 3, 1, 4], [4, 1, 3, 0, 2]]


@pytest.mark.parametrize("lengths, slots, count, named", [
    ([-1], None, None, "lengths"),
    ([1.5], None, None, "lengths"),
    ([[1]], None, None, "lengths"),
    ([1, 2], [0], None, "slots"),
    ([1], [-1], None, "slots"),
    ([1], [3], 2, "slots"),
])
def test_refuses(lengths, slots, count, named):
    with pytest.raises(ValueError, match=named):
        make_schedule(lengths, slots, count)
