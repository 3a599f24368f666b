import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo_fast.engine.schedule import make_schedule


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.booleans()), max_size=12), st.booleans())
def test_each_slot_reads_its_sentences_in_turn(sentences, are_new):
    lengths, slots, continued = (np.array(values, np.int64) for values in zip(*sentences)) if sentences else [[]] * 3
    continued = np.array(continued, bool) & (not are_new)
    schedule = make_schedule(lengths, slots, 4, None if are_new else continued)
    first = np.cumsum([0, *lengths])
    expected, actual = ({slot: [] for slot in range(4)} for _ in range(2))  # (forward token, backward token, a start)
    for number, (length, slot, _) in enumerate(sentences):
        tokens = range(first[number], first[number] + length)
        expected[slot].extend(zip(tokens, reversed(tokens), [not continued[number]] + [False] * length))
    rows = zip(*schedule.tokens, schedule.sequence_starts, strict=True)
    for live in schedule.batch_sizes:
        for slot in schedule.slots[:live]:
            actual[slot].append(next(rows))
    assert actual == expected and next(rows, None) is None
    assert (np.diff(schedule.batch_sizes) <= 0).all() and (schedule.batch_sizes > 0).all()


@pytest.mark.parametrize("lengths, slots, count, name", [
    ([-1], None, None, "lengths"),
    ([1.5], None, None, "lengths"),
    ([[1]], None, None, "lengths"),
    ([1, 2], [0], None, "slots"),
    ([1], [-1], None, "slots"),
    ([1], [3], 2, "slots"),
])
def test_refuses(lengths, slots, count, name):
    with pytest.raises(ValueError, match=name):
        make_schedule(lengths, slots, count)
