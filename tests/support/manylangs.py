"""Random models in ELMoForManyLangs's layout, and their vectors in NumPy and float64, read off the same files."""

import json

import numpy as np
import torch

CHARACTERS = ["<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>", *"abcdefghijklmnopqrstuvwxyzé.,<>SCE/bos東 "]
WORDS = ["<bos>", "<oov>", "the", "<eos>", "<pad>", "cat", "東京", "a b", "abcdefg"]
SENTENCES = [["the", "cat", "sat", "."], [], ["東京", "a b", "naïve", "x" * 30],
             ["<S>", "<bos>", "</S>", "<eos>", "ce"], ["the"] * 9, ["abcdefghij", "abcdefg", ""], ["cat", "cat"]]
CONFIG = {
    "encoder": {"name": "elmo", "projection_dim": 6, "cell_clip": 0.4, "proj_clip": 0.1, "dim": 10, "n_layers": 2},
    "token_embedder": {"name": "cnn", "activation": "relu", "filters": [[1, 4], [2, 5], [3, 7]], "n_highway": 2,
                       "word_dim": 5, "char_dim": 8, "max_characters_per_token": 9},
    "classifier": {"name": "sampled_softmax", "n_samples": 8}, "dropout": 0.1,
}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def config(**changes):
    """`CONFIG` with keys of its two sections replaced."""
    return {**CONFIG, **{name: {key: changes.get(key, value) for key, value in CONFIG[name].items()}
                         for name in ("encoder", "token_embedder")}}


def write_manylangs(folder, content=CONFIG, characters=CHARACTERS, words=WORDS, seed=0):
    """Write a model's five files and the JSON file with its sizes into a folder, and return the folder."""
    generator = torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"seed": 1, "config_path": "elsewhere/sizes.json"}))
    (folder / "sizes.json").write_text(json.dumps(content))
    characters = list(dict.fromkeys(characters))
    for name, tokens in (("char", characters), ("word", words)):
        lines = "".join(f"{token}\t{number}\n" for number, token in enumerate(tokens))
        (folder / f"{name}.dic").write_text(lines, encoding="utf-8")

    def draw(*shape, scale=0.3):
        return scale * torch.randn(*shape, generator=generator)

    part, dim, size = content["token_embedder"], content["encoder"]["dim"], content["encoder"]["projection_dim"]
    filters, total = part["filters"], sum(count for _, count in part["filters"])
    embedder = {"char_emb_layer.embedding.weight": draw(len(characters), part["char_dim"])}
    if part["word_dim"]:
        embedder["word_emb_layer.embedding.weight"] = draw(len(words), part["word_dim"])
    for i, (width, count) in enumerate(filters):
        embedder |= {f"convolutions.{i}.weight": draw(count, part["char_dim"], width),
                     f"convolutions.{i}.bias": draw(count)}
    for k in range(part["n_highway"]):
        embedder |= {f"highways._layers.{k}.weight": draw(2 * total, total),
                     f"highways._layers.{k}.bias": draw(2 * total)}
    embedder |= {"projection.weight": draw(size, total + part["word_dim"]), "projection.bias": draw(size)}
    encoder = {}
    for layer in range(content["encoder"]["n_layers"]):
        for cell in (f"forward_layer_{layer}", f"backward_layer_{layer}"):
            encoder |= {f"{cell}.input_linearity.weight": draw(4 * dim, size, scale=0.5),
                        f"{cell}.state_linearity.weight": draw(4 * dim, size, scale=0.5),
                        f"{cell}.state_linearity.bias": draw(4 * dim, scale=0.5),
                        f"{cell}.state_projection.weight": draw(size, dim, scale=0.5)}
    torch.save(embedder, folder / "token_embedder.pkl")
    torch.save(encoder, folder / "encoder.pkl", _use_new_zipfile_serialization=False)  # as in published models
    return folder


