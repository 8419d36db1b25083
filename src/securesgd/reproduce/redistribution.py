"""Does redistribution pay? Certified l_inf accuracy on MNIST by the way r is obtained, and of one model by every rule.

One network, noise at the input, training data protected with epsilon = 3; models differ in r and in nothing else: the
noise is scaled so that one standard deviation is worth the same radius (`unit`) in every cell.
"""

__all__ = ["CERTIFIED", "RADII", "REDISTRIBUTION", "SETTINGS", "redistribution_model"]

from pathlib import Path
from typing import TYPE_CHECKING, Any

from securesgd.report.plots import summary_curves_figure
from securesgd.reproduce.gains import seed_summary
from securesgd.reproduce.grid import Cell, Experiment, Row
from securesgd.reproduce.models import WAYS, cell_model, train_command
from securesgd.reproduce.plots import ways_figure
from securesgd.runtime.run_folder import CERTIFICATES
from securesgd.runtime.tables import write_rows

if TYPE_CHECKING:
    from securesgd.run import Run

RADII = (0.02, 0.04, 0.06, 0.08, 0.10)
SETTINGS: dict[str, Any] = {
    "network": "tanh-cnn", "epsilon": 3.0, "batch_size": 1024, "steps": 703, "learning_rate": 1.0, "copies": 1,
    "place": "input", "norm": "linf", "unit": 0.036, "ema_decay": 0.0,
}  # fmt: skip
_COMPARED_WAYS = tuple(way for way in WAYS if way != "as-published")  # which has no guarantee to certify
_REDISTRIBUTION_PROFILES: dict[str, dict[str, Any]] = {
    "standard": {"seeds": (0, 1, 2), "examples": 500, "draws": 10_000},
    "quick": {"seeds": (0,), "examples": 200, "draws": 10_000},
}
_CERTIFIED_PROFILES: dict[str, dict[str, int]] = {
    "standard": {"examples": 1_000, "draws": 10_000},
    "quick": {"examples": 200, "draws": 10_000},
}
_CERTIFIED_WAY, _CERTIFIED_SEED = "learned-from-prior", 0


def redistribution_model(way: str, seed: int, work: Path) -> "Run":
    """Return the model with this way to obtain r; train it, or resume its training, if it is not finished."""
    return cell_model("mnist", "secure-sgd", work / f"{way}-{seed}", SETTINGS | WAYS[way], seed)


def _redistribution_cells(profile: str) -> list[Cell]:
    """Return the grid: way × seed, with the number of images and draws."""
    size = _REDISTRIBUTION_PROFILES[profile]
    counts = {"examples": size["examples"], "draws": size["draws"]}
    return [{"way": way, "seed": seed, **counts} for seed in size["seeds"] for way in _COMPARED_WAYS]


def measure_redistribution(cell: Cell, work: Path) -> list[Row]:
    """Train the model of a cell, certify its predictions, and return its row."""
    from securesgd.certificates.certify import certify
    from securesgd.certificates.record import CertifySettings

    run = redistribution_model(cell["way"], cell["seed"], work)
    settings = CertifySettings(norm="linf", draws=cell["draws"], selection_draws=100, failure_prob=0.001, seed=0)
    inputs, targets = run.data.test_inputs[: cell["examples"]], run.data.test_targets[: cell["examples"]].numpy()
    certificates = certify(run.model, inputs, settings)
    assert certificates.sensitivity is not None
    right, radius = (certificates.prediction == targets) & ~certificates.abstained, certificates.radius["tight"]
    return [
        {
            **cell,
            "epsilon_spent": run.privacy.accounted_epsilon,
            "delta": run.privacy.delta,
            "sensitivity_upper": certificates.sensitivity.upper,
            "sensitivity_lower": certificates.sensitivity.lower,
            "test_accuracy": run.test_accuracy,
            "test_images": run.test_images,
            "smoothed_accuracy": float(right.mean()),
            **{f"certified_at_{r:g}": float((right & (radius >= r)).mean()) for r in RADII},
            "average_certified_radius": float((right * radius).mean()),
            "command": train_command("mnist", "secure-sgd", SETTINGS | WAYS[cell["way"]], cell["seed"]),
        }
    ]


def _draw_redistribution(rows: list[Row], path: Path) -> None:
    """Draw the figure, and write the means over the seeds into `summary.csv` beside it."""
    ways_figure(rows, path)
    values = ["test_accuracy", *(f"certified_at_{r:g}" for r in RADII), "average_certified_radius"]
    write_rows(path.with_name("summary.csv"), seed_summary(rows, ["way"], values))


REDISTRIBUTION = Experiment(
    cells=_redistribution_cells,
    measure=measure_redistribution,
    draw=_draw_redistribution,
    minutes={"quick": 4, "standard": 4},
)


def _certified_cells(profile: str) -> list[Cell]:
    """Return the norms; the votes are the same for both."""
    return [{"norm": norm, **_CERTIFIED_PROFILES[profile]} for norm in ("linf", "l2")]


def measure_certified(cell: Cell, work: Path) -> list[Row]:
    """Certify the model with r learned from the prior, attack its certificates; return a row per rule and radius."""
    from securesgd.attacks.falsify import falsify_run
    from securesgd.certificates.record import CertifySettings
    from securesgd.certificates.run_certificates import SENSITIVITIES, certify_run
    from securesgd.certificates.sensitivity import known_sensitivity
    from securesgd.certificates.summary import certified_summary
    from securesgd.models.noisy import NoisyNetwork
    from securesgd.runtime.tables import read_rows

    run = redistribution_model(_CERTIFIED_WAY, _CERTIFIED_SEED, work.parent / "redistribution")
    assert isinstance(run.model, NoisyNetwork)
    norm, count = cell["norm"], cell["examples"]
    settings = CertifySettings(norm=norm, draws=cell["draws"], seed=0)
    folder = work / norm  # a folder each: both norms may be measured at once, by two processes
    folder.mkdir(parents=True, exist_ok=True)
    certify_run(folder, run.model, run.data.test_inputs, run.data.test_targets, [norm], settings, examples=count)
    rows = [row for row in read_rows(folder / CERTIFICATES) if row["index"] < count]
    bound = known_sensitivity(run.model, norm, folder / SENSITIVITIES)
    check = falsify_run(
        folder, run.model, run.data.test_inputs, rows,
        certificate_failure_prob=settings.failure_prob, direction=bound.direction, restarts=1, eot=20,
    )  # fmt: skip
    summary, searches = certified_summary(rows), check["rules"]
    return [
        {
            **cell,
            "rule": rule,
            "radius": float(radius),
            "certified_accuracy": share["share"],
            "lower": share["lower"],
            "upper": share["upper"],
            "average_certified_radius": summary["average_certified_radius"][rule],
            "smoothed_accuracy": summary["accuracy"]["share"],
            "failure_prob": settings.failure_prob,
            "seed": settings.seed,
            "sensitivity_upper": bound.upper,
            "balls_searched": searches.get(rule, searches["tight"])["searched"],
            "violations": searches.get(rule, searches["tight"])["violations"],
            "model": f"redistribution, way {_CERTIFIED_WAY}, seed {_CERTIFIED_SEED}",
        }
        for rule, shares in summary["certified_accuracy"].items()
        for radius, share in shares.items()
    ]


CERTIFIED = Experiment(
    cells=_certified_cells,
    measure=measure_certified,
    draw=summary_curves_figure,
    minutes={"quick": 8, "standard": 8},
)
