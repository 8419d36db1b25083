"""Train, certify and attack small seeded runs, and print a digest of every number that a committed row could hold.

Run as a program, with arithmetic that is the same on every x86-64 machine (`PORTABLE`): one thread, no vector
instructions beyond the common ones. `test_same_bytes.py` compares what it prints with `seeded_runs.json`.
"""

import contextlib
import csv
import hashlib
import io
import json
import sys
import tempfile
from pathlib import Path

PORTABLE = {
    "OMP_NUM_THREADS": "1",
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Nehalem",
    "NPY_DISABLE_CPU_FEATURES": "FMA3 AVX2 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
}
_SMALL = ("batch_size=128", "steps=20", "noise_multiplier=0.5", "noise_seed=7", "seed=3")
RUNS = {
    "learned-input": ("secure-sgd", "place=input", "redistribution=learned", "start=prior", "copies=2"),
    "private-first-layer": ("secure-sgd", "place=first-layer", "redistribution=private", "r_step=0.5", "ema_decay=0.5"),
    "uniform-first-layer": ("secure-sgd-agm", "place=first-layer", "optimizer=adam", "schedule=cosine"),
    "random-input": ("secure-sgd", "place=input", "redistribution=random", "population=3000"),
    "dpsgd": ("dpsgd", "micro_batch=32"),
    "pixeldp": ("pixeldp", "place=first-layer"),
    "adlm": ("adlm",),
}


def run_digests(name: str, folder: Path) -> dict[str, str]:
    """Return the digests of one run: its weights, and if it was certified and attacked, those rows and images."""
    method, *settings = RUNS[name]
    private = method not in ("pixeldp", "adlm")
    small = [change for change in _SMALL if private or not change.startswith("noise_multiplier")]
    changes = [word for change in (*small, *settings) for word in ("--set", change)]
    _command("train", "--dataset", "digits", "--method", method, "--out", str(folder), *changes)
    found = {"weights": tensors_digest(folder / "model.safetensors")}
    if (folder / "redistribution.json").exists():
        found["r"] = hashlib.sha256((folder / "redistribution.json").read_bytes()).hexdigest()
        _command("certify", str(folder), "--norm", "linf,l2", "--draws", "300", "--examples", "8")
        found["certificates"] = table_digest(folder / "certificates.csv")
    effort = ("--eot", "2", "--steps", "2", "--examples", "6", "--draws", "50", "--certify-draws", "100")
    names = "fgsm,madry,square" if name == "learned-input" else "mim"
    _command("attack", str(folder), "--attack", names, "--budget", "0.1", *effort, "--no-probes", "--keep-images")
    found["attacks"] = table_digest(folder / "attacks.csv")
    for file in sorted(folder.glob("attack*/*.safetensors")) + sorted(folder.glob("attack*.safetensors")):
        found[f"images {file.name}"] = tensors_digest(file)
    return found


def _command(*words: str) -> None:
    from securesgd.cli import app

    with contextlib.redirect_stdout(io.StringIO()):
        try:
            app([*words], standalone_mode=False)
        except SystemExit as end:
            if end.code:
                raise


def table_digest(path: Path) -> str:
    """Return a digest of a table's cells, but for measured times and the family, which earlier tables lack.

    Radii of a network without noise are left out too: they are what a search for the largest provable one finds.
    """
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    by_bounds = all(row.get("draws") == "1" for row in rows)
    left_out = {"seconds", "family", *(("clean_radius", "radius") if by_bounds else ())}
    rows = [{name: cell for name, cell in row.items() if name not in left_out} for row in rows]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def tensors_digest(path: Path) -> str:
    """Return a digest of the names and bytes of a file's tensors."""
    import safetensors

    digest = hashlib.sha256()
    with safetensors.safe_open(path, framework="np") as file:
        for name in sorted(file.keys()):
            array = file.get_tensor(name)
            digest.update(f"{name} {array.dtype} {list(array.shape)}".encode() + array.tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        names = sys.argv[1:] or list(RUNS)
        json.dump({name: run_digests(name, Path(place) / name) for name in names}, sys.stdout, indent=1)
