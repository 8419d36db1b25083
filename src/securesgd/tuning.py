"""Choosing hyper-parameters inside the privacy budget: the best of a random number of private runs, and nothing else.

    tune(config, out="runs/tuned", tries={"learning_rate": [0.5, 1, 2]})        # config.holdout > 0

The best of several private runs is a release of its own: the choice tells about the data, too. Here it is accounted for
as a whole, by the theorem on random numbers of trials of Papernot and Steinke (`privacy.repeat_and_select`).
"""

__all__ = ["TrialReport", "tune"]

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from securesgd.config import RunConfig, saved_config
from securesgd.data.load import LoadedData, load_data
from securesgd.errors import DivergedError, InvalidInputError
from securesgd.privacy import RepeatAndSelect, SampledGaussianSteps
from securesgd.privacy.repeat_and_select import trial_count
from securesgd.run import Run, load_run
from securesgd.run_training import train_run
from securesgd.runtime.import_path import is_import_path
from securesgd.runtime.processes import Processes
from securesgd.training.examples import as_examples, data_digest
from securesgd.training.trained_weights import remember_weights
from securesgd.tuning_folder import TuningFolder
from securesgd.tuning_search import Candidate, Score, candidates, search_event, validation_score
from securesgd.validate import validate_positive


@dataclass(frozen=True, kw_only=True)
class TrialReport:
    """What the person who tunes learns of a trial that has ended. **Private**: epsilon covers the chosen run alone."""

    number: int
    """1 for the first."""
    trials: int
    values: dict[str, Any]
    """The settings that were drawn for it."""
    score: float | None
    """Right answers, with noise if the examples are private; None if the weights were not finite at the end."""
    examples: int
    """How many examples the score is about."""


def tune(
    config: RunConfig,
    *,
    out: str | Path,
    tries: Mapping[str, Sequence[Any]],
    trials_mean: float = 5.0,
    trials_shape: float = 1.0,
    validate_on: str | None = None,
    score_noise: float = 10.0,
    resume: bool = False,
    loaded: LoadedData | None = None,
    on_trial: Callable[[TrialReport], Any] | None = None,
    device: str | None = None,
) -> Run:
    """Train with settings drawn from `tries` a random number of times, keep the best run in `out` and return it.

    Guarantee: the folder is (epsilon, delta)-differentially private for the training examples and for held-out ones,
    the choice of its settings included; the ledger has the whole search as one event, accounted for by RDP. Proof: a
    trial draws one of the combinations uniformly, trains with it and scores the weights. With one example changed,
    either the training steps differ, and the score is computed from their result, or (it is held out) only the noisy
    score does; the split is by position, so it is the same. So a trial is never worse than the steps *and* the score
    composed, whatever combination it draws, since the event has the largest sampling rate and number of steps of all.
    Trials are independent given the data, their number K is drawn from the law that the theorem asks for, and the
    first trial of the highest score is returned, which is the law of a tie broken at random. Weights that are not
    finite count as the lowest score: that is seen from the weights.
    Assumes: `validate_on` is public. Nothing of the other trials is published, nor how long the search took, how many
    trials there were and what `on_trial` receives. The settings that are tried were not chosen by looking at the data.
    The model answers each example by itself, and its initial weights do not depend on the data.
    Raises: InvalidInputError for settings that do not fit or cannot be searched, a folder in use, or if no trial ended
    with finite weights; PrivacyError if epsilon is not enough. A KeyboardInterrupt leaves a search that the same call
    with `resume` ends with the same trials, noise and choice; one in which nothing was released leaves nothing.

    `config.training.epsilon` is that of the whole search: the noise is calibrated to it, unless `noise_multiplier` is
    given. `tries` has a list of values by name of a setting (`tuning_search.TUNABLE`). `trials_mean` is the mean of K;
    `trials_shape` 1 its geometric law, 0 the logarithmic one, which costs less and is more spread out. Trials are
    compared on the public examples `validate_on`, or, without, on the `config.holdout` examples set apart: by the
    number of right answers, with Gaussian noise of standard deviation `score_noise` if they are private.
    `loaded` are the data that the configuration names, if they were read before. `device` is as in `train_run`.
    """
    if Processes().count > 1:
        raise InvalidInputError("a search runs in one process; valid: without torchrun")
    folder = TuningFolder(out)
    folder.require(resume)
    tried = candidates(config, tries)
    if loaded is None:
        loaded = load_data(config.dataset, holdout=config.holdout, seed=config.seed, settings=config.data)
    # Without the held-out examples: trials would write their accuracy on them, without noise, to metrics.jsonl.
    trained_on = replace(loaded, holdout_inputs=None, holdout_targets=None)
    if not folder.files.complete:
        score = validation_score(config, loaded, validate_on, score_noise)
        about: dict[str, Any] = {"tries": {name: list(values) for name, values in tries.items()}}
        about |= {"trials_mean": validate_positive("trials_mean", trials_mean)}
        about |= {"trials_shape": 0.0 if trials_shape == 0 else validate_positive("trials_shape", trials_shape)}
        about |= {"scored_on": "held-out examples" if score.noise else "public examples", "score_noise": score.noise}
        settings = json.loads(json.dumps(about | {"config": config.to_toml()}, default=_plain))
        examples = as_examples((trained_on.train_inputs, trained_on.train_targets))
        digest = f"{data_digest(examples)} {score.digest}"
        if resume:
            ledger = folder.resume(settings, digest)
        else:
            event = search_event(config, tried, loaded, score, mean=trials_mean, shape=trials_shape)
            zero_out = config.training.adjacency == "zero-out"
            ledger = folder.start(
                settings,
                digest,
                event,
                delta=config.training.delta,
                target_epsilon=config.training.epsilon,
                dataset_size=len(examples) + config.holdout if zero_out else config.training.population,
                adjacency=config.training.adjacency,
            )
        try:
            with ledger:
                best = _best_trial(folder, tried, trained_on, score, on_trial, device)
                if best is not None:
                    folder.keep(best, {name: value for name, value in settings.items() if name != "config"})
        except (Exception, KeyboardInterrupt):
            if not resume:
                folder.withdraw()
            raise
        if best is None:
            folder.remove_secrets()
            raise InvalidInputError(
                f"in all trials the weights were not finite at the end; the search is paid for in "
                f"{folder.files.ledger}; valid: smaller learning rates, in another folder"
            )
    folder.tidy()
    chosen = saved_config(out).network
    network = chosen if is_import_path(chosen) else None
    run = load_run(out, network=network, dataset=trained_on, device=device)
    remember_weights(run.model, (trained_on.train_inputs, trained_on.train_targets))
    return run