def plain_layers(folder, sentence):
    """The layers of a sentence from a zero state: [layers, tokens, 2 P], and how many values the clips changed."""
    content = json.loads((folder / "sizes.json").read_text())
    embedder, encoder = ({name: value.double().numpy() for name, value in torch.load(folder / file).items()}
                         for file in ("token_embedder.pkl", "encoder.pkl"))
    lexicons = [{line.rsplit("\t", 1)[0]: int(line.rsplit("\t", 1)[1])
                 for line in (folder / f"{name}.dic").read_text(encoding="utf-8").splitlines()}
                for name in ("char", "word")]
    # the original's reader strips lines, and reads white space and a number as the ideographic space
    lexicons = [{(token if token.strip() else "\u3000"): number for token, number in lexicon.items()}
                for lexicon in lexicons]
    x = np.array([_token(token, embedder, content["token_embedder"], *lexicons)
                  for token in ("<bos>", *sentence, "<eos>")])
    layers, clipped = [np.tile(x, 2)], [0, 0]
    halves = [x, x[::-1]]
    for layer in range(content["encoder"]["n_layers"]):
        outputs = [_direction(half, f"{name}_layer_{layer}", encoder, content["encoder"], clipped)
                   for half, name in zip(halves, ("forward", "backward"))]
        halves = [out + half for out, half in zip(outputs, halves)] if layer else outputs
        layers.append(np.concatenate([halves[0], halves[1][::-1]], axis=1))
    return np.array(layers)[:, 1:-1], clipped


def _token(token, weights, config, characters, words):
    length = config["max_characters_per_token"]
    token = token[: length - 2]
    inner = [token] if token in ("<bos>", "<eos>") else list(token)
    spelled = ["<eow>", *inner, "<bow>", *["<pad>"] * (length - 2 - len(inner))]
    table = weights["char_emb_layer.embedding.weight"]
    rows = table[[characters.get(character, characters["<oov>"]) for character in spelled]]  # [C, E]
    values = []
    for i, (width, _) in enumerate(config["filters"]):
        kernel, bias = weights[f"convolutions.{i}.weight"], weights[f"convolutions.{i}.bias"]
        values.append(np.max([(kernel * rows[at : at + width].T).sum((1, 2)) + bias
                              for at in range(length - width + 1)], axis=0))
    x = np.concatenate(values)
    x = np.maximum(x, 0) if config["activation"] == "relu" else np.tanh(x)
    for k in range(config["n_highway"]):
        new, gate = np.split(weights[f"highways._layers.{k}.weight"] @ x + weights[f"highways._layers.{k}.bias"], 2)
        x = sigmoid(gate) * x + (1 - sigmoid(gate)) * np.maximum(new, 0)
    if config["word_dim"]:
        x = np.concatenate([weights["word_emb_layer.embedding.weight"][words.get(token, words["<oov>"])], x])
    return weights["projection.weight"] @ x + weights["projection.bias"]


def _direction(sequence, cell, weights, config, clipped):
    w, u, b, p = (weights[f"{cell}.{name}"] for name in (
        "input_linearity.weight", "state_linearity.weight", "state_linearity.bias", "state_projection.weight"))
    h, c, outputs = np.zeros(len(p)), np.zeros(p.shape[1]), []
    cell_clip, proj_clip = (config[name] or np.inf for name in ("cell_clip", "proj_clip"))
    for x in sequence:
        i, f, j, o = np.split(w @ x + u @ h + b, 4)
        c = sigmoid(i) * np.tanh(j) + sigmoid(f) * c
        clipped[0] += (abs(c) > cell_clip).sum()
        c = np.clip(c, -cell_clip, cell_clip)
        h = p @ (sigmoid(o) * np.tanh(c))
        clipped[1] += (abs(h) > proj_clip).sum()
        h = np.clip(h, -proj_clip, proj_clip)
        outputs.append(h)
    return np.array(outputs)
