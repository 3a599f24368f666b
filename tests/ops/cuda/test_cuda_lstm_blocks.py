import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elmo_fast.ops.cuda import blocks


@given(st.integers(1, 5000))
def test_a_bucket_holds_its_slots_and_not_many_more(slots):
    bucket = blocks.bucket_of(slots)
    assert slots <= bucket == blocks.bucket_of(bucket)
    assert bucket <= 2 * slots if slots <= 64 else bucket - slots < 128
    assert bucket <= blocks.bucket_of(slots + 1)


@given(st.integers(0, 3000))
def test_chunks_make_up_the_steps(steps):
    chunks = list(blocks.chunks_of(steps))
    assert [first for first, _ in chunks] == np.cumsum([0, *(size for _, size in chunks)])[:-1].tolist()
    assert sum(size for _, size in chunks) == steps
    assert sum(size < blocks.CHUNKS[0] for _, size in chunks) <= len(blocks.CHUNKS) - 1


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 400), st.sampled_from([3, 64, 1024]))
def test_blocks_hold_each_packed_row_once(lengths, most_rows, most_slots):
    lengths = np.sort(np.array(lengths, dtype=np.int64))[::-1]
    batch_sizes = np.array([(lengths > step).sum() for step in range(int(lengths.max(initial=0)))], dtype=np.int64)
    first_row, steps_of, seen = np.cumsum(batch_sizes) - batch_sizes, {}, []
    for block in blocks.blocks(batch_sizes, most_rows, most_slots):
        assert len(block.rows) <= most_rows or block.steps == 1
        assert block.bucket == blocks.bucket_of(block.slots) and block.slots <= most_slots
        assert block.places.dtype == block.batch_sizes.dtype == np.int32 and block.batch_sizes.min() >= 1
        first = steps_of.setdefault(block.slot, 0)
        for step, places in enumerate(block.places):
            rows = first_row[first + step] + block.slot + np.arange(block.batch_sizes[step])
            assert places.tolist() == rows.tolist() + [-1] * (block.bucket - len(rows))
            assert block.rows[block.rows_of(step, 1)].tolist() == rows.tolist()
        steps_of[block.slot] += block.steps
        seen += block.rows.tolist()
    assert sorted(seen) == list(range(int(batch_sizes.sum())))


def test_few_slots_move_to_a_smaller_bucket_where_enough_steps_are_left():
    for least, cut in ((8, [(64, 5), (16, 2), (4, 8)]), (7, [(64, 5), (16, 9)])):
        batch_sizes = np.array([64] * 3 + [17] * 2 + [16] * 2 + [3] * (least - 2) + [1] * 2)
        assert [(block.bucket, block.steps) for block in blocks.blocks(batch_sizes, 10**6, 64)] == cut
