"""The description of a model of any family, from its files, that `elmo-fast info` prints."""

from elmo_fast.weights.sources import ModelFiles


def describe(files: ModelFiles, allow_nonfinite: bool) -> dict[str, str]:
    """Sizes and parameters of a model by name, after its options and weights have been read and checked."""
    family = files.family.implementation
    options, weights = family.read(files, allow_nonfinite)
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
        "input": family.describe(options),
    }
    if cnn is not None:
        filters = ", ".join(f"{count} of width {width}" for width, count in cnn.filters)
        described["char-CNN"] = f"{cnn.n_filters} filters ({filters}), {cnn.activation}"
        described["highway layers"] = str(cnn.n_highway)
    return {**described, "parameters": f"{sum(array.size for array in weights.values()):,}"}
