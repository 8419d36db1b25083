"""The claims that take the network: Δ, r, certificates, attacks and accuracy, computed again from the weights.

Certificates and votes have seeds, so the same examples give the same numbers. Another processor may round a sum
differently, which moves a vote now and then: numbers may differ by one vote and one in a thousand, and not more.
"""

__all__ = ["NETWORK_CLAIMS", "Network"]

import math
import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor, nn

from securesgd.attacks.ball import sizes
from securesgd.attacks.cells import load_images
from securesgd.attacks.evaluate import PART
from securesgd.attacks.harness import clean_votes
from securesgd.attacks.objective import evaluation_mode
from securesgd.build import redistribution_of, structure_digest
from securesgd.certificates.certify import certify
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.rules import INTERVAL, record_key
from securesgd.certificates.sensitivity import fingerprint, published_whitened_sensitivity, stored_sensitivity
from securesgd.certificates.stored_certificates import examples_digest
from securesgd.certificates.stored_proofs import require_proven_rows
from securesgd.certificates.validate import require_inputs
from securesgd.check.attack_claims import require_proven_clean_radii, require_true_warnings
from securesgd.check.evidence import Evidence
from securesgd.check.outcome import Claim, NotCheckable, require_equal
from securesgd.config import RunConfig
from securesgd.errors import DamagedFileError
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.predict import predicted_classes, vote_counts
from securesgd.models.redistribution import Redistribution
from securesgd.runtime import run_folder as names
from securesgd.runtime.randomness import seeded_generator
from securesgd.runtime.run_records import RunMetrics
from securesgd.theory import Sensitivity
from securesgd.theory.class_balance import class_balance

