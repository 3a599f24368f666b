"""A program for a Python that has TensorFlow: trains models, saves them as bilm-tf does, and writes the next updates.

    python tf_writer.py FOLDER ...

A folder has bilm-tf's `options.json` and `batches.npz`: `ids{n}` [D, T, B] word ids or [D, T, B, C] character ids from
0, and `targets{n}` [D, T, B]. Two steps are trained and saved as `model.ckpt-2` in the folder, by TensorFlow's Saver
under the variable names of bilm-tf's graph; then two more, which are not saved. `truth.npz` gets `saved/NAME` of every
variable in the checkpoint, `loss{n}` of every step before its update, and `after/NAME` of every variable at the end.
The softmax is full and there is no dropout: nothing is random.
"""

import json
import os
import sys

import numpy as np
import tensorflow

tf = tensorflow.compat.v1


def variable(name, shape, seed):
    generator = np.random.default_rng([seed, *name.encode()])
    spread = 0.5 if len(shape) > 1 else 0.2
    return tf.get_variable(name, initializer=generator.normal(0, spread, shape).astype(np.float32))


def characters(ids, options):
    """ids [B, C] -> [B, P]."""
    cnn, size = options["char_cnn"], options["lstm"]["projection_dim"]
    activation = {"relu": tf.nn.relu, "tanh": tf.nn.tanh}[cnn["activation"]]
    dim = cnn["embedding"]["dim"]
    x = tf.nn.embedding_lookup(variable("char_embed", [cnn["n_characters"], dim], 1), ids)[:, None]  # [B, 1, C, E]
    parts = []
    with tf.variable_scope("CNN"):
        for i, (width, count) in enumerate(cnn["filters"]):
            kernel, bias = variable(f"W_cnn_{i}", [1, width, dim, count], 2), variable(f"b_cnn_{i}", [count], 3)
            windows = tf.nn.conv2d(x, kernel, strides=[1, 1, 1, 1], padding="VALID")
            parts.append(activation(tf.reduce_max(windows, axis=[1, 2]) + bias))
    y = tf.concat(parts, 1)
    total = int(y.shape[1])
    for k in range(cnn["n_highway"]):
        with tf.variable_scope(f"CNN_high_{k}"):
            gate = tf.sigmoid(y @ variable("W_carry", [total, total], 4) + variable("b_carry", [total], 5))
            other = tf.nn.relu(y @ variable("W_transform", [total, total], 6) + variable("b_transform", [total], 7))
            y = gate * other + (1 - gate) * y
    if total == size:
        return y
    with tf.variable_scope("CNN_proj"):
        return y @ variable("W_proj", [total, size], 8) + variable("b_proj", [size], 9)


def clipped(x, clip):
    return x if clip is None else tf.clip_by_value(x, -clip, clip)


def cell(x, state, options):
    """One step of a layer: x [B, P] -> h [B, P], and c [B, D]."""
    lstm, (h, c) = options["lstm"], state
    dim, size = lstm["dim"], lstm["projection_dim"]
    z = tf.concat([x, h], 1) @ variable("kernel", [2 * size, 4 * dim], 10) + variable("bias", [4 * dim], 11)
    i, j, f, o = tf.split(z, 4, axis=1)
    c = clipped(tf.sigmoid(f + 1) * c + tf.sigmoid(i) * tf.tanh(j), lstm["cell_clip"])
    h = tf.sigmoid(o) * tf.tanh(c)
    if size < dim:
        with tf.variable_scope("projection"):
            h = clipped(h @ variable("kernel", [dim, size], 12), lstm["proj_clip"])
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
    words, size = options["n_tokens_vocab"], options["lstm"]["projection_dim"]
    if "char_cnn" in options:
        vectors = characters(flat, options)
    else:
        table = variable("embedding", [words, size], 13)
        vectors = tf.nn.embedding_lookup(table, flat)
    vectors = tf.reshape(vectors, [*ids.shape[:3], size])
    scopes = ["RNN_0/rnn/", "RNN_1/rnn/"] if options["bidirectional"] else ["rnn/"]
    tops = [direction(tf.unstack(vectors[k]), options, scope) for k, scope in enumerate(scopes)]
    with tf.variable_scope("softmax"):
        w = table if options.get("share_embedding_softmax") else variable("W", [words, size], 14)
        b = variable("b", [words], 15)
    losses = [tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=tf.reshape(targets[k], [-1]), logits=top @ tf.transpose(w) + b)) for k, top in enumerate(tops)]
    return tf.add_n(losses) / len(losses)


def write(folder):
    tf.reset_default_graph()
    with open(os.path.join(folder, "options.json")) as file:
        options = json.load(file)
    batches = np.load(os.path.join(folder, "batches.npz"))
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
                saved = tf.train.Saver().save(session, os.path.join(folder, "model.ckpt"), global_step=2)
        truth.update({f"after/{value.op.name}": session.run(value) for value in tf.global_variables()})
    reader = tf.train.load_checkpoint(saved)
    truth.update({f"saved/{name}": reader.get_tensor(name) for name in reader.get_variable_to_shape_map()})
    np.savez(os.path.join(folder, "truth.npz"), **truth)


if __name__ == "__main__":
    tf.disable_v2_behavior()
    for folder in sys.argv[1:]:
        write(folder)
