"""A run as one ONNX file: the network, and in its metadata all that is needed to vote and to compute the radius.

    noisy network     x [1, *shape], normals [draws, *noise shape]  →  logits [draws, classes]
    other networks    x [examples, *shape]                          →  logits [examples, classes]

The noise is an input, so that whoever predicts draws it: a file that held its noise would prove nothing. The graph is
the model as it is defined, W₁x + b₁ + std·normals and then the rest, not split as in `SplitNetwork`; the two have the
same votes but for draws whose two best logits are equal up to rounding. Certificates do not need them to be equal: Δ
and the rounding in the recipe hold in whatever order the sums of the layer are computed, and the rest of the network
may be any function. `examples/onnx_voter.py` predicts from such a file with numpy and onnxruntime alone.
"""

__all__ = ["FORMAT", "METADATA", "export_onnx"]

import contextlib
import copy
import io
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from securesgd import __version__
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.validate import require_finite_weights, validate_model
from securesgd.data.catalog import CATALOG
from securesgd.errors import InvalidInputError, printable
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.validate_network import random_inputs
from securesgd.runtime import run_folder as names
from securesgd.runtime.storage import file_digest, require_writable, write_whole
from securesgd.validate import validate_positive

if TYPE_CHECKING:
    from securesgd.run import Run

FORMAT = 1
"""Of the metadata."""
METADATA = "securesgd"
"""The key of the metadata in the ONNX file; its value is a JSON object."""
_OPSET = 18
_DRAWS = 1_000  # of one prediction, as `Run.predict` has them
_TOLERANCE = 1e-3  # of the largest logit, between torch and onnxruntime
_REASON = 200  # characters of another package's message
_RADIUS = (
    "Choose the class with most votes of selection_draws draws. Count its votes k among draws other draws; p = the "
    "Clopper-Pearson lower bound of k out of draws at failure_prob; rounding = rounding_at_zero + rounding_per_unit * "
    "max|x|; radius = (inverse normal CDF(p) - rounding) / sensitivity, rounded down; abstain unless it is above 0."
)
_FRESH = (
    "independent standard normals, fresh for every prediction and not known to whoever chose the input; noise that is "
    "reused or predictable proves nothing"
)


def export_onnx(run: "Run", path: str | Path, *, norm: str | None = None) -> Path:
    """Write the model of a run as an ONNX file with the recipe of its vote, and return the path.

    Guarantee: the file holds the weights of the run folder, and onnxruntime has computed the model's logits from it, at
    several numbers of draws, before it is written. `sensitivity` is a proven upper bound of Δ in `norm` (None: the
    run's own). The same run and versions give the same bytes, which name no place on this machine.
    Assumes: who predicts draws fresh noise, and computes in the precision of the weights (no reduced precision).
    Raises: InvalidInputError if there is something at `path` or it cannot be written, the packages of the extra are
    missing, the model has an operator that ONNX does not have or decides by values, or a norm is given for a model
    without noise.
    """
    path = Path(path)
    if path.exists() or path.is_symlink():
        raise InvalidInputError(f"{path} exists and is not overwritten; give the name of a new file")
    require_writable(path)
    _require_packages()
    run.require_own_model()
    model = run.model
    if isinstance(model, NoisyNetwork):
        validate_model(model, random_inputs(model, model.input_shape, batch=1), None)
        certificate = _recipe(model, norm or run.config.robustness.norm)
    elif norm is not None:
        raise InvalidInputError(f"norm is {norm!r}, but {run.path} has a model without noise; leave the norm out")
    else:
        require_finite_weights(model)
        certificate = {
            "family": "interval",
            "radius": "Not computable from this file: a network without noise is certified by the interval bounds of "
            "the package, if its layers have them (securesgd certify). The class is that of the largest logit.",
        }
    try:
        own = copy.deepcopy(model).cpu().eval()
    except RuntimeError as error:  # an old-style weight_norm, say
        raise InvalidInputError(f"the network cannot be copied, so not exported: {printable(str(error))}") from None
    shape = tuple(int(size) for size in run.record["input_shape"])
    content = _to_onnx(own, shape, _metadata(run, certificate))
    _require_same_logits(own, shape, content)
    write_whole(path, content)
    return path


def _recipe(model: NoisyNetwork, norm: str) -> dict[str, Any]:
    """Return how votes are made and what radius they prove."""
    settings = CertifySettings(norm=norm, draws=_DRAWS, others="rest")
    delta = model.sensitivity(norm)  # type: ignore[arg-type]
    # 2γ‖D⁻¹(|W₁||x| + |b₁|)‖ is at most its value at |x| = 0 plus max|x| times its value at 1.
    zeros, ones = model.rounding(torch.stack([torch.zeros(model.input_shape), torch.ones(model.input_shape)]))
    return {
        "family": "smoothing",
        "place": model.place,
        "noise_shape": list(model.noisy.noise.std.shape),
        "noise": _FRESH,
        "norm": settings.norm,
        "sensitivity": validate_positive("sensitivity", delta.upper),
        "rounding_at_zero": float(zeros),
        "rounding_per_unit": float(ones),
        "draws": settings.draws,
        "selection_draws": settings.selection_draws,
        "failure_prob": settings.failure_prob,
        "rule": "tight",
        "others": settings.others,
        "radius": _RADIUS,
    }


