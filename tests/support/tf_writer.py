"""A program for a Python that has TensorFlow: trains models, saves them as bilm-tf does, and writes the next updates.

    python tf_writer.py FOLDER ...

A folder has bilm-tf's `options.json` and `batches.npz`: the initial weights by TensorFlow's names, `ids{n}` [D, T, B]
word ids or [D, T, B, C] character ids from 0, and `targets{n}` [D, T, B]. Two steps are trained and saved as
`model.ckpt-2` in the folder, by TensorFlow's Saver under the variable names of bilm-tf's graph; two more are not saved.
`truth.npz` gets `saved/NAME` of every variable in the checkpoint, `loss{n}` of every step before its update,
and `after/NAME` of every variable at the end. The softmax is full and there is no dropout: nothing is random.
"""

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow

tf = tensorflow.compat.v1
INITIAL = {}  # weights of the model that is built


def variable(name):
    return tf.get_variable(name, initializer=INITIAL[f"{tf.get_variable_scope().name}/{name}"])


def affine(x, w, b):
    """x [B, N] -> [B, M] by the variables named."""
    return x @ variable(w) + variable(b)


def characters(ids, options):
    """ids [B, C] -> [B, P]."""
    cnn, parts = options["char_cnn"], []
    activation = {"relu": tf.nn.relu, "tanh": tf.nn.tanh}[cnn["activation"]]
    x = tf.nn.embedding_lookup(variable("char_embed"), ids)[:, None]  # [B, 1, C, E]
    with tf.variable_scope("CNN"):
        for i in range(len(cnn["filters"])):
            windows = tf.nn.conv2d(x, variable(f"W_cnn_{i}"), [1, 1, 1, 1], "VALID")
            parts.append(activation(tf.reduce_max(windows, axis=[1, 2]) + variable(f"b_cnn_{i}")))
    y = tf.concat(parts, 1)
    for k in range(cnn["n_highway"]):
        with tf.variable_scope(f"CNN_high_{k}"):
            gate = tf.sigmoid(affine(y, "W_carry", "b_carry"))
            y = gate * tf.nn.relu(affine(y, "W_transform", "b_transform")) + (1 - gate) * y
    with tf.variable_scope("CNN_proj"):
        return affine(y, "W_proj", "b_proj")


def cell(x, state, options):
    """One step of a layer: x [B, P] -> h [B, P], and c [B, D]."""
    lstm, (h, c) = options["lstm"], state
    i, j, f, o = tf.split(affine(tf.concat([x, h], 1), "kernel", "bias"), 4, axis=1)
    c = tf.clip_by_value(tf.sigmoid(f + 1) * c + tf.sigmoid(i) * tf.tanh(j), -lstm["cell_clip"], lstm["cell_clip"])
    h = tf.sigmoid(o) * tf.tanh(c)
    if lstm["projection_dim"] < lstm["dim"]:
        with tf.variable_scope("projection"):
            h = tf.clip_by_value(h @ variable("kernel"), -lstm["proj_clip"], lstm["proj_clip"])
    return h, c


def direction(x, options, scope):
    """x, a list of [B, P] -> [T * B, P]."""
    lstm = options["lstm"]
    for layer in range(lstm["n_layers"]):
        name = f"{scope}multi_rnn_cell/cell_{layer}" if lstm["n_layers"] > 1 else scope.rstrip("/")
        state = tf.zeros_like(x[0]), tf.zeros([x[0].shape[0], lstm["dim"]])
        outputs = []
        for step in x:
            with tf.variable_scope(f"{name}/lstm_cell", reuse=bool(outputs)):
                state = cell(step, state, options)
            outputs.append(state[0] + step if layer and lstm["use_skip_connections"] else state[0])
        x = outputs
    return tf.concat(x, 0)


def loss_of(ids, targets, options):
    """Mean cross entropy of both directions of ids [D, T, B, ...] and targets [D, T, B]."""
    flat = tf.reshape(ids, [-1, *ids.shape[3:]])
    if "char_cnn" in options:
        vectors = characters(flat, options)
    else:
        table = variable("embedding")
        vectors = tf.nn.embedding_lookup(table, flat)
    vectors = tf.reshape(vectors, [*ids.shape[:3], -1])
    scopes = ["RNN_0/rnn/", "RNN_1/rnn/"] if options["bidirectional"] else ["rnn/"]
    tops = [direction(tf.unstack(vectors[k]), options, scope) for k, scope in enumerate(scopes)]
    with tf.variable_scope("softmax"):
        w = table if options.get("share_embedding_softmax") else variable("W")
        b = variable("b")
    losses = [tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=tf.reshape(targets[k], [-1]), logits=top @ tf.transpose(w) + b)) for k, top in enumerate(tops)]
    return tf.add_n(losses) / len(losses)


def write(folder):
    tf.reset_default_graph()
    options = json.loads((folder / "options.json").read_text())
    batches = np.load(folder / "batches.npz")
    INITIAL.update({name: batches[name] for name in batches.files if name.startswith("lm/")})
    ids, targets = (tf.placeholder(tf.int64, batches[f"{name}0"].shape) for name in ("ids", "targets"))
    step = tf.get_variable("global_step", initializer=0.0, trainable=False)
    tf.get_variable("train_perplexity", initializer=0.0, trainable=False)
    with tf.variable_scope("lm"):
        loss = loss_of(ids, targets, options)
    optimizer = tf.train.AdagradOptimizer(options["learning_rate"], initial_accumulator_value=1.0)
    gradients, variables = zip(*optimizer.compute_gradients(loss * options["unroll_steps"]))
    # Rows that occurred twice are summed before the norm.
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    gradients, _ = tf.clip_by_global_norm(gradients, options["all_clip_norm_val"])
    update = optimizer.apply_gradients(zip(gradients, variables), global_step=step)
    truth = {}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for n in range(4):
            feed = {ids: batches[f"ids{n}"], targets: batches[f"targets{n}"]}
            truth[f"loss{n}"] = session.run(loss, feed)
            session.run(update, feed)
            if n == 1:
                saved = tf.train.Saver().save(session, str(folder / "model.ckpt"), global_step=2)
        truth.update({f"after/{value.op.name}": session.run(value) for value in tf.global_variables()})
    reader = tf.train.load_checkpoint(saved)
    truth.update({f"saved/{name}": reader.get_tensor(name) for name in reader.get_variable_to_shape_map()})
    np.savez(folder / "truth.npz", **truth)


if __name__ == "__main__":
    tf.disable_v2_behavior()
    for name in sys.argv[1:]:
        write(Path(name))