def _best_trial(
    folder: TuningFolder,
    tried: Sequence[Candidate],
    loaded: LoadedData,
    score: Score,
    on_trial: Callable[[TrialReport], Any] | None,
    device: str | None,
) -> int | None:
    """Run the trials that have not ended, and return the first of those with the highest score; None if all failed."""
    event, stream = folder.event, folder.stream
    trials = trial_count(event, stream.child("number of trials"))
    for number in range(trials):
        drawn = tried[int(stream.child(f"candidate {number}").words(1)[0]) % len(tried)]
        if folder.score(number) is None:
            config = _trial_config(drawn.config, event)
            try:
                run = train_run(config, folder.trial(number), loaded=loaded, resume=True, device=device)
                folder.write_score(number, score(run.model, stream.child(f"score {number}")))
            except DivergedError:
                folder.write_score(number, None)
        if on_trial is not None:
            result = folder.score(number)
            assert result is not None
            on_trial(
                TrialReport(
                    number=number + 1,
                    trials=trials,
                    values=drawn.values,
                    score=None if result == float("-inf") else result,
                    examples=len(score.targets),
                )
            )
    scores = [folder.score(number) or 0.0 for number in range(trials)]
    highest = max(scores)
    return None if highest == float("-inf") else scores.index(highest)


def _trial_config(config: RunConfig, event: RepeatAndSelect) -> RunConfig:
    """Return the configuration of a trial: the noise of the event, whatever the sampling rate and steps."""
    noise = next(part.noise_multiplier for part in event.trial if isinstance(part, SampledGaussianSteps))
    return replace(config, training=replace(config.training, noise_multiplier=noise, accountant="rdp"))


def _plain(value: Any) -> Any:
    """Return a numpy number as a Python one, for JSON."""
    return value.item()
