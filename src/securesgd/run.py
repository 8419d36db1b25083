"""The run: a folder that holds a trained model and everything claimed about it, and the verbs that use it.

`run_training` makes a run, `load_run` reads one, and `Run` certifies, attacks, checks, audits, predicts and reports.
Everything on the command line is one of these calls.
"""

__all__ = ["Prediction", "Run", "load_run"]

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from securesgd.attacks.evaluate import Evaluation, EvaluationSettings, evaluate_run
from securesgd.attacks.falsify_run import falsify_certificates
from securesgd.attacks.settings import AttackFunction, attack_grid
from securesgd.audit.measure import AuditSettings
from securesgd.audit.run_audit import audit_run
from securesgd.build import NetworkSource, build_trained_model, require_same_outputs, structure_digest
from securesgd.certificates.column_radii import (
    require_all_features,
    scaled_box,
    table_schema,
    write_column_radii,
)
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.rules import INTERVAL
from securesgd.certificates.run_certificates import RunCertificates, certify_run
from securesgd.certificates.sensitivity import ProvenSensitivities
from securesgd.check.folder import CHECKED, DEFAULT_EXAMPLES, check_files, check_network
from securesgd.check.outcome import CheckResult
from securesgd.check.records import unchecked_files
from securesgd.config import RunConfig, saved_config
from securesgd.data.load import LoadedData
from securesgd.errors import DamagedFileError, InvalidInputError, SecureSGDError
from securesgd.export import export_onnx
from securesgd.prediction import OnProgress, Prediction, as_batch, predict_batch, prediction_range, prediction_settings
from securesgd.privacy import FullStatement, PrivacyStatement, read_ledger, run_statement
from securesgd.privacy.group import GROUP_SIZES
from securesgd.report.gallery import draw_gallery
from securesgd.report.model_card import refresh_model_card
from securesgd.report.page import report
from securesgd.report.plots import certified_curves_figure
from securesgd.run_data import load_other_data, load_run_data
from securesgd.runtime import run_folder as names
from securesgd.runtime.machine import torch_device
from securesgd.runtime.processes import Processes
from securesgd.runtime.run_folder import RunFolder
from securesgd.runtime.run_records import RunMetrics, read_metrics, read_model_record
from securesgd.runtime.tensors import load_tensors
from securesgd.theory.class_balance import ClassBalance
from securesgd.training.examples import tensors_of