def _metadata(run: "Run", certificate: dict[str, Any]) -> str:
    record = {
        "format": FORMAT,
        "made_by": f"securesgd {__version__}",
        "method": run.config.method,
        "class_names": run.record["class_names"],
        "input_shape": run.record["input_shape"],
        "input_range": run.input_range,
        "dataset": run.config.dataset if run.config.dataset in CATALOG else None,  # else it may be a path
        "preprocessing": run.record.get("preprocessing", {}),
        "certificate": certificate,
        "privacy": run.privacy.json(),
        "weights_sha256": file_digest(run.path / names.WEIGHTS),
    }
    return json.dumps(record, allow_nan=False)


class _WithGivenNoise(nn.Module):
    """A noisy network as a function of an input and of the standard normals of many draws."""

    def __init__(self, model: NoisyNetwork) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, normals: Tensor) -> Tensor:
        """Return the logits of each draw for the one input."""
        noisy = self.model.noisy
        with self.model.from_layer(noisy.clean(x) + noisy.noise.std * normals):
            return self.model(x.expand(normals.shape[0], *self.model.input_shape))


def _graph_of(model: nn.Module, shape: tuple[int, ...], rows: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return the function that is exported, and inputs for it by name with `rows` draws or examples."""
    if not isinstance(model, NoisyNetwork):
        return model, {"x": random_inputs(model, shape, batch=rows)}
    std = model.noisy.noise.std
    normals = torch.randn(rows, *std.shape, generator=torch.Generator().manual_seed(rows), dtype=std.dtype)
    return _WithGivenNoise(model), {"x": random_inputs(model, shape, batch=1).to(std.dtype), "normals": normals}


def _to_onnx(model: nn.Module, shape: tuple[int, ...], metadata: str) -> bytes:
    """Return the bytes of the ONNX file. Raises: InvalidInputError if the network cannot be one."""
    import onnx

    function, inputs = _graph_of(model, shape, rows=5)
    rows = torch.export.Dim("draws" if len(inputs) == 2 else "examples", min=1)
    sizes: tuple[dict[int, Any], ...] = ({}, {0: rows}) if len(inputs) == 2 else ({0: rows},)
    try:
        with _silence(), torch.no_grad():
            program = torch.export.export(function.eval(), tuple(inputs.values()), dynamic_shapes=sizes, strict=False)
            exported = torch.onnx.export(
                program, input_names=list(inputs), output_names=["logits"], dynamo=True, opset_version=_OPSET,
                verbose=False, external_data=False,
            )  # fmt: skip
        assert exported is not None
        proto = exported.model_proto
        _forget_source(proto)
        proto.producer_name, proto.producer_version = METADATA, __version__
        onnx.helper.set_model_props(proto, {METADATA: metadata})
        onnx.checker.check_model(proto)
        return proto.SerializeToString(deterministic=True)
    except Exception as error:  # the exporter raises errors of many packages, and whatever the network raises
        reason = error
        while reason.__cause__ is not None:
            reason = reason.__cause__  # type: ignore[assignment]
        text = printable(next(iter(str(reason).strip().splitlines()), "")) or type(reason).__name__
        raise InvalidInputError(
            f"the network cannot be written as ONNX: {text[:_REASON]}; valid: operators that ONNX has, and no branch "
            "on values"
        ) from None


def _require_same_logits(model: nn.Module, shape: tuple[int, ...], content: bytes) -> None:
    """Pass if onnxruntime computes the logits of the model from the file, for one row and for many."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for rows in (1, 5, 64):
        function, inputs = _graph_of(model, shape, rows)
        with torch.no_grad():
            expected = function(*inputs.values()).numpy()
        try:
            session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            (logits,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        except Exception as error:  # onnxruntime's are not derived from one of its own
            text = printable(str(error))[:_REASON]
            raise InvalidInputError(
                f"onnxruntime cannot run the exported network with {rows} rows: {text}; valid: operators that it has, "
                "and any number of rows"
            ) from None
        size = float(np.abs(expected).max())
        if logits.shape != expected.shape or not np.allclose(logits, expected, rtol=0, atol=_TOLERANCE * size):
            raise InvalidInputError(
                f"the exported network computes other logits than the model with {rows} rows; valid: a network whose "
                "operators ONNX has exactly"
            )


def _forget_source(message: Any) -> None:
    """Remove what the exporter notes of the source code, which has paths of this machine and differs between them."""
    for name in ("metadata_props", "doc_string"):
        if name in message.DESCRIPTOR.fields_by_name:
            message.ClearField(name)
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if not hasattr(value, "DESCRIPTOR") else [value]:
                _forget_source(part)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Within the context, the exporter's remarks are not shown: what matters of them is in its errors."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        said = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _require_packages() -> None:
    for name in ("onnx", "onnxruntime", "onnxscript"):
        try:
            __import__(name)
        except ImportError:
            raise InvalidInputError(f'{name} is not installed; run pip install "securesgd[export]"') from None
