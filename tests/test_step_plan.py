import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo_fast.ops import step_plan


@given(st.integers(1, 5000))
def test_a_bucket_holds_its_lanes_and_not_many_more(lanes):
    bucket = step_plan.bucket_of(lanes)
    assert lanes <= bucket == step_plan.bucket_of(bucket)
    assert bucket <= 2 * lanes if lanes <= 64 else bucket - lanes < 128
    assert bucket <= step_plan.bucket_of(lanes + 1)


@given(st.integers(0, 3000))
def test_chunks_make_up_the_steps(steps):
    chunks = list(step_plan.chunks_of(steps))
    assert [first for first, _ in chunks] == np.cumsum([0, *(size for _, size in chunks)])[:-1].tolist()
    assert sum(size for _, size in chunks) == steps
    assert sum(size < step_plan.CHUNKS[0] for _, size in chunks) <= len(step_plan.CHUNKS) - 1


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 400), st.sampled_from([3, 64, 1024]))
def test_blocks_hold_each_step_row_once(lengths, most_rows, most_lanes):
    lengths = np.sort(np.array(lengths, dtype=np.int64))[::-1]
    live = np.array([(lengths > step).sum() for step in range(int(lengths.max(initial=0)))], dtype=np.int64)
    first_row = np.cumsum(live) - live
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_plan, "MOST_LANES", most_lanes)
        found = list(step_plan.blocks(live, most_rows))
    seen = []
    for block in found:
        assert len(block.rows) <= most_rows or block.steps == 1
        assert block.bucket == step_plan.bucket_of(block.lanes) and block.lanes <= most_lanes
        assert block.places.dtype == np.int32
        for step in range(block.steps):
            rows = block.places[step][block.places[step] >= 0]
            number = block.first + step
            assert rows.tolist() == list(range(first_row[number] + block.lane, first_row[number] + block.lane + len(rows)))
            assert (block.places[step, len(rows):] == -1).all()
        assert (np.split(block.rows, block.ends[1:-1])[0] == block.places[0][block.places[0] >= 0]).all()
        seen += block.rows.tolist()
    assert sorted(seen) == list(range(int(live.sum())))


def test_few_lanes_move_to_a_smaller_bucket():
    live = np.array([64] * 3 + [17] * 2 + [16] * 2 + [1] * 4)
    assert [(block.first, block.bucket, block.steps) for block in step_plan.blocks(live, 10**6)] == [
        (0, 64, 5), (5, 16, 2), (7, 1, 4)]
