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


def characters(ids, v, cnn):
    """ids [B, C] -> [B, P]; `v` has the variables by their names without `lm/`."""
    activation, parts = {"relu": tf.nn.relu, "tanh": tf.nn.tanh}[cnn["activation"]], []
    x = tf.nn.embedding_lookup(v["char_embed"], ids)[:, None]  # [B, 1, C, E]
    for i in range(len(cnn["filters"])):
        windows = tf.nn.conv2d(x, v[f"CNN/W_cnn_{i}"], [1, 1, 1, 1], "VALID")
        parts.append(activation(tf.reduce_max(windows, axis=[1, 2]) + v[f"CNN/b_cnn_{i}"]))
    y = tf.concat(parts, 1)
    for k in range(cnn["n_highway"]):
        gate = tf.sigmoid(y @ v[f"CNN_high_{k}/W_carry"] + v[f"CNN_high_{k}/b_carry"])
        transformed = tf.nn.relu(y @ v[f"CNN_high_{k}/W_transform"] + v[f"CNN_high_{k}/b_transform"])
        y = gate * transformed + (1 - gate) * y
    return y @ v["CNN_proj/W_proj"] + v["CNN_proj/b_proj"]


def layer(x, v, name, lstm):
    """x, a list of [B, P] -> the same of one layer's outputs."""
    h, c, outputs = tf.zeros_like(x[0]), tf.zeros([x[0].shape[0], lstm["dim"]]), []
    for step in x:
        i, j, f, o = tf.split(tf.concat([step, h], 1) @ v[f"{name}/kernel"] + v[f"{name}/bias"], 4, axis=1)
        c = tf.clip_by_value(tf.sigmoid(f + 1) * c + tf.sigmoid(i) * tf.tanh(j), -lstm["cell_clip"], lstm["cell_clip"])
        h = tf.sigmoid(o) * tf.tanh(c)
        if lstm["projection_dim"] < lstm["dim"]:
            h = tf.clip_by_value(h @ v[f"{name}/projection/kernel"], -lstm["proj_clip"], lstm["proj_clip"])
        outputs.append(h)
    return outputs


def direction(x, v, scope, lstm):
    """x, a list of [B, P] -> [T * B, P]."""
    for number in range(lstm["n_layers"]):
        cell = f"multi_rnn_cell/cell_{number}/" if lstm["n_layers"] > 1 else ""
        outputs = layer(x, v, f"{scope}/{cell}lstm_cell", lstm)
        x = [out + step for out, step in zip(outputs, x)] if number and lstm["use_skip_connections"] else outputs
    return tf.concat(x, 0)


def loss_of(ids, targets, v, options):
    """Mean cross entropy of both directions of ids [D, T, B, ...] and targets [D, T, B]."""
    flat = tf.reshape(ids, [-1, *ids.shape[3:]])
    vectors = (characters(flat, v, options["char_cnn"]) if "char_cnn" in options else
               tf.nn.embedding_lookup(v["embedding"], flat))
    vectors = tf.reshape(vectors, [*ids.shape[:3], -1])
    scopes = ["RNN_0/rnn", "RNN_1/rnn"] if options["bidirectional"] else ["rnn"]
    w = v["embedding" if options.get("share_embedding_softmax") else "softmax/W"]
    losses = []
    for k, scope in enumerate(scopes):
        logits = direction(tf.unstack(vectors[k]), v, scope, options["lstm"]) @ tf.transpose(w) + v["softmax/b"]
        losses.append(tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.reshape(targets[k], [-1]), logits=logits)))
    return tf.add_n(losses) / len(losses)


def write(folder):
    tf.reset_default_graph()
    options = json.loads((folder / "options.json").read_text())
    batches = np.load(folder / "batches.npz")
    v = {name.removeprefix("lm/"): tf.get_variable(name, initializer=batches[name])
         for name in batches.files if name.startswith("lm/")}
    ids, targets = (tf.placeholder(tf.int64, batches[f"{name}0"].shape) for name in ("ids", "targets"))
    step = tf.get_variable("global_step", initializer=0.0, trainable=False)
    tf.get_variable("train_perplexity", initializer=0.0, trainable=False)
    loss = loss_of(ids, targets, v, options)
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
                prefix = tf.train.Saver().save(session, str(folder / "model.ckpt"), global_step=2)
        truth.update({f"after/{value.op.name}": session.run(value) for value in tf.global_variables()})
    reader = tf.train.load_checkpoint(prefix)
    truth.update({f"saved/{name}": reader.get_tensor(name) for name in reader.get_variable_to_shape_map()})
    np.savez(folder / "truth.npz", **truth)


if __name__ == "__main__":
    tf.disable_v2_behavior()
    for name in sys.argv[1:]:
        write(Path(name))
