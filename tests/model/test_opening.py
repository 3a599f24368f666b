"""Options from keyword arguments: an unknown name is refused with the nearest option."""

import pytest

from elmo_fast import BiLm, Elmo, ElmoEmbedder
from elmo_fast.compat.bilm import BidirectionalLanguageModel, dump_token_embeddings
from elmo_fast.compat.seqvec import embed_fasta
from elmo_fast.compat.simple_elmo import ElmoModel
from elmo_fast.embed.api import LoadedElmo
from tests.support.files import paths, write_model
from tests.support.models import bilm


@pytest.mark.parametrize("call, nearest", [
    (lambda folder: BiLm.from_model(folder, precison="low"), "precison: .* did you mean precision"),
    (lambda folder: BiLm.from_files(*paths(folder), stat="zero"), "stat: .* did you mean state"),
    (lambda folder: Elmo(*paths(folder), 1, tokentable="t.hdf5"), "tokentable: .* did you mean token_table"),
    (lambda folder: ElmoEmbedder(*paths(folder), allow_non_finite=True), "did you mean allow_nonfinite"),
    (lambda folder: BidirectionalLanguageModel(*paths(folder), back_end="torch"), "did you mean backend"),
    (lambda folder: dump_token_embeddings(folder / "v", *paths(folder), folder / "o", precission="low"), "precission"),
    (lambda folder: ElmoModel(precission="low"), "did you mean precision"),
    (lambda folder: ElmoModel().load(folder, allow_nonfinit=True), "did you mean allow_nonfinite"),
    (lambda folder: embed_fasta(folder / "a.fasta", folder / "o.h5", folder, resum=True), "did you mean resume"),
    (lambda folder: LoadedElmo(bilm()).save_vectors(folder / "o.h5", [], layot="npz"), "did you mean layout"),
])
def test_an_unknown_option_is_refused(call, nearest, tmp_path):
    folder = write_model(tmp_path / "model")
    (folder / "v").write_text("<S>\n</S>\n")
    with pytest.raises(TypeError, match=nearest):
        call(folder)
