"""The char encoder below torch's ops: the bits of one op after the other, in every engine, also after edits."""

import pytest
import torch

from elmo_fast.ops.char_cnn import char_cnn
from elmo_fast.ops.linear import highway, linear
from elmo_fast.ops.numerics import numerics
from tests.support.engines import BF16_DOTS, BF16_WEIGHTS, HIGHEST, LOW, TILES, needs_native
from tests.support.models import SENTENCES, SHAPES, bilm

pytestmark = needs_native
CPU = torch.device("cpu")


def ops_in_order(source, ids):
    """What `encode_rows` computes, an op after the other."""
    named = dict(source.named_parameters())
    filters = [(named[f"W_cnn_{i}"], named[f"b_cnn_{i}"]) for i in range(len(source.options.filters))]
    x = char_cnn(ids, named["char_embed"], filters, source.options.activation, backend="native")
    for k in range(source.options.n_highway):
        x = highway(x, *(named[f"{name}_{k}"] for name in ("W_carry", "b_carry", "W_transform", "b_transform")),
                    backend="native")
    return linear(x, named["W_proj"], named["b_proj"], backend="native") if source.has_projection else x.float()


@pytest.mark.parametrize("engine", [*HIGHEST, *BF16_WEIGHTS, *BF16_DOTS, *TILES, *LOW], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_bits_are_those_of_op_after_op(engine, shape):
    source = bilm(SHAPES[shape], backend="native").token_source
    ids = source.token_ids([token for sentence in SENTENCES for token in sentence])
    with torch.no_grad(), engine.active(), numerics(engine.precision, CPU):
        assert torch.equal(source.encode_rows(ids, "native"), ops_in_order(source, ids))


@pytest.mark.parametrize("name", ["char_embed", "W_cnn_1", "b_cnn_0", "W_carry_0", "b_transform_0", "W_proj", "b_proj"])
def test_an_edit_of_any_weight_counts(name):
    source = bilm(backend="native").token_source
    ids = source.token_ids(SENTENCES[0])
    with torch.no_grad():
        before = source.encode_rows(ids, "native")
        getattr(source, name).data.add_(0.5)  # which torch does not count
        after = source.encode_rows(ids, "native")
        assert not torch.equal(after, before) and torch.equal(after, ops_in_order(source, ids))


def test_half_precision_weights_run_in_fp32_like_the_ops():
    source = bilm(backend="native").half().token_source
    ids = source.token_ids(SENTENCES[0])
    with torch.no_grad(), numerics("medium", CPU):
        found = source.encode_rows(ids, "native")
        assert found.dtype == torch.float32 and torch.equal(found, ops_in_order(source, ids))
