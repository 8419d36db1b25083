"""The commands that check a run again, for its report and its model card."""

__all__ = ["check_commands"]

from collections.abc import Sequence
from typing import Any

from securesgd.certificates.rules import INTERVAL
from securesgd.report.run_record import RunRecord
from securesgd.runtime.import_path import is_import_path
from securesgd.runtime.run_folder import IN_MEMORY, OWN_NETWORK


def check_commands(record: RunRecord, folder: str | None = None) -> str:
    """Return the commands that check the run again; what the folder does not hold must be given.

    `folder` is what the folder of the run is called in them; its name if not given.
    """
    folder = folder or record.called
    network, dataset = record.network, (record.config or {}).get("dataset")
    lines = [
        f"# in the folder that holds {folder}/",
        f"securesgd check {folder}           # recomputes what this folder claims, and writes nothing",
    ]
    given = []
    if network == OWN_NETWORK or is_import_path(network):
        given.append(f"--network {'PACKAGE.MODULE:FUNCTION' if network == OWN_NETWORK else network}")
        if record.structure_sha256:
            lines.append(f"# the network is not in the folder; sha256 of its structure: {record.structure_sha256}")
    if dataset == IN_MEMORY or is_import_path(dataset):
        given.append(f"--dataset {'DATA.npz' if dataset == IN_MEMORY else dataset}")
    for key, stated in record.certificate_records.items():
        if key == INTERVAL:
            lines.append(f"cp -r {folder} {folder}-{key}        # new proofs, in a copy")
        else:
            lines.append(f"cp -r {folder} {folder}-{key}        # fresh noise and a new proof, in a copy")
        lines.append(f"securesgd certify {folder}-{key} {' '.join(_certify_options(key, stated, given))}")
    training = (record.config or {}).get("training", {})
    if dataset == IN_MEMORY or network == OWN_NETWORK or "own" in (training.get("optimizer"), training.get("schedule")):
        lines.append("# training again takes the program that trained it: the folder does not hold all that it used")
    else:
        lines.append(f"securesgd train --config {folder}/config.toml --out again     # same settings, new secret noise")
    return "\n".join(lines)


def _certify_options(key: str, stated: dict[str, Any], given: Sequence[str]) -> list[str]:
    """Return the options of the command that makes the certificates of a record anew."""
    settings, by_intervals = stated["settings"], key == INTERVAL
    options = [f"--family {INTERVAL}" if by_intervals else f"--norm {key}", f"--examples {stated['examples']}"]
    if by_intervals:
        options.append(f"--bounds {settings['bounds']}")
        if settings["box"] is not None:
            options.append(f'--box "{",".join(settings.get("box_in_units") or settings["box"])}"')
        if settings["input_range"] != [0.0, 1.0]:
            ends = settings["input_range"]
            options.append(f"--input-range {'none' if ends is None else f'{ends[0]:g},{ends[1]:g}'}")
    else:
        options.append(f"--failure-prob {settings['failure_prob']:g}")
    for name in ("draws", "selection_draws", "radius", "tolerance"):
        if settings.get(name) is not None:
            options.append(f"--{name.replace('_', '-')} {settings[name]}")
    return [*options, *given, *(() if by_intervals else (f"--seed {settings['seed'] + 1}",)), "--again"]
