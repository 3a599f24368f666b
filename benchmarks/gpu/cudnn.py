"""Stage `cudnn`: PyTorch's own projected LSTM on the same sizes, as a bound.

It has no projection clip and no cell clip, so it does not compute ELMo; no library does. Only the LSTM
layers are timed, on token vectors already there. Both directions of a layer are modules of their own, as
ELMo needs them, run one after the other and, in the variant `cudnn two streams`, side by side.
"""

import sys

import torch

from benchmarks import common
from benchmarks.gpu import grid
from benchmarks.gpu import stage as stages

# name: operand type, whether tf32 may be used
KINDS = {
    "fp32": (torch.float32, False),
    "tf32": (torch.float32, True),
    "fp16": (torch.float16, False),
    "bf16": (torch.bfloat16, False),
}
LAYERS = 2


class Directions(torch.nn.Module):
    """Two layers of two separate directions with ELMo's skip connection: [B, T, P] -> [B, T, 2 P]."""

    def __init__(self, cells: int, projection: int, two_streams: bool):
        super().__init__()
        # PyTorch refuses a projection as large as the cells; no standard model has that
        self.lstms = torch.nn.ModuleList(
            torch.nn.LSTM(projection, cells, proj_size=projection, batch_first=True) for _ in range(2 * LAYERS))
        self.streams = [torch.cuda.Stream() for _ in range(2)] if two_streams else None

    def direction(self, x: torch.Tensor, which: int) -> torch.Tensor:
        x = x.flip(1) if which else x  # all sentences are equally long here
        for layer in range(LAYERS):
            out = self.lstms[2 * layer + which](x)[0]
            x = out + x if layer else out
        return x.flip(1) if which else x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.streams is None:
            return torch.cat([self.direction(x, 0), self.direction(x, 1)], dim=-1)
        main, halves = torch.cuda.current_stream(), []
        for which, stream in enumerate(self.streams):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                halves.append(self.direction(x, which))
        for stream, half in zip(self.streams, halves):
            main.wait_stream(stream)
            half.record_stream(main)
        return torch.cat(halves, dim=-1)


def prepare_on(device: str, dtype: torch.dtype, model: Directions):
    def prepare(batch: int, length: int):
        x = torch.randn(batch, length + 2, model.lstms[0].proj_size, device=device, dtype=dtype)
        return lambda: model(x)

    return prepare


def work(stage: stages.Stage) -> None:
    cells, projection, _ = common.SIZES[grid.size(stage)]
    for kind, (dtype, tf32) in KINDS.items():
        if stage.dry_run and dtype != torch.float32:
            continue  # half precision on a CPU says nothing about this stage
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
        for two_streams in (False, True)[: 2 if stage.device == "cuda" else 1]:
            model = Directions(cells, projection, two_streams).to(stage.device, dtype).eval()
            for lstm in model.lstms:
                lstm.flatten_parameters()
            variant = "cudnn two streams" if two_streams else "cudnn"
            prepare = prepare_on(stage.device, dtype, model)
            grid.Grid(stage, variant, prepare, {"precision": kind, "part": "lstm"}).run()


if __name__ == "__main__":
    sys.exit(stages.run("cudnn", work, stages.parser(__doc__).parse_args()))
