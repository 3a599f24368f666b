"""torch.compile runs a model with one graph break and the right result; exporters and tracers refuse in one line."""

import re

import pytest
import torch
from torch import nn

from elmo_fast import BiLm, Elmo, ElmoEmbedder, batch_to_ids
from elmo_fast.compat.allennlp.modules.elmo import _ElmoBiLm, _ElmoCharacterEncoder
from elmo_fast.compat.allennlp.modules.token_embedders import ElmoTokenEmbedder
from elmo_fast.compat.bilm import BidirectionalLanguageModel
from tests.support.files import paths, tiny, write_model
from tests.support.grid import mostly_long

IN_WORDS_OF_TORCH = not hasattr(torch.compiler, "is_exporting")  # torch 2.6 cannot tell that it exports
BATCHES = [[["a", "play"], ["b"]], [["one", "longer", "sentence", "naïve"]], [["b"], [], ["a", "play", "."]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / "model", tiny(lstm__dim=12))


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def of_elmo(folder, **arguments):
    elmo = Elmo(*paths(folder), 1, dropout=0, **arguments)
    return elmo, lambda output, ids: (output["elmo_representations"][0], output["mask"])


def of_bilm(folder, **arguments):
    return BiLm.from_files(*paths(folder), **arguments), lambda output, ids: (output.activations[-1], output.mask)


def of_embedder(folder, **arguments):
    embedder = ElmoTokenEmbedder(*paths(folder), dropout=0, projection_dim=8, **arguments)
    return embedder, lambda output, ids: (output, (ids > 0).any(-1))


class Tagger(nn.Module):
    """A model with layers before and after one of these modules."""

    def __init__(self, make, folder, uses_mask, **arguments):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.read = make(folder, **arguments)
        self.linear, self.uses_mask = nn.Linear(8, 3), uses_mask

    def forward(self, ids):
        counts = (ids > 0).any(-1).sum(1)
        vectors, mask = self.read(self.inner(ids), ids)
        scores = self.linear(vectors).tanh()
        if self.uses_mask:
            scores = scores * mask[..., None]
        return scores.sum(1) / (counts[:, None] + 1)


def check(make, folder, backend, uses_mask, train, **arguments):
    """Compare results and gradients of three batches, with carried states, to the model without a compiler."""
    model, plain = (Tagger(make, folder, uses_mask, **arguments).train(train) for _ in range(2))
    compiled = torch.compile(model, backend=backend)
    for batch in BATCHES:
        ids = batch_to_ids(batch)
        actual, expected = compiled(ids), plain(ids)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
        if train:
            actual.sum().backward()
            expected.sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make, uses_mask, train", mostly_long([
    (of_elmo, True, False), (of_bilm, False, True), (of_embedder, True, False),
    (of_elmo, False, True), (of_bilm, True, False), (of_embedder, False, True)]))
def test_a_compiled_model_has_the_same_results(folder, make, uses_mask, train):
    check(make, folder, "eager", uses_mask, train, requires_grad=train)


@pytest.mark.long
@pytest.mark.parametrize("make, uses_mask, train", [(of_elmo, True, True), (of_bilm, False, False)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_with_inductor(folder, make, uses_mask, train):
    check(make, folder, "inductor", uses_mask, train, requires_grad=train, state="zero")


@pytest.mark.parametrize("make", [of_elmo, of_bilm, of_embedder])
def test_one_graph_break(folder, make):
    explanation = torch._dynamo.explain(Tagger(make, folder, True))(batch_to_ids(BATCHES[0]))
    assert (explanation.graph_count, explanation.graph_break_count) == (2, 1)


def test_calls_with_text_inside_a_compiled_function(folder):
    """Models that encode their own tokens, and the parts of `Elmo`."""
    embedder, elmo = ElmoEmbedder(*paths(folder), state="zero"), Elmo(*paths(folder), 1, dropout=0, state="zero")
    encoder, model = _ElmoCharacterEncoder(*paths(folder)), BidirectionalLanguageModel(*paths(folder), state="zero")
    bilm = _ElmoBiLm(*paths(folder), state="zero")
    for function in (lambda scale: elmo(batch_to_ids(BATCHES[0]))["elmo_representations"][0] * scale,
                     lambda scale: encoder(batch_to_ids(BATCHES[0]))["token_embedding"] * scale,
                     lambda scale: bilm(batch_to_ids(BATCHES[0]))["activations"][2] * scale,
                     lambda scale: model.token_embeddings(batch_to_ids(BATCHES[0])) * scale,
                     lambda scale: bilm.embed_tokens(BATCHES[0])[0][1] * scale,
                     lambda scale: bilm.encode(BATCHES[0][0]) * scale,
                     lambda scale: torch.from_numpy(embedder.embed_batch(BATCHES[0])[0]) * scale):
        torch._dynamo.reset()
        expected = function(torch.tensor(2.0))
        assert torch.equal(torch.compile(function, backend="eager")(torch.tensor(2.0)), expected)


@pytest.mark.parametrize("make", [of_elmo, of_bilm, of_embedder])
@pytest.mark.parametrize("export", [
    lambda model, ids, path: torch.export.export(model, (ids,)),
    lambda model, ids, path: torch.jit.trace(model, ids, strict=False),
    lambda model, ids, path: torch.jit.script(model),
    lambda model, ids, path: torch.onnx.export(model, (ids,), path, dynamo=False),
], ids=["export", "trace", "script", "onnx"])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_exporters_refuse_in_a_line(folder, tmp_path, make, export, inside):
    model = Tagger(make, folder, True)
    with pytest.raises(RuntimeError) as caught:
        export(model if inside else model.inner, batch_to_ids(BATCHES[0]), tmp_path / "model.onnx")
    line = r"(Elmo|BiLm|ElmoTokenEmbedder): expected a call in Python, got torch\.export, .*; export the part .*"
    assert re.fullmatch(line, str(caught.value)) or (IN_WORDS_OF_TORCH and "dynamo.disable()" in str(caught.value))


@pytest.mark.parametrize("full", [lambda model, ids: torch.export.export(model, (ids,), strict=True),
                                  lambda model, ids: torch.compile(model, fullgraph=True, backend="eager")(ids)])
def test_a_single_graph_is_refused(folder, full):
    words = r"dynamo\.disable\(\)" if IN_WORDS_OF_TORCH else "Elmo: expected a call|an ELMo model runs outside"
    with pytest.raises(torch._dynamo.exc.Unsupported, match=words):
        full(Tagger(of_elmo, folder, True), batch_to_ids(BATCHES[0]))
