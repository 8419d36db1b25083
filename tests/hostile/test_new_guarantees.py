"""Attacks on a loop of the user's own, on searches, figures, samples and audits: each tries to get below the claim."""

import itertools
import math
import threading
import types
import warnings

import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution as dp_pld
from scipy import special, stats
from torch import nn
from torch.nn.functional import cross_entropy

from securesgd.audit.bounds import BOXES, box_bounds, guesses_of, largest_bound
from securesgd.audit.claim import Claim
from securesgd.audit.guesses import count_right
from securesgd.config import run_config
from securesgd.data.load import load_data
from securesgd.data.settings import DataSettings
from securesgd.errors import InvalidInputError
from securesgd.privacy import SampledGaussianSteps, calibrated_noise_multiplier, epsilon_spent
from securesgd.privacy.group import group_epsilon
from securesgd.privacy.membership import membership_bounds
from securesgd.runtime.geometric_gaps import gap_sample
from securesgd.runtime.key_stream import KeyStream
from securesgd.runtime.randomness import MOST_BY_WORD, Randomness
from securesgd.theory.audit import LineTradeoff, tradeoff_rejects
from securesgd.training.private_training import PrivateTraining
from securesgd.tuning_search import validation_score
from tests.training.conftest import small_data, small_settings

GLOBAL = types.ModuleType("settings_of_a_user")


def small_loss(outputs, targets):
    """So small that two releases with the same noise are the same to four digits."""
    return 1e-5 * cross_entropy(outputs, targets, reduction="none")


