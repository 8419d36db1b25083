"""The claims of training: ledger, statement, configuration, weights, metrics and r, as far as files show. No torch."""

__all__ = ["TRAINING_CLAIMS"]

import math
import random
from dataclasses import replace
from typing import Any

from securesgd.check.evidence import Evidence
from securesgd.check.outcome import Claim, NotCheckable, require_equal
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.models.redistribution import WAYS, Redistribution
from securesgd.privacy import RepeatAndSelect, UnprotectedRelease, accountant_version, epsilon_spent
from securesgd.privacy.ledger import SAME_EPSILON
from securesgd.runtime import run_folder as names
from securesgd.runtime.run_records import FORMAT, RunMetrics
from securesgd.runtime.storage import file_digest

_REPLAYED = 20
"""Lines of a ledger whose own epsilon is computed again, chosen at random; the last one always is."""
_MODEL_KEYS = {
    "format", "config_sha256", "weights_sha256", "network", "structure_sha256", "weights", "outputs", "method",
    "input_shape", "classes", "class_names", "data", "input_range", "preprocessing", "test_sha256", "steps",
    "statement", "tuning",
}  # fmt: skip


def _check_ledger(evidence: Evidence) -> str:
    """Return what the ledger costs, recomputed line by line; it must not be above its target."""
    contents = evidence.ledger
    header, events = contents.header, [record.event for record in contents.records]
    if contents.torn_end and evidence.has(names.MODEL):
        raise DamagedFileError("ledger.jsonl ends in the middle of a line, although training has ended")
    places = list(range(len(events)))
    chosen = sorted(random.SystemRandom().sample(places, min(_REPLAYED, len(places))))
    same_version = header.accountant_version == accountant_version()
    for place in dict.fromkeys([*chosen, *places[-1:]]):
        stated, true = (
            contents.records[place].epsilon,
            epsilon_spent(events[: place + 1], header.delta, header.accountant),
        )
        # Another release of the accountant may bound epsilon a little closer, or not as close.
        if stated != true and not abs(stated - true) <= (SAME_EPSILON if same_version else 1e-2) * max(1.0, true):
            raise DamagedFileError(
                f"ledger.jsonl, line {place + 2}, states epsilon {stated:.6g}, but the releases so far cost {true:.6g}"
            )
    spent, target = contents.statement.accounted_epsilon, header.target_epsilon
    if target is not None and spent > target * (1 + SAME_EPSILON):
        raise DamagedFileError(f"ledger.jsonl states the target epsilon {target:g}, but its releases cost {spent:.6g}")
    limit = "no target" if target is None else f"target {target:g}"
    return (
        f"the chain of {len(contents.digests)} lines is whole; {header.accountant.upper()} gives epsilon {spent:.6g} "
        f"at delta {header.delta:g}, {limit}"
    )


def _check_ledger_of_weights(evidence: Evidence) -> str:
    """Return that weights and ledger are of the same training."""
    record, contents = evidence.weights_record, evidence.ledger
    index, digest = record["ledger"]
    if (index, digest) != contents.head:
        if contents.has_line(index, digest):
            raise DamagedFileError(
                f"ledger.jsonl has {len(contents.digests)} lines, but the weights were released after line {index + 1}"
            )
        raise DamagedFileError(
            f"the weights name line {index + 1} (sha256 {str(digest)[:8]}…) as the last of their ledger, which "
            "ledger.jsonl does not have: lines were cut off or changed, or it is another ledger"
        )
    noise = {event.noise_multiplier for event in evidence.steps} or {0.0}
    paid = sum(event.steps for event in evidence.steps)
    require_equal("model.safetensors", [("the noise multiplier", [record["noise_multiplier"]], sorted(noise))])
    if evidence.steps and record["steps"] > paid:
        raise DamagedFileError(f"model.safetensors states {record['steps']} steps, but the ledger pays for {paid}")
    if evidence.has(names.MODEL):
        require_equal("model.json", [("steps", evidence.model["steps"], record["steps"])])
    return f"the weights name the last line of the ledger; {record['steps']} steps, {paid} paid for"