_WHOLE = ("index", "label", "prediction", "abstained", "draws")
_UNLIKELY = 6.0
"""Standard deviations between two measurements with noise of their own that chance does not explain."""

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Network:
    """What the claims are checked with: the files of a run, its network, its test set, and how much to compute."""

    evidence: Evidence
    config: RunConfig
    model: nn.Module
    test_set: tuple[Tensor, Tensor] | None
    no_test_set: str = ""
    """Why there is no test set."""
    examples: int | None = None
    """Certificates of each norm that are computed again, chosen at random; None: all."""

    @property
    def test(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the test set. Raises: NotCheckable if it is not there."""
        if self.test_set is None:
            raise NotCheckable(f"the test data are not here: {self.no_test_set}")
        return self.test_set

    @cached_property
    def test_digest(self) -> str:
        """The digest of the test set."""
        return examples_digest(*self.test)

    @cached_property
    def weights(self) -> str:
        """The digest of the network, as results name it."""
        return fingerprint(self.model)

    def sensitivity(self, norm: str) -> Sensitivity:
        """Return Δ in a norm: by its stored proof, carried out again, or proven now if none is stored."""
        if self.evidence.has(names.SENSITIVITY):
            return stored_sensitivity(self.noisy, norm, self.evidence.folder / names.SENSITIVITY)
        return self.noisy.sensitivity(norm)  # type: ignore[arg-type]

    @property
    def noisy(self) -> NoisyNetwork:
        """The network, if it has noise. Raises: DamagedFileError if results by votes are about one that has none."""
        if not isinstance(self.model, NoisyNetwork):
            raise DamagedFileError("there are certificates by smoothing, but the network has no noise")
        return self.model


def _check_network(network: Network) -> str:
    """Return that the network has the structure that was trained, and that results are about it."""
    evidence, stated = network.evidence, network.evidence.model.get("structure_sha256")
    if stated is not None:
        require_equal(names.MODEL, [("the sha256 of the structure as", stated, structure_digest(network.model))])
    trained = sum(weight.numel() for weight in network.model.parameters() if weight.requires_grad)
    require_equal(names.MODEL, [("the number of trained weights", evidence.model["weights"], trained)])
    if evidence.has(names.CERTIFICATE_RECORD):
        for key, record in evidence.certificate_records.items():
            require_equal(
                names.CERTIFICATE_RECORD, [(f"weights of {key} with sha256", record["weights"], network.weights)]
            )
            if key != INTERVAL:
                way = network.noisy.input_path
                require_equal(names.CERTIFICATE_RECORD, [("the way of the input as", record["input_path"], way)])
    if evidence.has(names.ATTACK_RECORD):
        made_with = evidence.attack_record["weights"]
        require_equal(names.ATTACK_RECORD, [("weights with sha256", made_with, network.weights)])
    return f"{trained:,} trained weights in the structure that model.json states; results name these weights"


def _check_r(network: Network) -> str:
    """Return that redistribution.json has the r of the network."""
    if not isinstance(network.model, NoisyNetwork):
        raise NotCheckable("the network has no noise")
    stated = Redistribution.load(network.evidence.path(names.REDISTRIBUTION))
    true = redistribution_of(network.config, network.model)
    pairs = [("the shape", list(stated.shape), list(true.shape)), ("r as", list(stated.per_unit), list(true.per_unit))]
    require_equal(names.REDISTRIBUTION, pairs, rel_tol=1e-6)
    return "r is that of the weights"


def _check_delta(network: Network) -> str:
    """Return that Δ of the noisy layer, proven from the weights, is what certificates.json states."""
    if not isinstance(network.model, NoisyNetwork):
        raise NotCheckable("the network has no noise, and so no Δ")
    shown = []
    for norm, record in network.evidence.certificate_records.items():
        if norm == INTERVAL:
            continue
        delta = network.sensitivity(norm)
        published = published_whitened_sensitivity(network.model, delta)
        pairs = [(f"Δ in {norm} as", record["sensitivity"]["upper"], delta.upper)]
        pairs.append((f"the published Δ in {norm} as", record["published_sensitivity"], published))
        require_equal(names.CERTIFICATE_RECORD, pairs)
        shown.append(f"{delta.upper:.6g} in {norm}")
    if not shown:
        raise NotCheckable("there are no certificates by smoothing")
    return f"proven again from the weights: {', '.join(shown)}"


def _check_test_data(network: Network) -> str:
    """Return that the test data are those of model.json."""
    stated, (inputs, targets) = network.evidence.model.get("test_sha256"), network.test
    if stated is None:
        raise NotCheckable("model.json has no digest of the test data")
    require_equal(names.MODEL, [("test data with sha256", stated, network.test_digest)])
    require_equal(names.MODEL, [("inputs of shape", network.evidence.model["input_shape"], list(inputs.shape[1:]))])
    return f"{len(targets)} test examples have the sha256 that model.json states ({network.test_digest[:8]}…)"


def _check_accuracy(network: Network) -> str:
    """Return that the accuracy of metrics.jsonl is that of the weights on the test data."""
    stated = RunMetrics.from_json(network.evidence.metrics[-1])
    if stated.test_accuracy is None:
        raise NotCheckable("metrics.jsonl states no accuracy")
    inputs, targets = network.test
    true = class_balance(targets.tolist(), predicted_classes(network.model, inputs).tolist())
    if not abs(stated.test_accuracy - true.accuracy) <= (_slack(len(targets)) + 0.5) / len(targets):
        raise DamagedFileError(
            f"metrics.jsonl states the accuracy {stated.test_accuracy:.4f}, but the weights give {true.accuracy:.4f}"
        )
    if stated.test_balance is None:
        return f"the weights give {sum(true.right)} right of {len(targets)}; metrics.jsonl has no counts by class"
    require_equal(names.METRICS, [("test examples by class", list(stated.test_balance.examples), list(true.examples))])
    off = [abs(a - b) for a, b in zip(stated.test_balance.right, true.right, strict=True)]
    if max(off) > _slack(len(targets)):
        raise DamagedFileError(
            f"metrics.jsonl states {sum(stated.test_balance.right)} right of {len(targets)}, but the weights give "
            f"{sum(true.right)}; by class they differ by up to {max(off)}"
        )
    return f"the weights give {sum(true.right)} right of {len(targets)}: {true.accuracy:.4f}"


def _check_certificates(network: Network) -> str:
    """Return that certificates, chosen at random, are those that their seeds and the weights give."""
    evidence, done, others = network.evidence, [], []
    inputs, targets = network.test
    for key, record in evidence.certificate_records.items():
        if record["data"] != network.test_digest:
            others.append(key)
            continue
        if record["settings"]["input_range"] is not None:  # a range without the examples would prove anything
            low, high = record["settings"]["input_range"]
            require_inputs(inputs[: len(evidence.certificate_rows)], tuple(inputs.shape[1:]), (low, high))
        rows = [_whole(row) for row in evidence.certificate_rows if record_key(row) == key]
        chosen = _some(rows, network.examples)
        if key == INTERVAL and chosen:
            require_proven_rows(evidence.folder, chosen, record, network.model, inputs, targets, None)
        elif key != INTERVAL:
            delta = network.sensitivity(key)
            require_proven_rows(evidence.folder, rows, record, network.model, inputs, targets, delta)
            if chosen:
                _require_repeated(chosen, record, network, delta)
        done.append(f"{len(chosen)} of {len(rows)} in {key} (examples {_listed([row['index'] for row in chosen])})")
    same = f"computed again and found the same: {'; '.join(done)}" if done else ""
    if others:
        about = f"the {', '.join(others)} certificates are about other examples than the test data here (--dataset)"
        raise NotCheckable(f"{about}; the rest were {same}" if same else about)
    return same


def _require_repeated(rows: list[Row], record: Row, network: Network, delta: Sensitivity) -> None:
    """Raise DamagedFileError unless new votes by the recorded seed give the class and the bounds of the rows."""
    stored = dict(record["settings"])
    ends = stored["input_range"]
    settings = CertifySettings(**stored | {"input_range": None if ends is None else tuple(ends)})
    places = np.array([row["index"] for row in rows], dtype=np.int64)
    made = certify(network.model, network.test[0][places], settings, indices=places, sensitivity=delta)
    for i, row in enumerate(rows):
        place, allowed = (
            f"certificates.csv, example {row['index']} in {delta.norm}",
            _slack(row["draws"]) / row["draws"],
        )
        if row["prediction"] != made.prediction[i] and not (row["abstained"] and made.abstained[i]):
            raise DamagedFileError(f"{place}: the class is {row['prediction']}, but votes give {made.prediction[i]}")
        for name in ("p_lower", "q_upper"):
            true = float(getattr(made, name)[i])
            if not abs(row[name] - true) <= max(allowed, 1e-9):
                raise DamagedFileError(f"{place}: {name} is {row[name]:.6g}, but votes by its seed give {true:.6g}")


def _check_attacks(network: Network) -> str:
    """Return that the votes of attacked examples, before the attack and if images were kept after it, are repeated."""
    evidence, words, others = network.evidence, [], []
    inputs, targets = network.test
    require_true_warnings(evidence.folder, network.weights, evidence.attack_record["suspicions"])
    for name, cell in evidence.attack_record["cells"].items():
        rows = sorted((row for row in evidence.attack_rows if row["cell"] == name), key=lambda row: float(row["index"]))
        if cell.get("data") != network.test_digest:
            others.append(name)
            continue
        for row in rows:
            if row["label"] != int(targets[int(row["index"])]):
                raise DamagedFileError(f"attacks.csv, example {row['index']:.0f}: the label is not the example's")
        parts = [rows[start : start + PART] for start in range(0, len(rows), PART)]
        for part in _some(parts, None if network.examples is None else 1):
            words.append(_require_clean_votes(part, cell, network, inputs))
            require_proven_clean_radii(part, cell, network.model, inputs, network.sensitivity)
        images = evidence.folder / names.ATTACK_IMAGES / f"{name}.safetensors"
        if images.exists():
            words.append(_require_kept_images(parts[0], name, cell, network, inputs))
    if others:
        same = f"; of the rest {', '.join(dict.fromkeys(words))}" if words else ""
        raise NotCheckable(f"{', '.join(others)}: about other examples than the test data here (--dataset){same}")
    kept = (
        "" if evidence.has(names.ATTACK_IMAGES) else "; attacked images were not kept, so votes on them are as stated"
    )
    return f"{', '.join(dict.fromkeys(words))}{kept}"


def _require_clean_votes(rows: list[Row], cell: Row, network: Network, inputs: Tensor) -> str:
    places = np.array([int(row["index"]) for row in rows], dtype=np.int64)
    draws, seed = int(cell["measured"]["draws"]), int(cell["attack"]["seed"])
    votes = clean_votes(network.model, inputs[places], places, draws, seed)
    return _compare_votes(rows, votes, "clean_")


def _require_kept_images(rows: list[Row], name: str, cell: Row, network: Network, inputs: Tensor) -> str:
    """Compare the votes on kept images of a part; each must be within the budget, and in the range of pixels."""
    index, images = load_images(network.evidence.folder, name)
    place = {int(number): position for position, number in enumerate(index)}
    sound = cell["attack"]["protocol"] != "as-published"
    moved = [row for row in rows if not (sound and row["clean_label_votes"] <= row["clean_other_votes"])]
    if cell["attack"]["target"] is not None or not moved:
        return "no votes after a targeted attack"
    found = images[[place[int(row["index"])] for row in moved]]
    change = sizes(found - inputs[[int(row["index"]) for row in moved]], cell["attack"]["norm"])
    if not (
        float(change.max()) <= cell["attack"]["budget"] + 1e-5 and 0 <= float(found.min()) <= float(found.max()) <= 1
    ):
        raise DamagedFileError(f"an attacked image of {name} is outside its budget or the range of pixels")
    generator = seeded_generator(int(cell["attack"]["seed"]), "attacked votes", int(rows[0]["index"]))
    with evaluation_mode(network.model):
        votes = vote_counts(network.model, found, int(moved[0]["draws"]), generator)
    return _compare_votes(moved, votes, "")


def _compare_votes(rows: list[Row], votes: Tensor, prefix: str) -> str:
    """Return in words how votes that were counted again agree with those of rows.

    If those of most rows are repeated, the random numbers are theirs, and the others are false. If not, the rows were
    measured in other parts, with other random numbers, and must agree within chance.
    Raises: DamagedFileError if they do not.
    """
    draws, place = int(rows[0]["draws"]), "before" if prefix else "after"
    label = np.array([row["label"] for row in rows], dtype=np.int64)
    counted = votes.numpy().copy()
    own = counted[np.arange(len(rows)), label].copy()
    counted[np.arange(len(rows)), label] = -1
    off = np.maximum(
        np.abs(own - [row[f"{prefix}label_votes"] for row in rows]),
        np.abs(counted.max(1) - [row[f"{prefix}other_votes"] for row in rows]),
    )
    repeated = off <= (0 if draws == 1 else _slack(draws))
    is_same_noise = bool(repeated.mean() > 0.5) or draws == 1
    false = ~repeated if is_same_noise else off > _UNLIKELY * math.sqrt(draws / 2)
    if false.any():
        row = rows[int(np.flatnonzero(false)[0])]
        true = int(own[int(np.flatnonzero(false)[0])])
        raise DamagedFileError(
            f"attacks.csv, example {row['index']:.0f} of {row['cell']}: {row[f'{prefix}label_votes']:.0f} of {draws} "
            f"votes for the label {place} the attack, but the network gives {true}"
        )
    how = "repeated by their seeds" if is_same_noise else "agree within chance with new ones"
    return f"votes of {len(rows)} examples {place} the attack {how}"


def _slack(count: int) -> int:
    """Return by how many votes of `count` another processor may differ."""
    return 1 + count // 1000


def _some(rows: list[Any], count: int | None) -> list[Any]:
    """Return some of the rows, which nobody can know beforehand, in their order; all if None."""
    if count is None or count >= len(rows):
        return rows
    return [rows[place] for place in sorted(random.SystemRandom().sample(range(len(rows)), count))]


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) if len(numbers) <= 12 else f"{', '.join(map(str, numbers[:11]))}, …"


def _whole(row: Row) -> Row:
    return row | {name: int(row[name]) for name in _WHOLE}


_BOTH = (names.CERTIFICATES, names.CERTIFICATE_RECORD)
NETWORK_CLAIMS = (
    Claim(name="network", files=(names.WEIGHTS, names.MODEL), check=_check_network),
    Claim(name="redistribution of the network", files=(names.REDISTRIBUTION,), check=_check_r),
    Claim(name="sensitivity of the network", files=(names.SENSITIVITY, names.CERTIFICATE_RECORD), check=_check_delta),
    Claim(name="test data", files=(names.MODEL,), check=_check_test_data),
    Claim(name="accuracy recomputed", files=(names.METRICS,), check=_check_accuracy),
    Claim(name="certificates recomputed", files=_BOTH, check=_check_certificates),
    Claim(name="attacks recomputed", files=(names.ATTACKS, names.ATTACK_RECORD), check=_check_attacks),
)
"""What is checked with the network, in the order of the lines."""