class Run:
    """A finished run: its folder, configuration, model (in eval mode) and data, with the verbs that use them.

    Build one with `train`, `train_run` or `load_run`.
    """

    def __init__(self, path: Path, config: RunConfig, model: nn.Module, data: LoadedData | None = None) -> None:
        self.path, self.config, self.model = path, config, model.eval()
        self._data, self._sensitivities = data, ProvenSensitivities()

    @cached_property
    def record(self) -> dict[str, Any]:
        """The content of model.json: network, input shape, classes, data and privacy statement."""
        return read_model_record(self.path)

    @cached_property
    def privacy(self) -> PrivacyStatement:
        """What may be claimed about the privacy of the training data, computed now from the ledger.

        Raises: DamagedFileError if the ledger is damaged, or is not the one the weights were trained with.
        """
        ledger, head = read_ledger(self.path / names.LEDGER), load_tensors(self.path / names.WEIGHTS).record["ledger"]
        if not ledger.has_line(*head):
            raise DamagedFileError(
                f"{self.path / names.LEDGER} is not the ledger that {names.WEIGHTS} was trained with, or lines of it "
                "were cut off; put the whole one back"
            )
        return ledger.statement

    def statement(self, *, groups: Iterable[int] = GROUP_SIZES) -> FullStatement:
        """Return the privacy statement in full: what it rests on, attacks, and people with several examples.

        Raises: as `privacy.run_statement`, which reads unfinished runs too.
        """
        return run_statement(self.path, groups=groups)

    @cached_property
    def _metrics(self) -> RunMetrics:
        return read_metrics(self.path)

    @property
    def test_accuracy(self) -> float | None:
        """The share of test examples that were right when training ended; None if there was no test set."""
        return self._metrics.test_accuracy

    @property
    def test_images(self) -> int:
        """The number of test examples behind `test_accuracy`."""
        return self._metrics.test_images

    @property
    def test_balance(self) -> ClassBalance | None:
        """What `test_accuracy` is worth, class by class; None without a test set, or if the run did not record it."""
        return self._metrics.test_balance

    @property
    def input_range(self) -> tuple[float, float] | None:
        """What the inputs are within, as training had them; None: any numbers."""
        ends = self.record.get("input_range", (0.0, 1.0))
        return None if ends is None else (float(ends[0]), float(ends[1]))

    @property
    def data(self) -> LoadedData:
        """The data set of the run, read again. Raises: InvalidInputError if it was in memory, is gone or changed."""
        if self._data is None:
            self._data = load_run_data(self.path, self.config, self.record)
        return self._data

    def certify(
        self,
        test_set: "Dataset[Any] | tuple[Tensor, Tensor] | None" = None,
        *,
        norms: str | Sequence[str] | None = None,
        family: str | None = None,
        examples: int | None = None,
        settings: CertifySettings | None = None,
        at_radii: Sequence[float] | None = None,
        rules: Sequence[str] = (),
        again: bool = False,
        on_progress: Callable[[float, int], None] | None = None,
        **changes: Any,
    ) -> RunCertificates:
        """Certify the first `examples` of the test set (None: all) and keep the certificates in the run folder.

        Guarantee: that of `certificates.certify`, by smoothing for a test set fixed beforehand (the noise has a seed).
        Raises: InvalidInputError for a model without noise that has a layer without interval bounds, or that is not the
        folder's any more, or settings other than those of certificates there.

        `family` is smoothing or interval; None: smoothing for a noisy model and interval for others. A noisy model may
        have both at once; its interval certificates are about its network without the noise.
        `at_radii` are the radii of the summaries; `rules` are import paths of certificate rules from outside. `changes`
        are settings of `CertifySettings`: draws, failure_prob, radius, tolerance, seed, … Of a run that was trained on
        a table, `box` is in the units of its columns, and column-radii.csv has each radius in them.
        """
        self.require_own_model()
        inputs, targets = self._test_set(test_set)
        settings = (settings or CertifySettings(seed=0, input_range=self.input_range)).with_changes(
            **{} if family is None else {"family": family}
        )
        own_norm = "linf" if settings.for_model(self.model).family == INTERVAL else self.config.robustness.norm
        chosen = [norms] if isinstance(norms, str) else list(norms or [own_norm])
        schema = table_schema(self.record)
        settings = settings.with_changes(**{"norm": chosen[0]} | changes)
        if settings.box_in_units is not None:
            raise InvalidInputError("box_in_units is given; valid: box, which is in the units of a table's columns")
        if schema is not None:
            require_all_features(settings.input_range)
        if schema is not None and settings.box is not None:
            settings = replace(settings, box=scaled_box(settings.box, schema), box_in_units=settings.box)
        certificates = certify_run(
            self.path, self.model, inputs, targets, chosen, settings,
            examples=examples, at_radii=at_radii, rules=rules, again=again, on_progress=on_progress,
        )  # fmt: skip
        if Processes().is_first:
            certified_curves_figure(certificates.rows, self.path / names.CERTIFICATE_PICTURE)
            if schema is not None:
                write_column_radii(self.path / names.COLUMN_RADII, certificates.rows, schema)
        return certificates

    def attack(
        self,
        test_set: "Dataset[Any] | tuple[Tensor, Tensor] | None" = None,
        attacks: str | AttackFunction | Sequence[str | AttackFunction] = "all",
        *,
        budget: float | Sequence[float] = 0.1,
        examples: int | None = 500,
        draws: int = 1000,
        certify_draws: int = 1000,
        again: bool = False,
        keep_images: bool = False,
        sanity_checks: bool = True,
        on_progress: Callable[..., None] | None = None,
        **changes: Any,
    ) -> Evaluation:
        """Attack the first `examples` of the test set (None: all), and keep the rows in the run folder.

        `attacks` are names of `attacks.settings.ATTACKS`, import paths or functions; `all` are those of the paper. Each
        is measured by the harness at each budget, certificates beside it. `changes` are settings of `AttackSettings`:
        norm, steps, eot, restarts, protocol, seed, …
        """
        self.require_own_model()
        grid = attack_grid(attacks, budget, dataset=self.config.dataset, **changes)
        inputs, targets = self._test_set(test_set)
        evaluation = evaluate_run(
            self.path, self.model, inputs, targets, grid,
            EvaluationSettings(draws=draws, certify_draws=certify_draws),
            examples=examples or 0, again=again, keep_images=keep_images, probes=sanity_checks, on_progress=on_progress,
        )  # fmt: skip
        class_names = self.record["class_names"]
        picture = Processes().on_first(
            lambda: draw_gallery(self.path, evaluation, inputs, dataset=self.config.dataset, class_names=class_names)
        )
        return replace(evaluation, picture=picture)

    def falsify(
        self,
        test_set: "Dataset[Any] | tuple[Tensor, Tensor] | None" = None,
        *,
        norm: str | None = None,
        family: str | None = None,
        examples: int | None = None,
        on_progress: Callable[[str, float], None] | None = None,
        **effort: Any,
    ) -> dict[str, Any]:
        """Search the certified balls of a norm, or of the interval family, for a counter-example; return the result.

        `examples` are the first ones that have certificates; None: all of them. `effort` is restarts, steps,
        eot, seed, failure_prob; for intervals, which have no noise, restarts, steps and seed.
        Raises: InvalidInputError if there are no such certificates, or they are about another test set.
        """
        self.require_own_model()
        return falsify_certificates(
            self.path, self.model, lambda: self._test_set(test_set), norm=norm or self.config.robustness.norm,
            family=family, examples=examples, on_progress=on_progress, **effort,
        )  # fmt: skip

    def check(
        self,
        test_set: "Dataset[Any] | tuple[Tensor, Tensor] | None" = None,
        *,
        examples: int | None = DEFAULT_EXAMPLES,
        public_key: str | Path | None = None,
    ) -> CheckResult:
        """Recompute what the folder claims, from what each claim rests on, and return a line for each. Only reads.

        Guarantee: see docs/how-to/check.md. `examples` certificates of each norm, chosen at random (None: all), are
        computed again. `public_key` is the file of the key that must have signed the folder. `check_run` is for a
        folder that may be too damaged to be loaded.
        """
        self.require_own_model()
        found: tuple[Tensor, Tensor] | None = None
        reason = ""
        try:
            found = self._test_set(test_set)
        except SecureSGDError as error:
            reason = str(error)
        by_network = check_network(self.path, self.config, self.model, found, reason, examples)
        return CheckResult((*check_files(self.path, public_key), *by_network, *unchecked_files(self.path, CHECKED)))

    def audit(
        self,
        settings: AuditSettings | None = None,
        *,
        own_data: bool = False,
        on_progress: Callable[[float], None] | None = None,
    ) -> dict[str, Any]:
        """Measure a lower bound of epsilon: train once more with canaries, return and keep the result in audit.json.

        Guarantee: that of `audit.measure.audit_training`. The run's weights and ledger are not touched. Examples are
        those of a built-in data set, or random ones; with `own_data` they are the run's own, and audit.json is as
        private as they are. An earlier audit is replaced; one with a sabotage or without canaries is not kept.
        Raises: InvalidInputError if the run claims no privacy.
        """
        self.privacy  # noqa: B018 - raises if the ledger is not that of the weights
        examples = (self.data.train_inputs, self.data.train_targets) if own_data else None
        return audit_run(
            self.path, self.config, self.record, self.model, settings, input_range=self.input_range,
            own_examples=examples, on_progress=on_progress,
        )  # fmt: skip

    def predict(
        self, inputs: Tensor, *, seed: int | None = None, on_progress: OnProgress | None = None, **changes: Any
    ) -> "Prediction | list[Prediction]":
        """Return the class of one input, or of each of a batch, with its proven radius.

        Guarantee: that of `certificates.certify`, with fresh noise: inputs may come from anybody. A model without noise
        predicts with the radius that interval bounds prove in linf; with radius 0 if one of its layers has none.
        `seed` makes the noise repeatable, for tests: of an input chosen by somebody who knows it nothing is proven, and
        the predictions say so (`Prediction.seeded`). `changes` are settings of `CertifySettings`, such as draws (1,000
        if not given), norm, radius, family.
        Raises: InvalidInputError for inputs that do not fit, are not finite or out of range, or if the weights are not
        those of the folder.
        """
        self.require_own_model()
        batch, single = as_batch(inputs, tuple(self.record["input_shape"]))
        norm, changes = self.config.robustness.norm, changes | {"seed": seed}
        settings = prediction_settings(self.model, norm, prediction_range(self.record), changes)
        predictions = predict_batch(
            self.model, batch, settings, self.record["class_names"],
            sensitivity=self._sensitivities.of(self.model, settings.norm), on_progress=on_progress,
        )  # fmt: skip
        return predictions[0] if single else predictions

    def report(self, out: str | Path | None = None) -> Path:
        """Write the HTML report of the run and return its path: report.html in the run folder if not given.

        A report in the run folder has the model card beside it, which is written anew.
        """
        path = Path(out) if out is not None else self.path / names.REPORT
        report([self.path], path)
        refresh_model_card([self.path], path)
        return path

    def export(self, path: str | Path, *, norm: str | None = None) -> Path:
        """Write the model as an ONNX file with the recipe of its vote: `export.export_onnx`, docs/how-to/export.md."""
        return export_onnx(self, path, norm=norm)

    def require_own_model(self) -> None:
        """Return if the model in memory is the one of the folder, which results in the folder will be about.

        Raises: InvalidInputError if its structure or its weights were changed since.
        """
        if self.record.get("structure_sha256") not in (None, structure_digest(self.model)):
            raise InvalidInputError(f"the model has another structure than the one that {self.path} was trained with")
        stored, own = load_tensors(self.path / names.WEIGHTS).tensors, self.model.state_dict()
        for name, tensor in stored.items():
            if name not in own or not torch.equal(own[name].cpu(), tensor):
                raise InvalidInputError(
                    f"the weights in memory are not those of {self.path / names.WEIGHTS} ({name} differs); load_run "
                    "returns a run with its own"
                )

    def _test_set(self, given: "Dataset[Any] | tuple[Tensor, Tensor] | None") -> tuple[Tensor, Tensor]:
        """Return inputs and labels of the test set that was given, else of the run's own."""
        inputs, targets = tensors_of(self.data if given is None else given)
        shape, classes = tuple(self.record["input_shape"]), int(self.record["classes"])
        if tuple(inputs.shape[1:]) != shape:
            raise InvalidInputError(
                f"test inputs have shape {list(inputs.shape[1:])}; valid: {list(shape)}, as {self.path} was trained on"
            )
        if targets.dim() != 1 or targets.is_floating_point() or targets.is_complex():
            raise InvalidInputError(
                f"test labels have shape {list(targets.shape)} and type {targets.dtype}; valid: a whole number each"
            )
        if int(targets.min()) < 0 or int(targets.max()) >= classes:
            raise InvalidInputError(
                f"test labels are {int(targets.min())} to {int(targets.max())}; valid: 0 to {classes - 1}, "
                f"the {classes} classes of {self.path}"
            )
        return inputs, targets


