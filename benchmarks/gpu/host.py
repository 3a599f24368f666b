"""The host's time per token on a GPU, without one: `python -m benchmarks.gpu.host`.

CPU microseconds of all threads per token of a stream of running text through a model of the original size, after a
first stream. The work of the device is replaced: tensors are on PyTorch's device `meta`, whose operations compute
nothing, the token encoder and the LSTM return tensors of the right shapes, and a copy to the host returns memory that
is there. The operations of the ops inside the encoder and the LSTM are not counted.
"""

import sys
import time
from unittest import mock

import numpy as np
import torch

from benchmarks import common, workloads
from elmo_fast import Options
from elmo_fast.engine.stream import SlotStream
from elmo_fast.nn.gpu import chunks
from elmo_fast.nn.gpu.model import TorchModel

STREAMS = {"slots of 64": (64, "carry"), "slots of 512": (512, "zero")}


class Replaced(TorchModel):
    """A model that computes nothing."""

    def __init__(self, options: Options):
        width = 2 * options.lstm.projection_dim  # of the only weight: a model without weights has no device
        super().__init__(options, {"RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0": np.zeros((width, 4), np.float32)},
                         torch.device("meta"))

    def computing(self):
        return torch.no_grad()

    def encode_tensors(self, tokens):
        return torch.empty(len(tokens), self.output_dim // 2, device=self.device)

    def run_tensors(self, vectors, rows, schedule, state):
        outputs = torch.empty(rows.shape[1], self.output_dim, device=self.device)
        return [outputs] * self.options.lstm.n_layers, state.last

    def last_state(self, state):
        return tuple(np.empty(value.shape, np.float32) for value in state.last)


class Copied:
    """In place of `HostCopy`: rows of an array that is there."""

    memory = torch.zeros(0)

    def __init__(self, tensors, stream):
        count, width = tensors[0].shape
        if Copied.memory.numel() < count * width:
            Copied.memory = torch.zeros(count * width)
        self._rows = Copied.memory[: count * width].view(count, width)

    def result(self):
        return [self._rows]


def seconds(model: Replaced, text: list[list[str]], slots: int, state: str) -> float:
    """CPU seconds of a stream."""
    stream, start = SlotStream(model, slots, state), time.process_time()
    for _ in stream.run(text):
        pass
    return time.process_time() - start


def run(arguments) -> dict:
    text, source = workloads.running_text(arguments.sentences)
    model, tokens = Replaced(Options.from_dict(workloads.options_of("original"))), sum(map(len, text))
    with mock.patch.object(chunks, "HostCopy", Copied):
        for stream in STREAMS.values():
            seconds(model, text, *stream)
        turns = {way: lambda stream=stream: seconds(model, text, *stream) for way, stream in STREAMS.items()}
        found = common.take_turns(turns, arguments.rounds)
    rows = [common.row(common.Timing.of([1e6 * value / tokens for value in values]), "us of CPU per token", way=way,
                       workload="running text", model="original", variant=f"{STREAMS[way][1]} state")
            for way, values in found.items()]
    return common.document("gpu host", {"text": source, "sentences": len(text), "tokens": tokens}, rows)


def report(content: dict) -> str:
    return "\n".join(f"{row['way']}, {row['variant']}: {row['median']:.2f} {row['unit']}" for row in content["results"])


def main() -> int:
    parser = common.make_parser(__doc__, "gpu-host.json", ("--sentences", 2000, "sentences of a stream"),
                                ("--rounds", 9, "streams of each kind, after a first one"))
    return common.run_and_write(parser.parse_args(), run, "gpu-host.json", report)


if __name__ == "__main__":
    sys.exit(main())
