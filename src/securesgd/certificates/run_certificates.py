"""Certify the test examples of a run and store the certificates in its folder while they are made.

An example's certificate does not depend on the others, so an interrupted certification, or one that is wanted for more
examples later, resumes where it stopped. Certificates by smoothing and by intervals are side by side in the same files.
Votes do not depend on the norm, so another norm by the same settings needs no draws at all, and neither does another
rule.
"""

__all__ = ["CERTIFICATES", "RECORD", "SENSITIVITIES", "RunCertificates", "certify_run"]

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from securesgd.certificates.certify import certify
from securesgd.certificates.parts import in_parts
from securesgd.certificates.recheck import record_digest
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.rules import INTERVAL, certificate_rules, radius_rules, record_key
from securesgd.certificates.run_intervals import certify_run_by_intervals
from securesgd.certificates.sensitivity import published_whitened_sensitivity
from securesgd.certificates.stored_certificates import (
    CERTIFICATES,
    RECORD,
    SENSITIVITIES,
    Row,
    certificate_rows,
    new_record,
    record_rules,
    rows_of,
    stated_result,
    write_certificates,
)
from securesgd.certificates.stored_proofs import read_proven_certificates
from securesgd.certificates.summary import certificate_balance, certified_summary
from securesgd.certificates.votes import stream_number
from securesgd.errors import InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.runtime.processes import Processes
from securesgd.runtime.run_folder import locked_folder
from securesgd.theory import Sensitivity
from securesgd.theory.certificates import CERTIFICATE_RULES, CertificateRule, radii_by_rule
from securesgd.theory.class_balance import WARNING, ClassBalance