class Network(nn.Module):
    """A network with a number that no state_dict has."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Linear(6, 3)
        self.drop, self.scale = nn.Dropout(0.1), 1.0

    def forward(self, x):
        return self.drop(self.layer(x)) * self.scale


class Slotted:
    """A loss that keeps its number where `vars` does not show it."""

    __slots__ = ("scale",)

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, outputs, targets):
        return self.scale * small_loss(outputs, targets)


class OfTheClass:
    """A loss whose number is of its class."""

    scale = 1.0

    def __call__(self, outputs, targets):
        return self.scale * small_loss(outputs, targets)


def by_large_table(scale, model):
    table = torch.full((20_000,), scale)
    return lambda outputs, targets: table[0] * small_loss(outputs, targets)


def by_module(scale, model):
    GLOBAL.scale = scale
    return lambda outputs, targets: GLOBAL.scale * small_loss(outputs, targets)


def by_slot(scale, model):
    return Slotted(scale)


def by_class(scale, model):
    OfTheClass.scale = scale
    return OfTheClass()


def by_teacher(scale, model):
    teacher = nn.Linear(3, 1)
    nn.init.constant_(teacher.weight, scale)
    return lambda outputs, targets: teacher.weight[0, 0].detach() * small_loss(outputs, targets)


def by_attribute(scale, model):
    model.scale = scale
    return small_loss


def by_dropout(scale, model):
    model.drop.p = 0.1 * scale
    return small_loss


def by_hook(scale, model):
    if not model.layer._forward_hooks:
        model.layer.register_forward_hook(lambda module, inputs, outputs: outputs * scale)
    return small_loss


def by_other_generator(scale, model):
    return lambda outputs, targets: float(np.random.random()) * small_loss(outputs, targets)  # noqa: NPY002


HIDDEN_CHANGES = (by_large_table, by_module, by_slot, by_class, by_teacher, by_attribute, by_dropout, by_hook,
                  by_other_generator)  # fmt: skip


def two_steps(folder, scale, loss_by, *, resume, project=None):
    model = Network()
    settings = small_settings(noise_seed=None, steps=8, checkpoint_steps=5)
    training = PrivateTraining(model, small_data(), settings, folder, resume=resume, project=project)
    released = []
    for batch in training.batches():
        training.step(batch, loss_by(scale, model))
        released.append(model.layer.weight.detach().clone())
        if len(released) == 2:
            break
    training.close()
    return released


@pytest.mark.parametrize("loss_by", HIDDEN_CHANGES)
def test_no_step_is_run_again_with_its_noise_and_another_loss(tmp_path, loss_by):
    """The difference of two releases with the same noise has none: what the code of a loss does not show must count."""
    two_steps(tmp_path / "run", 1.0, loss_by, resume=False)
    with pytest.raises(InvalidInputError, match=r"step 1 was run before .* gave other sums"):
        two_steps(tmp_path / "run", 3.0, loss_by, resume=True)


@pytest.mark.parametrize("loss_by", [by_large_table, by_attribute])
def test_the_same_loss_is_run_again_with_the_same_release(tmp_path, loss_by):
    """The other side: what is asked the same after a kill gives the same bits, and is not refused."""
    first = two_steps(tmp_path / "run", 2.0, loss_by, resume=False)
    again = two_steps(tmp_path / "run", 2.0, loss_by, resume=True)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_weights_that_a_projection_left_otherwise_do_not_meet_the_same_noise(tmp_path):
    """The first step is the same in both attempts; the second starts from other weights."""
    kept = {"factor": 1.0}

    def project(model):
        with torch.no_grad():
            model.layer.bias.mul_(kept["factor"])

    def loss_by(scale, model):
        kept["factor"] = scale
        return lambda outputs, targets: cross_entropy(outputs, targets, reduction="none")

    two_steps(tmp_path / "run", 1.0, loss_by, resume=False, project=project)
    kept["factor"] = 1.0
    with pytest.raises(InvalidInputError, match="step 2 was run before"):
        two_steps(tmp_path / "run", 3.0, loss_by, resume=True, project=project)


def test_a_loss_cannot_take_the_step_it_is_of(tmp_path):
    """Within a step its batch was still valid: the inner step ran, and the outer one on its sample as the next."""
    training = PrivateTraining(
        Network(), small_data(), small_settings(noise_seed=None, checkpoint_steps=1), tmp_path / "r"
    )
    (batch,) = itertools.islice(training.batches(), 1)

    def loss(outputs, targets):
        training.step(batch, small_loss)
        return small_loss(outputs, targets)

    with pytest.raises(InvalidInputError, match=r"step\(\) was called within a step"):
        training.step(batch, loss)
    assert training.step_number == 0


def test_two_threads_do_not_share_a_batch(tmp_path):
    training = PrivateTraining(Network(), small_data(), small_settings(noise_seed=None), tmp_path / "run")
    (batch,) = itertools.islice(training.batches(), 1)
    within, ready, refusals = threading.Event(), threading.Event(), []

    def other():
        within.wait(10)
        try:
            training.step(batch, small_loss)
        except InvalidInputError as error:
            refusals.append(str(error))
        ready.set()

    def loss(outputs, targets):
        within.set()
        ready.wait(10)
        return small_loss(outputs, targets)

    thread = threading.Thread(target=other)
    thread.start()
    training.step(batch, loss)
    thread.join()
    assert len(refusals) == 1
    assert "while another thread takes a step" in refusals[0]
    assert training.step_number == 1


def test_gradients_that_the_user_left_are_not_released(tmp_path):
    model = Network()
    training = PrivateTraining(model, small_data(), small_settings(noise_seed=None), tmp_path / "run")
    before = model.layer.weight.detach().clone()
    for batch in itertools.islice(training.batches(), 1):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 1e6)
        training.step(batch, small_loss)
    assert (model.layer.weight - before).abs().max() < 10


SCHEMA = 'target = "y"\nclasses = ["no", "yes"]\n[columns.age]\nminimum = 0\nmaximum = 1000\n'


@pytest.mark.parametrize("form", ["{path}", "{folder}/../{folder_name}/people.csv"])
def test_trials_are_not_scored_without_noise_on_the_private_table(tmp_path, form):
    """Read as a public set, the whole table is: training rows decided the choice at no cost."""
    path = tmp_path / "people.csv"
    path.write_text("\n".join(["age,y", *(f"{i},{('no', 'yes')[i % 2]}" for i in range(200))]) + "\n")
    (tmp_path / "schema.toml").write_text(SCHEMA)
    settings = DataSettings(target="y")
    loaded = load_data(str(path), settings=settings)
    chosen = run_config(str(path), "dpsgd", steps=2, batch_size=32, noise_multiplier=1.5, target="y")
    name = form.format(path=path, folder=tmp_path, folder_name=tmp_path.name)
    with pytest.raises(InvalidInputError, match="where the private examples"):
        validation_score(chosen, loaded, name, 10.0)
    other = tmp_path / "public.csv"
    other.write_text("\n".join(["age,y", *(f"{i},{('no', 'yes')[i % 2]}" for i in range(300, 340))]) + "\n")
    assert len(validation_score(chosen, loaded, str(other), 10.0).targets) == 40


CORNERS = [
    (1e-6, 0.4, 30, 1e-7),
    (0.999999, 5.0, 30, 1e-5),
    (0.5, 1.0, 1, 0.1),
    (0.02, 50.0, 2000, 1e-6),
    (1.0, 0.5, 3, 1e-5),
]


@pytest.mark.parametrize(("rate", "noise", "steps", "delta"), CORNERS)
def test_epsilon_is_between_both_estimates_of_dp_accounting(rate, noise, steps, delta):
    """Their optimistic estimate is a lower bound of the truth by another grid and another rounding."""
    below, above = (
        dp_pld.from_gaussian_mechanism(
            noise, sampling_prob=rate, value_discretization_interval=1e-3, pessimistic_estimate=pessimistic,
            use_connect_dots=False,
        ).self_compose(steps).get_epsilon_for_delta(delta)
        for pessimistic in (False, True)
    )  # fmt: skip
    events = [SampledGaussianSteps(sampling_rate=rate, noise_multiplier=noise, steps=steps)]
    assert below <= epsilon_spent(events, delta) <= above + 1e-6
    assert below <= group_epsilon(events, delta, 1) <= above + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "delta", "rate", "steps"), [(0.1, 1e-8, 0.001, 3000), (8, 1e-5, 0.3, 50)])
def test_calibrated_noise_is_not_too_small_for_dp_accounting(epsilon, delta, rate, steps):
    noise, grid = calibrated_noise_multiplier(epsilon, delta, rate, steps), 1e-5 if epsilon < 1 else 1e-3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = dp_pld.from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=grid)
        assert theirs.self_compose(steps).get_epsilon_for_delta(delta) <= epsilon * (1 + 1e-3)


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "examples"), [(0.1, 1.0, 20, 1), (0.1, 0.7, 10, 4), (1.0, 9.0, 10, 3)]
)
def test_no_likelihood_ratio_attack_beats_the_figures(rate, noise, steps, examples):
    """The best attack there is, simulated: its rates and divergences stay below the figures, by five deviations."""
    generator, count = np.random.default_rng(0), 50_000
    events = [SampledGaussianSteps(sampling_rate=rate, noise_multiplier=noise, steps=steps)]
    weights = stats.binom(examples, rate).pmf(np.arange(examples + 1))
    ratios = []
    for present in (1, 0):
        total = np.zeros(count)
        for _ in range(steps):
            point = generator.normal(size=count) + present * generator.binomial(examples, rate, count) / noise
            means = np.arange(examples + 1) / noise
            with np.errstate(divide="ignore"):
                total += special.logsumexp(np.log(weights) + np.outer(point, means) - means**2 / 2, axis=1)
        ratios.append(total)
    delta = 1e-2
    bound = group_epsilon(events, delta, examples)
    for losses in (ratios[0], -ratios[1]):
        seen = np.maximum(0, -np.expm1(bound - losses))
        assert seen.mean() <= delta + 5 * seen.std() / math.sqrt(count)
    tight = np.maximum(0, -np.expm1(0.9 * bound - ratios[0]))  # power: a tenth less would be found out
    assert tight.mean() > delta + 5 * tight.std() / math.sqrt(count)
    if examples == 1:
        bounds = membership_bounds(events, 1e-5)
        for false_rate, true_rate in bounds.true_positive_rates:
            for attack, base in ((ratios[0], ratios[1]), (-ratios[1], -ratios[0])):
                seen_rate = np.mean(attack > np.quantile(base, 1 - false_rate))
                assert seen_rate <= true_rate * (1 + 5 / math.sqrt(false_rate * count))
                assert seen_rate <= stats.norm.cdf(stats.norm.ppf(false_rate * 1.2) + bounds.mu) + bounds.slack + 0.01


@pytest.mark.parametrize("rate", [1e-4, 0.3, 0.7])
def test_samples_by_gaps_have_the_law_and_steps_are_independent(rate):
    """Number, pairs of neighbours, both ends, and the overlap of two steps; 5 deviations each: once in 10⁵ seeds."""
    count, keys = MOST_BY_WORD + 7, Randomness(b"0123456789abcdef")
    rounds = 60
    samples = [keys.poisson_sample(step, count, rate) for step in range(rounds)]
    inside = np.zeros((rounds, count), bool)
    for row, sample in zip(inside, samples, strict=True):
        assert np.all(np.diff(sample) > 0)
        row[sample] = True

    def near(seen, trials, probability):
        return abs(seen - trials * probability) <= 5 * math.sqrt(trials * probability * (1 - probability)) + 5

    assert near(inside.sum(), inside.size, rate)
    assert near((inside[:, 1:] & inside[:, :-1]).sum(), rounds * (count - 1), rate**2)
    assert near((inside[1:] & inside[:-1]).sum(), (rounds - 1) * count, rate**2)
    for part in (inside[:, :500], inside[:, -500:]):
        assert near(part.sum(), part.size, rate)


def test_up_to_the_limit_every_example_has_its_own_word():
    """The bytes of earlier versions: an example's word decides, whatever the number of examples."""
    keys = Randomness(b"0123456789abcdef")
    words = keys.stream("sampling", 3).words(MOST_BY_WORD)
    expected = np.flatnonzero(words < np.uint64(int(0.01 * 2.0**64)))
    assert np.array_equal(keys.poisson_sample(3, MOST_BY_WORD, 0.01), expected)
    assert len(gap_sample(KeyStream(bytes(16)), 10**6, 5e-324)) == 0


