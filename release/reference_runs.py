"""Rebuild the reference runs: small trained models on the embedded digits, with certificates, a check and digests.

    python release/reference_runs.py                 (make reference; into runs/reference, which must be new)
    python release/reference_runs.py --out elsewhere --rows table.csv

Everything has a fixed seed, so none of these models is private; what they are for is comparison: two machines that give
the same digests compute the same thing. The arithmetic is that of `tests/seeded_runs.py`: one thread and no vector
instructions beyond the common ones.
"""

import argparse
import csv
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.seeded_runs import PORTABLE, table_digest, tensors_digest  # noqa: E402

ROWS = ROOT / "results" / "reference" / "rows.csv"
SEEDS = ("noise_seed=2026", "seed=1")
# Method, settings, norm of the certificates and the radius of the row.
RUNS = {
    "secure-sgd-linf": ("secure-sgd", ("steps=60", "copies=2"), "linf", 0.02),
    "secure-sgd-l2": ("secure-sgd", ("steps=60", "copies=2", "norm=l2"), "l2", 0.1),
    "dp-ibp": ("dp-ibp", ("steps=100",), "linf", 0.02),
    "dpsgd": ("dpsgd", ("steps=100",), "linf", 0.02),
}
CERTIFIED = ("--examples", "40", "--draws", "500")


def command(*words: str | Path) -> None:
    """Run a command of securesgd in a process of its own, with portable arithmetic."""
    line = [sys.executable, "-m", "securesgd", *map(str, words)]
    result = subprocess.run(line, env=os.environ | PORTABLE, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{' '.join(line[2:])}: {result.stderr or result.stdout}")


def build(name: str, folder: Path) -> None:
    """Train and certify one reference run, and check the folder."""
    method, settings, norm, _ = RUNS[name]
    changes = [word for change in (*settings, *SEEDS) for word in ("--set", change)]
    command("train", "--dataset", "digits", "--method", method, "--out", folder, *changes)
    command("certify", folder, "--norm", norm, *CERTIFIED)
    command("check", folder)


def row(name: str, folder: Path) -> dict[str, object]:
    """Return what must agree on another machine (epsilon), what should (digests), and what comes close (accuracies)."""
    from securesgd.certificates.summary import certified_accuracy
    from securesgd.run import load_run
    from securesgd.runtime.tables import read_rows

    _, _, norm, radius = RUNS[name]
    run = load_run(folder)
    certified = certified_accuracy(read_rows(folder / "certificates.csv"), "tight", radius)
    return {
        "run": name,
        "epsilon": round(run.privacy.accounted_epsilon, 9),  # further digits depend on how an FFT rounds
        "delta": run.privacy.delta,
        "accuracy": run.test_accuracy,
        "test_images": run.test_images,
        "norm": norm,
        "radius": radius,
        "right_and_proven": certified["share"],
        "weights": tensors_digest(folder / "model.safetensors"),
        "certificates": table_digest(folder / "certificates.csv"),
    }


def main() -> None:
    """Build all runs and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "reference", help="folder of the runs; new")
    parser.add_argument(
        "--rows", type=Path, help="table to write; printed and compared with the recorded one if not given"
    )
    options = parser.parse_args()
    rows = []
    for name in RUNS:
        build(name, options.out / name)
        rows.append(row(name, options.out / name))
        print(", ".join(f"{column} {value}" for column, value in rows[-1].items()), flush=True)
    if options.rows is not None:
        options.rows.parent.mkdir(parents=True, exist_ok=True)
        with options.rows.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        return
    with ROWS.open(newline="") as file:
        recorded = {line["run"]: line for line in csv.DictReader(file)}
    different = [
        f"{line['run']}: {column}"
        for line in rows
        for column in line
        if str(line[column]) != recorded[line["run"]][column]
    ]
    if different:
        sys.exit(f"not as recorded: {'; '.join(different)}")
    print("as recorded, bit for bit")


if __name__ == "__main__":
    main()
