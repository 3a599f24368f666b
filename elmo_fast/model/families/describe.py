"""Sizes and parameters of a model by name, as `elmo-fast info` prints them."""

from elmo_fast.model.families.manylangs import ManyLangsOptions, read_manylangs
from elmo_fast.model.options import Options
from elmo_fast.model.sources import MANYLANGS_WEIGHTS, ModelFiles
from elmo_fast.model.weights import read_model


def describe(files: ModelFiles, allow_nonfinite: bool = False) -> dict[str, str]:
    """Sizes and parameters of a model, after its options and weights have been read and checked."""
    options, weights = (read_manylangs(files.weight_file.parent, allow_nonfinite)
                        if files.weight_file.name == MANYLANGS_WEIGHTS else read_model(files, allow_nonfinite))
    lstm, cnn = options.lstm, options.char_cnn
    projects = any(name.endswith("/W_P_0") for name in weights)
    described = {
        "options file": str(files.options_file),
        "weight file": str(files.weight_file),
        "vocabulary": str(files.vocab_file or "none beside it"),
        "layers": f"{options.n_layers} (the token layer and {lstm.n_layers} LSTM layers, two directions each)",
        "vector of a token": f"{options.output_dim} values a layer",
        "LSTM": f"dim {lstm.dim}, projection {lstm.projection_dim if projects else 'none'}, "
                f"skip connections {'on' if lstm.use_skip_connections else 'off'}",
        "clips": ", ".join(f"{name} none" if clip is None else f"{name} ±{clip:g}"
                           for name, clip in (("cell", lstm.cell_clip), ("projection", lstm.proj_clip))),
        "input": _input(options),
    }
    if cnn is not None:
        filters = ", ".join(f"{count} of width {width}" for width, count in cnn.filters)
        described["char-CNN"] = f"{cnn.n_filters} filters ({filters}), {cnn.activation}"
        described["highway layers"] = str(cnn.n_highway)
    return {**described, "parameters": f"{sum(array.size for array in weights.values()):,}"}


def _input(options: Options) -> str:
    if (cnn := options.char_cnn) is None:
        return f"word ids, {options.n_tokens_vocab:,} words"
    sizes = f"at most {cnn.max_characters_per_token} a token, {cnn.embedding_dim} values each"
    if not isinstance(options, ManyLangsOptions):
        return f"characters (UTF-8 bytes), {sizes}"
    words = "" if options.words is None else f"; {len(options.words):,} words (word.dic)"
    return f"{len(options.characters):,} characters (char.dic), {sizes}{words}"