def honest_counts(generator, canaries, guesses, mu):
    """Return right guesses about canaries that each have a Gaussian release of their own: none is more exact."""
    coins = generator.random(canaries) < 0.5
    scores = generator.normal(size=canaries) + mu * (coins - 0.5)
    return count_right(scores, coins, guesses)


def test_no_bound_of_honest_training_is_above_the_truth_more_often_than_promised():
    """300 audits of steps that keep the claim exactly, all four bounds; at 5 % more than 34 are seen once in 10⁵."""
    generator = np.random.default_rng(1)
    noise, rate, steps = 1.0, 1.0, 1
    events = [SampledGaussianSteps(sampling_rate=rate, noise_multiplier=noise, steps=steps)]
    claim = Claim(
        epsilon=epsilon_spent(events, 1e-5), delta=1e-5, sampling_rate=rate, noise_multiplier=noise, steps=steps
    )
    results: dict[tuple[str, int], dict[str, float]] = {}
    above = above_zero = 0
    for _ in range(300):
        for mu in (1 / noise, 0.0):
            boxes = {}
            for box in BOXES:
                right = honest_counts(generator, 1000, guesses_of(box, 1000), mu)
                if (box, right) not in results:
                    results[box, right] = box_bounds(box, 1000, right, claim, 0.05)
                boxes[box] = results[box, right]
            above += mu > 0 and largest_bound(boxes) > claim.epsilon
            above_zero += mu == 0 and largest_bound(boxes) > 0
    assert above <= 34
    assert above_zero <= 34


@pytest.mark.parametrize("catastrophe", [0.001, 0.04])
def test_a_mechanism_that_now_and_then_tells_all_is_not_accused(catastrophe):
    """All coins are published with probability δ: (0, δ)-private, and all guesses are right that often."""
    curve = LineTradeoff([0.0], [catastrophe])
    for canaries, guesses in ((1, 1), (20, 5), (1000, 50)):
        assert not tradeoff_rejects(canaries, guesses, guesses, curve, 0.99 * catastrophe)
    assert tradeoff_rejects(1000, 50, 50, curve, 60 * catastrophe if catastrophe < 0.01 else 0.9)