def _check_statement(evidence: Evidence) -> str:
    """Return that the statement of model.json is the one that the ledger gives now."""
    stated, true = dict(evidence.model["statement"]), evidence.ledger.statement.json()
    if stated.get("accountant_version") != true["accountant_version"]:
        words = f"stated by {stated.get('accountant_version')}, recomputed by {true['accountant_version']}"
        earlier = {name: stated.pop(name, None) for name in ("accountant_version", "in_words")}
        numbers = {name: value for name, value in true.items() if name not in earlier}
        require_equal("model.json", [(name, stated.get(name), numbers[name]) for name in numbers], rel_tol=1e-2)
        require_equal("model.json", [("a statement with", sorted(stated), sorted(numbers))])
        figures: dict[str, Any] = {
            name: math.inf if stated[name] == "inf" else stated[name] for name in ("epsilon", "accounted_epsilon")
        }
        version = str(earlier["accountant_version"])
        own = replace(evidence.ledger.statement, accountant_version=version, **figures)
        require_equal("model.json", [("in words", earlier["in_words"], own.in_words)])
        return f"epsilon {evidence.model['statement']['epsilon']} is that of the ledger ({words})"
    require_equal("model.json", [(name, stated.get(name), true[name]) for name in true], rel_tol=SAME_EPSILON)
    require_equal("model.json", [("a statement with", sorted(stated), sorted(true))])
    return f"what model.json states is what the ledger gives: {true['in_words']}"


def _check_config(evidence: Evidence) -> str:
    """Return that config.toml is that of the training, and that the ledger has its settings."""
    training, header = evidence.training, evidence.ledger.header
    unprotected = any(isinstance(record.event, UnprotectedRelease) for record in evidence.ledger.records)
    pairs: list[tuple[str, Any, Any]] = [
        ("delta", training.delta, header.delta),
        ("the accountant", training.accountant, header.accountant),
        ("settings that mean the adjacency", training.adjacency, header.adjacency),
    ]
    if not unprotected:
        pairs.append(("epsilon", training.epsilon, header.target_epsilon))
    if header.noise is not None:
        pairs.append(("max_grad_norm", training.max_grad_norm, header.noise.clipping_norm))
        pairs.append(("that there is a noise_seed:", training.noise_seed is not None, header.noise.seeded))
    if training.population is not None:
        pairs.append(("population", training.population, header.dataset_size))
    for event in evidence.steps:
        if training.noise_multiplier is not None:
            pairs.append(("noise_multiplier", training.noise_multiplier, event.noise_multiplier))
        if training.sampling_rate is not None or header.dataset_size is not None:
            examples = (header.dataset_size or 0) - (evidence.config.get("holdout", 0) if evidence.searched else 0)
            rate = training.rate(examples)
            if not (evidence.searched and rate <= event.sampling_rate):  # charged for the largest that was tried
                pairs.append(("settings that mean a sampling rate of", rate, event.sampling_rate))
    require_equal("config.toml", pairs)
    if training.private != evidence.method.private:
        raise DamagedFileError(f"config.toml states private = {training.private}, which its method is not")
    if training.private and not evidence.steps and evidence.has(names.MODEL):
        raise DamagedFileError("config.toml states a private method, but the ledger has no step of DP-SGD")
    if not evidence.has(names.MODEL):
        return "the settings agree with the ledger; training is not finished"
    if evidence.model["steps"] > training.steps:
        raise DamagedFileError(f"config.toml states {training.steps} steps, but {evidence.model['steps']} were run")
    digest = evidence.model.get("config_sha256")
    if digest is None:
        raise NotCheckable("the settings agree with the ledger, but model.json has no digest of config.toml")
    require_equal("model.json", [("the sha256 of config.toml as", digest, file_digest(evidence.folder / names.CONFIG))])
    return "it has the digest that model.json states, and the ledger has its epsilon, delta, noise, batch and clipping"


def _check_weights(evidence: Evidence) -> str:
    """Return that the weights are those that model.json is about."""
    digest, stated = evidence.weights_digest, evidence.model.get("weights_sha256")
    if stated is None:
        raise NotCheckable("model.json has no digest of model.safetensors: it was written by an earlier version")
    require_equal("model.json", [("the sha256 of model.safetensors as", stated, digest)])
    return f"model.safetensors has the sha256 that model.json states ({digest[:8]}…)"