@dataclass(frozen=True, kw_only=True)
class RunCertificates:
    """The certificates of a run, as its folder holds them after a certification."""

    records: dict[str, dict[str, Any]]
    """By norm, or `interval`, of those that were certified: settings, summary and guarantee, as in the file."""
    summaries: dict[str, dict[str, Any]]
    """By norm, or `interval`, of the examples that were wanted, at the radii that were wanted."""
    rows: list[Row]
    """Every row of certificates.csv, also in other norms and of the other family."""
    examples: int

    def rows_in(self, norm: str) -> list[Row]:
        """Return the rows of the examples that were wanted, in one norm, or by `interval`."""
        return [row for row in self.rows if record_key(row) == norm and row["index"] < self.examples]

    def __str__(self) -> str:
        lines = []
        for norm, summary in self.summaries.items():
            lines.append(
                f"{norm}, {summary['examples']} examples: {summary['accuracy']['share']:.3f} right; right and proven "
                "at " + ", ".join(f"{at}: {x['share']:.3f}" for at, x in summary["certified_accuracy"]["tight"].items())
            )
            warning = self.balance(norm).warning()
            lines += [WARNING + warning] if warning else []
        return "\n".join(lines)

    def balance(self, norm: str) -> ClassBalance:
        """Return what the accuracy of the examples that were wanted is worth, class by class."""
        return certificate_balance(self.rows_in(norm))

    def json(self, class_names: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the record of each norm, with the summary and the balance of the examples that were wanted."""
        return {
            norm: {**record, "summary": self.summaries[norm], "balance": self.balance(norm).json(class_names)}
            for norm, record in self.records.items()
        }


def certify_run(
    folder: Path,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    norms: Sequence[str],
    settings: CertifySettings,
    *,
    examples: int | None = None,
    at_radii: Sequence[float] | None = None,
    rules: Sequence[str] = (),
    again: bool = False,
    on_progress: Callable[[float, int], None] | None = None,
) -> RunCertificates:
    """Certify the first `examples` (all if None or 0) of a run's test set that have no certificate yet.

    Guarantee: that of `certify`; all norms share the votes, so one failure probability covers an example's radii in all
    of them. Whatever is on disk at any moment is true: the rows that carry the digest of their record. Under
    torch.distributed all processes take part and the first one writes.
    Raises: InvalidInputError if the model or arguments do not fit or the folder has certificates by other settings,
    DamagedFileError if they were made with other weights or data, state more than they prove, or the files are broken.
    `again` replaces them; nothing is overwritten otherwise.

    `at_radii` are those of the summaries; by default the radius of the settings, or some of each norm. `rules` are
    import paths of certificate rules from outside; their radii are stored for all rows, and are without guarantee of
    this package. Radii by a rule of an earlier call that is not given now are kept, and are 0 in rows that are new.
    """
    settings = settings.for_model(model)
    wanted, shown_radii = _validate(inputs, norms, settings, examples, at_radii)
    if settings.family == INTERVAL:
        if rules:
            raise InvalidInputError(f"the rule {rules[0]!r} is about votes; interval certificates have none")
        certified, rows = certify_run_by_intervals(
            folder, model, inputs, targets, settings, wanted, again=again, on_progress=on_progress
        )
    else:
        certified, rows = _certify_run_by_votes(
            folder, model, inputs, targets, norms, settings, wanted, rules=rules, again=again, on_progress=on_progress
        )
    result = RunCertificates(records=certified, summaries={}, rows=rows, examples=len(wanted))
    return replace(result, summaries={key: certified_summary(result.rows_in(key), shown_radii) for key in certified})


def _certify_run_by_votes(
    folder: Path,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    norms: Sequence[str],
    settings: CertifySettings,
    wanted: NDArray[np.int64],
    *,
    rules: Sequence[str],
    again: bool,
    on_progress: Callable[[float, int], None] | None,
) -> tuple[dict[str, dict[str, Any]], list[Row]]:
    """Return the records of the norms and all rows, after certifying the wanted examples by smoothing."""
    noisy = _require_noise(folder, model)
    all_rules, processes = certificate_rules(rules), Processes()
    with ExitStack() as stack:
        processes.on_first(lambda: stack.enter_context(locked_folder(folder)))
        new_records = {norm: new_record(replace(settings, norm=norm), noisy, inputs, targets) for norm in norms}
        deltas, records, stored, columns = processes.on_first(  # a refusal comes before the work
            lambda: read_proven_certificates(folder, new_records, noisy, inputs, targets, again)
        )
        by_intervals = rows_of(stored, INTERVAL)
        stored = [row for row in stored if record_key(row) != INTERVAL]
        names = list(dict.fromkeys([*all_rules, *(radius_rules(stored[0]) if stored else ())]))
        stored += _from_other_norms(stored, records, new_records)
        rows = [
            row for norm in deltas for row in _with_radii(rows_of(stored, norm), names, all_rules, deltas[norm], noisy)
        ] + by_intervals
        todo = _without_row(wanted, rows, norms)
        processes.on_first(lambda: record_rules(folder, names))

        def save() -> dict[str, dict[str, Any]]:
            for norm, record in {**records, **new_records}.items():
                if norm != INTERVAL and rows_of(rows, norm):
                    records[norm] = stated_result(record, deltas[norm], noisy, rows_of(rows, norm), names)
            write_certificates(folder, rows, records, columns)
            return {norm: records[norm] for norm in norms}

        def certify_part(part: NDArray[np.int64], report: Callable[[float], None]) -> None:
            certificates = certify(
                noisy, inputs[part], replace(settings, norm=norms[0]), indices=part, rules=rules,
                on_progress=lambda progress: report(progress.examples / max(1, progress.of)),
                sensitivity=deltas[norms[0]],
            )  # fmt: skip
            for norm in norms:
                in_norm = certificates if norm == norms[0] else certificates.in_norm(norm, noisy, deltas[norm])
                made = certificate_rows(in_norm, targets, record_digest(new_records[norm]))
                existing = {row["index"] for row in rows_of(rows, norm)}
                rows.extend(
                    row
                    for row in _with_radii(made, names, all_rules, deltas[norm], noisy)
                    if row["index"] not in existing
                )

        in_parts(todo, processes, certify_part, save, on_progress)
        return processes.on_first(save), rows


def _require_noise(folder: Path, model: nn.Module) -> NoisyNetwork:
    if not isinstance(model, NoisyNetwork):
        raise InvalidInputError(
            f"{folder} has a {type(model).__name__} without noise in the first layer: there is nothing to certify by "
            "smoothing; valid: family interval"
        )
    return model


def _validate(
    inputs: Tensor,
    norms: Sequence[str],
    settings: CertifySettings,
    examples: int | None,
    at_radii: Sequence[float] | None,
) -> tuple[NDArray[np.int64], Sequence[float] | None]:
    """Return the indices of the wanted examples, and the radii of the summary (None: some of each norm)."""
    if settings.family == INTERVAL:
        if list(norms) != ["linf"]:
            raise InvalidInputError(f"norms are {', '.join(norms) or 'empty'}; valid for interval certificates: linf")
    elif settings.seed is None:
        raise InvalidInputError(
            "seed is None; valid: a whole number, so that the certificates of a run can be repeated"
        )
    if not norms:
        raise InvalidInputError("norms is empty; valid: one or more of linf, l2, l1")
    if settings.adaptive and len(norms) > 1:
        raise InvalidInputError("a radius or tolerance is in one norm; certify one norm at a time")
    if at_radii and not all(0 <= radius < math.inf for radius in at_radii):
        raise InvalidInputError(f"at_radii is {list(at_radii)}; valid: radii >= 0")
    if examples is not None and examples < 0:
        raise InvalidInputError(f"examples is {examples}; valid: 1 or more, or 0 for all")
    wanted = np.arange(min(examples or len(inputs), len(inputs)))
    return wanted, at_radii or ([settings.radius] if settings.radius else None)


def _without_row(wanted: NDArray[np.int64], rows: list[Row], norms: Sequence[str]) -> NDArray[np.int64]:
    """Return the examples without a row in some norm, those that share noise side by side."""
    existing = [{row["index"] for row in rows_of(rows, norm)} for norm in norms]
    todo = np.array([i for i in wanted if not all(i in indices for indices in existing)], dtype=np.int64)
    return todo[np.lexsort((todo, stream_number(todo)))]


def _with_radii(
    rows: list[Row],
    names: Sequence[str],
    rules: Mapping[str, CertificateRule],
    delta: Sensitivity,
    model: NoisyNetwork,
) -> list[Row]:
    """Return rows of one norm with radii by all `names`, in that order.

    Radii that the rows lack are computed, as are those by rules from outside, whose function may have changed. A rule
    that is not known here cannot be computed: where it is missing, its radius is 0, which claims nothing.
    """
    if not rows:
        return []
    present = radius_rules(rows[0])
    computed = {name: rule for name, rule in rules.items() if name not in present or name not in CERTIFICATE_RULES}
    p, q, rounding = (np.array([row[name] for row in rows]) for name in ("p_lower", "q_upper", "rounding"))
    published = published_whitened_sensitivity(model, delta) if computed else delta.upper
    radii = radii_by_rule(p, q, delta.upper, published, rounding, computed)
    return [
        {column: value for column, value in row.items() if not column.startswith("radius_")}
        | {
            f"radius_{name}": float(radii[name][i]) if name in radii else row.get(f"radius_{name}", 0.0)
            for name in names
        }
        for i, row in enumerate(rows)
    ]


def _from_other_norms(
    rows: list[Row], records: Mapping[str, dict[str, Any]], new_records: Mapping[str, dict[str, Any]]
) -> list[Row]:
    """Return rows without radii in norms that have none yet, from the votes of a norm with the same settings."""
    converted: list[Row] = []
    by_votes = {norm: record for norm, record in records.items() if norm != INTERVAL}
    for norm in (norm for norm in new_records if norm not in records):
        same = new_records[norm]["settings"] | {"norm": None}
        source = next((n for n, r in by_votes.items() if r["settings"] | {"norm": None} == same), None)
        if source is None or same["radius"] is not None or same["tolerance"] is not None:
            continue
        votes = [
            {column: value for column, value in row.items() if not column.startswith("radius_")}
            for row in rows_of(rows, source)
        ]
        converted += [row | {"norm": norm, "record": record_digest(new_records[norm])} for row in votes]
    return converted
