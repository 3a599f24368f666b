import pytest
import torch

from elmo_fast.ops import reference
from elmo_fast.ops.char_cnn import char_cnn
from elmo_fast.ops.torch.char_cnn import token_lengths
from elmo_fast.testing import AGAINST_FLOAT64, relative_error
from tests.support.models import SHAPES, options
from tests.support.op_cases import char_cnn_arguments as arguments


@pytest.mark.parametrize("shape", SHAPES)
def test_torch_agrees_with_float64(shape):
    ids, *rest = arguments(SHAPES[shape])
    expected = reference.char_cnn(ids, *rest)
    found = char_cnn(*arguments(SHAPES[shape], torch.float32), backend="torch")
    assert relative_error(found, expected) < AGAINST_FLOAT64["highest"]


def test_learned_padding_decides_where_it_is_largest():
    of = options(char_cnn={"filters": [[1, 4], [3, 4], [7, 4]]})
    ids, char_embed, filters, activation = arguments(of)
    char_embed = char_embed.clone()
    char_embed[260] = 9.0
    filters = [(weight.abs(), bias) for weight, bias in filters]
    expected = reference.char_cnn(ids, char_embed, filters, activation)
    assert torch.allclose(char_cnn(ids, char_embed, filters, activation, backend="torch"), expected, rtol=1e-12)
    unpadded = reference.char_cnn(ids[:, :7], char_embed, filters, activation)
    assert not torch.allclose(unpadded, expected)


@pytest.mark.parametrize("ids", [
    torch.randint(0, 262, (40, 50), generator=torch.Generator().manual_seed(1)),
    torch.full((3, 50), 261),
    torch.zeros(2, 50, dtype=torch.int64),
    torch.zeros(0, 50, dtype=torch.int64),
    torch.randint(0, 262, (3, 50), dtype=torch.int32, generator=torch.Generator().manual_seed(2)),
], ids=["any id anywhere", "padding alone", "no token", "no rows", "int32"])
def test_rows_that_no_token_gives(ids):
    _, *rest = arguments(options())
    expected = reference.char_cnn(ids, *rest)
    found = char_cnn(ids, *rest, backend="torch")
    assert found.shape == expected.shape == (len(ids), 25)
    assert torch.allclose(found, expected, rtol=1e-12)


def test_gradients_agree():
    of = options(char_cnn={"filters": [[1, 3], [2, 4], [6, 5]]})
    grads = []
    for run in (reference.char_cnn, lambda *each: char_cnn(*each, backend="torch")):
        ids, char_embed, filters, activation = arguments(of, requires_grad=True)
        run(ids, char_embed, filters, activation).sin().sum().backward()
        grads.append([char_embed.grad, *(part.grad for pair in filters for part in pair)])
    for expected, found in zip(*grads):
        assert expected.abs().sum() > 0
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_token_lengths():
    ids = torch.full((4, 6), 261)
    ids[0, :3] = 5
    ids[1, 4] = 5
    ids[2, 5] = 0
    assert token_lengths(ids).tolist() == [3, 5, 6, 0]
