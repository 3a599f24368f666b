"""A model's files to an embedder: on the C++ engine, in NumPy, or in PyTorch."""

from elmo_fast.embed.embedder import Embedder
from elmo_fast.engine.backend import check_backend, log_once, native_module
from elmo_fast.engine.model import Model
from elmo_fast.engine.native import NativeModel, why_unsupported
from elmo_fast.engine.precision import check_precision
from elmo_fast.engine.reference import NumpyModel
from elmo_fast.engine.table import TokenTable
from elmo_fast.environment import may_have_gpu
from elmo_fast.weights.datasets import Weights
from elmo_fast.weights.opening import ModelOptions
from elmo_fast.weights.options import Options
from elmo_fast.weights.sources import ModelFiles


def open_embedder(files: ModelFiles, opening: ModelOptions, device: str = "cpu") -> Embedder:
    """An embedder of a model of any family; the options' `requires_grad` does not count.

    On the CPU `auto` is the C++ engine, or NumPy where the engine cannot run the model. The backend `torch`, and other
    devices, need PyTorch.
    """
    return embedder_of(*read_files(files, opening), opening, device)


def default_device() -> str:
    """The first GPU if there is one, else the CPU. PyTorch is imported only where it may see a GPU."""
    if not may_have_gpu():
        return "cpu"
    from elmo_fast.ops.device import available_device

    return str(available_device(None))


def read_files(files: ModelFiles, opening: ModelOptions) -> tuple[Options, Weights]:
    """Options and float32 weights of a model of any family."""
    return files.family.implementation.read(files, opening.allow_nonfinite)


def embedder_of(options: Options, weights: Weights, opening: ModelOptions, device: str = "cpu") -> Embedder:
    """As `open_embedder`, from arrays, which the embedder does not keep."""
    return Embedder(model_of(options, weights, opening, device), opening.state)


def model_of(options: Options, weights: Weights, opening: ModelOptions, device: str = "cpu") -> Model:
    """A model at rest from arrays, which it does not keep."""
    check_precision(opening.precision)
    is_torch = check_backend(opening.backend) == "torch" or str(device) != "cpu"
    model = (_torch_model if is_torch else _host_model)(options, weights, opening, device)
    if opening.token_table is not None:
        given = opening.token_table
        model.token_table = given if isinstance(given, TokenTable) else TokenTable.open(given)
        model.token_table.check(options.lstm.projection_dim, model.precision, model.boundaries,
                                lambda: model.fingerprint)
    return model


def _host_model(options: Options, weights: Weights, opening: ModelOptions, device: str) -> Model:
    """On the C++ engine or in NumPy."""
    why_not = native_module()[1] or why_unsupported(options, weights)
    if opening.backend == "native" and why_not:
        raise RuntimeError(f"backend: 'native' was asked for and is not available: {why_not}")
    if opening.backend == "reference" or why_not:
        if opening.backend == "auto":
            log_once(f"backend 'native' is passed over: {why_not}")
        model: Model = NumpyModel(options, weights, opening.warm_text)
        model.precision = opening.precision
    else:
        model = NativeModel(options, weights, opening.precision, opening.state, opening.warm_text)
    model.backend = opening.backend
    return model


def _torch_model(options: Options, weights: Weights, opening: ModelOptions, device: str) -> Model:
    """In PyTorch, on any device."""
    from elmo_fast.nn.gpu.model import TorchModel
    from elmo_fast.ops.device import available_device

    return TorchModel(options, weights, available_device(device), opening.precision, opening.backend, opening.warm_text)
