import pytest
import torch
from models import SENTENCES
from tolerances import AGAINST_FLOAT64, relative_error

from elmo_fast.ops import native_cuda, reference, torch_char_cnn
from elmo_fast.text.characters import encode_tokens, to_model_ids

# name: precision, whether fp16 is known to fit, key of the limit
PRECISIONS = {"ieee": ("highest", False, "highest"), "tf32": ("high", False, "high-tf32"),
              "fp16": ("medium", True, "medium-fp16"), "bf16": ("medium", False, "medium-bf16")}
WORDS = sorted({token for sentence in SENTENCES for token in sentence if len(token) < 20} | {"<S>", "</S>", "z" * 15})


def model(filters, dim=16, dtype=torch.float64, seed=0):
    """char_embed and filters, drawn in float64 and rounded to fp32 values."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).float().to(dtype)

    return draw(261, dim), [(draw(1, width, dim, count) / width, draw(count)) for width, count in filters]


def words(characters=50, tokens=WORDS):
    return torch.from_numpy(to_model_ids(encode_tokens(tokens, characters))).long()


def run(name, ids, char_embed, filters, activation="relu"):
    single = [(weight.float(), bias.float()) for weight, bias in filters]
    return native_cuda.char_cnn(ids, char_embed.float(), single, activation, *PRECISIONS[name][:2])


def check(name, ids, char_embed, filters, activation="relu"):
    expected = reference.char_cnn(ids, char_embed, filters, activation)
    found = run(name, ids, char_embed, filters, activation)
    assert found.shape == expected.shape and found.isfinite().all()
    assert relative_error(found, expected) < AGAINST_FLOAT64[PRECISIONS[name][2]]


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("name", PRECISIONS)
def test_words_agree_with_float64(name, activation):
    tokens = [*WORDS, "x" * 48, "y" * 60]
    check(name, words(tokens=tokens), *model([[1, 3], [3, 9], [4, 17], [7, 33]]), activation)


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("dim, characters, filters", [
    (5, 50, [[1, 3], [2, 6], [3, 9], [5, 7]]),
    (16, 7, [[7, 8]]),
    (1, 9, [[width, 1] for width in range(1, 10)]),
    (70, 12, [[2, 5]]),
    (200, 8, [[3, 4]]),
    (16, 12, [[1 + k % 4, 2 + k] for k in range(12)]),
    (24, 50, [[50, 3]]),
], ids=["odd", "as wide as a token", "every width", "dim 70", "dim 200", "twelve", "width 50"])
def test_every_shape(name, dim, characters, filters):
    check(name, words(characters, ["x" * n for n in (1, 5, 48, 60)] + ["a", "naïve", "<S>"]), *model(filters, dim))


@pytest.mark.parametrize("ids", [
    words(tokens=["a" * n for n in range(0, 52, 3)]),
    torch.randint(0, 262, (9, 50), generator=torch.Generator().manual_seed(1)),
    torch.full((3, 50), 261),
    torch.zeros(2, 50, dtype=torch.int64),
    torch.tensor([[1, 261], [261, 1], [0, 261], [261, 0]]).repeat(1, 25),
    words(tokens=["one"]),
    torch.zeros(0, 50, dtype=torch.int64),
    words().int(),
    words().t().contiguous().t(),
    torch.cat([words(), words()], dim=1)[:, :50],
    words(tokens=[f"{n:x}" for n in range(33)]),
], ids=["1 to 50 bytes", "any id anywhere", "padding alone", "no token", "both ends of the range", "one token", "none",
        "int32", "columns first", "strided", "one more than a tile"])
def test_rows_of_every_kind(ids):
    char_embed, filters = model([[1, 4], [3, 5]])
    if len(ids):
        check("ieee", ids, char_embed, filters)
        check("fp16", ids, char_embed, filters)
    else:
        assert run("ieee", ids, char_embed, filters).shape == (0, 9)


def test_ten_thousand_tokens():
    ids = words(tokens=[f"{n:x}" for n in range(9_995)] + ["y" * 50, "z" * 20, "", "<S>", "x" * 47])
    check("tf32", ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(3))], *model([[2, 2]], dim=4))


def test_learned_padding_decides_where_a_window_of_it_exists():
    char_embed, filters = model([[1, 4], [3, 4], [7, 4]])
    char_embed[260] = 9.0
    filters = [(weight.abs(), bias) for weight, bias in filters]
    check("ieee", words(tokens=["a" * n for n in (1, 3, 40, 41, 42, 45, 48)]), char_embed, filters)


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_token_has_the_same_bits_in_any_company(name):
    char_embed, filters = model([[1, 4], [4, 19]])
    char_embed[260] *= 3
    ids = words()
    together = run(name, ids, char_embed, filters)
    for row in (0, 7, len(ids) - 1):
        assert torch.equal(run(name, ids[row : row + 1], char_embed, filters)[0], together[row])
    assert torch.equal(run(name, ids.flip(0), char_embed, filters).flip(0), together)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("name", ["ieee", "tf32", "bf16"])
def test_nan_and_infinity_go_where_the_reference_has_them(name, activation):
    char_embed, filters = model([[1, 5], [3, 6], [7, 4]])
    char_embed[ord("e"), 3] = float("nan")
    char_embed[ord("o"), 0] = float("inf")
    filters[1][0][0, 1, 2, 3] = float("-inf")
    filters[1][0][0, 0, 0, 4] = float("nan")
    filters[2][1][2] = float("nan")
    expected = reference.char_cnn(words(), char_embed, filters, activation)
    found = run(name, words(), char_embed, filters, activation).double()
    assert expected.isnan().any() and not expected.isnan().all()
    assert torch.equal(found.isnan(), expected.isnan()) and torch.equal(found.isposinf(), expected.isposinf())
    finite = expected.isfinite()
    assert relative_error(found[finite], expected[finite]) < AGAINST_FLOAT64[PRECISIONS[name][2]]


def test_ids_outside_the_table_read_nothing_outside():
    char_embed, filters = model([[1, 4], [3, 5]])
    ids = words()
    ids[0, 2], ids[1, 1], ids[2, 0] = -5, 262, 2**40
    assert torch.equal(run("ieee", ids, char_embed, filters), run("ieee", ids.clamp(0, 261), char_embed, filters))


@pytest.mark.parametrize("wrong", [-1, 262])
def test_the_switch_reports_ids_outside_the_table(wrong, monkeypatch):
    char_embed, filters = model([[1, 4]])
    ids = words()
    monkeypatch.setenv(native_cuda.CHECK_IDS, "1")
    run("ieee", ids, char_embed, filters)
    ids[3, 2] = wrong
    with pytest.raises(RuntimeError, match="ids: expected character ids from 0 to 261"):
        run("ieee", ids, char_embed, filters)


def test_edited_weights_are_seen():
    char_embed, filters = (model([[2, 4]], dtype=torch.float32))
    before = native_cuda.char_cnn(words(), char_embed, filters, "relu", "highest")
    filters[0][0].mul_(2)
    filters[0][1].add_(1)
    expected = reference.char_cnn(words(), char_embed.double(), [tuple(map(torch.Tensor.double, filters[0]))], "relu")
    found = native_cuda.char_cnn(words(), char_embed, filters, "relu", "highest")
    assert relative_error(found, expected) < AGAINST_FLOAT64["highest"] < relative_error(before, expected)


def gradients(compute, ids, char_embed, filters, activation, dtype):
    leaves = [each.to(dtype).clone().requires_grad_() for each in (char_embed, *(part for pair in filters for part in pair))]
    pairs = list(zip(leaves[1::2], leaves[2::2]))
    out = compute(ids, leaves[0], pairs, activation)
    return torch.autograd.grad((out * torch.linspace(1, 2, out.numel(), dtype=out.dtype).view_as(out)).sum(), leaves)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("ties", [False, True])
def test_gradients_agree_with_the_reference(activation, ties):
    char_embed, filters = model([[1, 3], [3, 4], [6, 5]])
    if activation == "tanh":  # its slope where it saturates, 1 - tanh(x)^2, is all rounding in fp32
        filters = [(weight / 8, bias) for weight, bias in filters]
    if ties:  # some filters see no difference between windows, or see only one value of a character
        filters[1][0][..., :2] = 0
        filters[1][1][:2] = 0.5
        char_embed = (char_embed > 0).double()
        filters[0] = (filters[0][0].sign(), filters[0][1])
    expected = gradients(reference.char_cnn, words(), char_embed, filters, activation, torch.float64)
    found = gradients(lambda *each: native_cuda.char_cnn(*each, "highest"), words(), char_embed, filters, activation,
                      torch.float32)
    for ours, theirs in zip(found, expected):
        assert theirs.abs().sum() > 0 and relative_error(ours, theirs) < 2e-5


def test_gradients_of_some_operands_in_16_bits():
    char_embed, filters = model([[1, 3], [3, 4]], dtype=torch.float32)
    weight = filters[1][0].bfloat16().requires_grad_()
    out = native_cuda.char_cnn(words(), char_embed.bfloat16(), [filters[0], (weight, filters[1][1])], "tanh", "medium")
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    exact = weight.detach().double().requires_grad_()
    pairs = [tuple(map(torch.Tensor.double, filters[0])), (exact, filters[1][1].double())]
    reference.char_cnn(words(), char_embed.bfloat16().double(), pairs, "tanh").sum().backward()
    assert weight.grad.dtype == torch.bfloat16
    assert relative_error(weight.grad, exact.grad) < AGAINST_FLOAT64["medium-bf16"]


def test_gradients_in_pieces(monkeypatch):
    char_embed, filters = model([[1, 3], [3, 4]])
    whole = gradients(lambda *each: native_cuda.char_cnn(*each, "highest"), words(), char_embed, filters, "relu", torch.float32)
    monkeypatch.setattr(torch_char_cnn, "_WINDOWS_AT_ONCE", 60)
    pieces = gradients(lambda *each: native_cuda.char_cnn(*each, "highest"), words(), char_embed, filters, "relu", torch.float32)
    assert all(relative_error(*pair) < 1e-5 for pair in zip(pieces, whole))


def test_the_op_is_registered_well():
    char_embed, filters = model([[1, 3], [3, 4]], dtype=torch.float32)
    weights, biases = [pair[0].requires_grad_() for pair in filters], [pair[1] for pair in filters]
    for operands in ("ieee", "bf16"):
        torch.library.opcheck(torch.ops.elmo_fast.char_cnn.default,
                              (words(tokens=["a", "bcd"]), char_embed.requires_grad_(), weights, biases, "relu", operands))


def test_compile_sees_one_op():
    char_embed, filters = model([[1, 3], [3, 4]], dtype=torch.float32)
    ids = words(tokens=["a", "bcd", "efghi"])
    graphs = []

    def backend(graph, _):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    compiled = torch.compile(lambda ids: native_cuda.char_cnn(ids, char_embed, filters, "relu", "highest"),
                             fullgraph=True, backend=backend)
    assert torch.equal(compiled(ids), native_cuda.char_cnn(ids, char_embed, filters, "relu", "highest"))
    assert [str(target) for target in graphs[0]].count("elmo_fast.char_cnn") == 1