def _check_model(evidence: Evidence) -> str:
    """Return that model.json agrees with config.toml and the ledger on what was trained on what."""
    model, config, header = evidence.model, evidence.config, evidence.ledger.header
    unknown = set(model) - _MODEL_KEYS
    if unknown:
        raise DamagedFileError(f"model.json has the unknown key {min(unknown)!r}: it was changed")
    pairs: list[tuple[str, Any, Any]] = [
        ("the format", model["format"], FORMAT),
        ("the network", model["network"], config["network"]),
        ("the method", model["method"], config["method"]),
        ("the number of classes", model["classes"], len(model["class_names"])),
    ]
    if header.noise is not None:
        pairs.append(("the number of trained weights", model["weights"], header.noise.coordinates))
    sizes = model["data"].get("sizes", {})
    unknown = set(sizes) - {"train", "holdout", "test"}
    if unknown:
        raise DamagedFileError(
            f"model.json states the size of {min(unknown)!r}, which training does not: it was changed"
        )
    if header.adjacency == "zero-out" and "train" in sizes:
        scored = config.get("holdout", 0) if evidence.searched else 0  # the ledger of a search is about these, too
        pairs.append(("the number of training examples", sizes["train"] + scored, header.dataset_size))
    searches = [record.event for record in evidence.ledger.records if isinstance(record.event, RepeatAndSelect)]
    stated: dict[str, Any] = model.get("tuning", {})
    if bool(searches) != ("tuning" in model):
        raise DamagedFileError("model.json and the ledger do not agree on whether settings were searched for")
    for search in searches:
        pairs.append(("the mean number of trials", stated["trials_mean"], search.mean))
        pairs.append(("the shape of the number of trials", stated["trials_shape"], search.shape))
    if "holdout" in sizes:
        pairs.append(("the number of held-out examples", sizes["holdout"], config.get("holdout", 0)))
    require_equal("model.json", pairs)
    return "network, method, classes and sizes agree with config.toml and the ledger"


def _check_metrics(evidence: Evidence) -> str:
    """Return that metrics.jsonl agrees with itself, with the ledger and with model.json."""
    *held_out, last = evidence.metrics
    model = evidence.model
    try:
        metrics = RunMetrics.from_json(last)
    except InvalidInputError as error:
        raise DamagedFileError(f"metrics.jsonl, last line: {error}") from None
    spent: Any = evidence.ledger.statement.accounted_epsilon
    pairs: list[tuple[str, Any, Any]] = [
        ("in its last line", sorted(last), ["epsilon", "step", "test_accuracy", "test_balance", "test_images"]),
        ("the last step", last["step"], model["steps"]),
        ("epsilon", last["epsilon"], "inf" if math.isinf(spent) else spent),
    ]
    if metrics.test_balance is not None:
        balance = metrics.test_balance.json(model["class_names"])
        pairs.append(("in its counts by class", last["test_balance"], balance))
    size = model["data"].get("sizes", {}).get("test")
    if metrics.test_accuracy is not None and size is not None:
        pairs.append(("the number of test examples", metrics.test_images, size))
    require_equal("metrics.jsonl", pairs, rel_tol=SAME_EPSILON)
    step = 0
    for line in held_out:
        if not (step < line["step"] <= model["steps"] and 0 <= line["held_out_accuracy"] <= 1):
            raise DamagedFileError(f"metrics.jsonl has a line about step {line['step']} that cannot be")
        step = line["step"]
    if metrics.test_accuracy is None:
        return "there was no test set when training ended"
    return f"the accuracy {metrics.test_accuracy:.4f} of {metrics.test_images} test examples is that of its own counts"


def _check_redistribution(evidence: Evidence) -> str:
    """Return that r is a share of the noise for each unit, obtained as config.toml says."""
    if not evidence.method.noisy:
        raise NotCheckable(f"the method {evidence.config['method']} has no noise to share out")
    r, robustness = Redistribution.load(evidence.path(names.REDISTRIBUTION)), evidence.config["robustness"]
    way = robustness.get("redistribution") or evidence.method.redistribution
    details = {name: robustness[name] for name in WAYS[way].details if name in robustness} if way in WAYS else {}
    if "public_dataset" in r.details:  # not yet in a record of version 0.2.0
        details["public_dataset"] = evidence.config.get("public_dataset")
    require_equal(
        "redistribution.json",
        [("the sum of r as", math.fsum(r.r), 1.0), ("the way", r.way, way), ("the details", r.details, details)],
    )
    return f"{len(r.r)} shares, normalised, obtained by {way}"


TRAINING_CLAIMS = (
    Claim(name="ledger", files=(names.LEDGER,), check=_check_ledger, tiles=("privacy",)),
    Claim(
        name="ledger of the weights",
        files=(names.LEDGER, names.WEIGHTS),
        check=_check_ledger_of_weights,
        tiles=("privacy",),
    ),
    Claim(name="privacy statement", files=(names.MODEL,), check=_check_statement, tiles=("privacy",)),
    Claim(name="configuration", files=(names.CONFIG,), check=_check_config, tiles=("privacy",)),
    Claim(name="weights", files=(names.WEIGHTS,), check=_check_weights, tiles=("accuracy", "certified", "attacked")),
    Claim(name="model record", files=(names.MODEL,), check=_check_model, tiles=("accuracy",)),
    Claim(name="metrics", files=(names.METRICS,), check=_check_metrics, tiles=("accuracy",)),
    Claim(name="redistribution", files=(names.REDISTRIBUTION,), check=_check_redistribution),
)
