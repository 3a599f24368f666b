"""What a model is made of, in words."""

import math

from elmo_fast.model.options import Options
from elmo_fast.model.sources import ModelFiles
from elmo_fast.model.weights import read_weights


def describe(files: ModelFiles) -> dict[str, str]:
    """Sizes and parameters of a model by name, after its options and weights have been read and checked."""
    options = Options.from_file(files.options_file)
    weights = read_weights(files.weight_file, options)
    lstm = options.lstm
    described = {
        "options file": str(files.options_file),
        "weight file": str(files.weight_file),
        "vocabulary": str(files.vocab_file or "none beside it"),
        "layers": f"{options.n_layers} (the token layer and {lstm.n_layers} LSTM layers, two directions each)",
        "vector of a token": f"{options.output_dim} values a layer",
        "LSTM": f"dim {lstm.dim}, projection {lstm.projection_dim if lstm.is_projected else 'none'}, "
                f"skip connections {'on' if lstm.use_skip_connections else 'off'}",
        "clips": f"cell {_clip(lstm.cell_clip)}, projection {_clip(lstm.proj_clip)}",
        **_input_of(options),
        "parameters": f"{sum(math.prod(array.shape) for array in weights.values()):,}",
    }
    return described


def _input_of(options: Options) -> dict[str, str]:
    if options.char_cnn is None:
        return {"input": f"word ids, {options.n_tokens_vocab:,} words"}
    cnn = options.char_cnn
    filters = ", ".join(f"{count} of width {width}" for width, count in cnn.filters)
    return {
        "input": f"characters (UTF-8 bytes), at most {cnn.max_characters_per_token} a token, {cnn.embedding_dim} values each",
        "char-CNN": f"{cnn.n_filters} filters ({filters}), {cnn.activation}",
        "highway layers": str(cnn.n_highway),
    }


def _clip(limit: float | None) -> str:
    return "none" if limit is None else f"±{limit:g}"