def load_run(
    path: str | Path,
    *,
    network: NetworkSource | None = None,
    dataset: "str | LoadedData | None" = None,
    device: str | None = None,
) -> Run:
    """Return a finished run from its folder.

    `network` is needed if the network is not a built-in one: the module without its noise, a function that builds it,
    or an import path. Its structure is compared with that of the trained one, and its outputs at three inputs.
    `dataset` replaces the run's own test data: a name, a path, an import path or loaded data. `device` is where the
    model is put: cpu (None), cuda, cuda:1, …
    Raises: DamagedFileError if the run is unfinished or broken; InvalidInputError if the network is missing or another.
    """
    folder, place = Path(path), torch_device(device)
    config = saved_config(folder)
    files = RunFolder(folder)
    if not files.complete:
        raise DamagedFileError(f"{folder} is not finished; resume it with `securesgd train --resume --out {folder}`")
    record = read_model_record(folder)
    weights = load_tensors(files.model).tensors
    shape, classes = tuple(int(size) for size in record["input_shape"]), int(record["classes"])
    try:
        model = build_trained_model(
            config, shape, classes, weights, source=network, structure=record.get("structure_sha256")
        )
    except DamagedFileError as error:
        raise DamagedFileError(f"{folder}: {error}") from None
    require_same_outputs(model, shape, record.get("outputs"))
    loaded = load_other_data(dataset, record) if isinstance(dataset, str) else dataset
    if loaded is not None and not isinstance(loaded, LoadedData):
        raise InvalidInputError(
            f"dataset is a {type(loaded).__name__}; valid: a name, a path or what load_data returned; tensors and "
            "Datasets go to run.certify(test_set)"
        )
    return Run(folder, config, model.to(place), loaded)
