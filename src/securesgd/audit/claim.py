"""What guesses prove against a claim: epsilon of sampled Gaussian steps, by the trade-off curve of these very steps."""

__all__ = ["Claim", "claim_of_ledger", "sampled_epsilon_bound"]

from dataclasses import dataclass
from functools import lru_cache

from securesgd.errors import InvalidInputError
from securesgd.privacy import LedgerContents, SampledGaussianSteps, epsilon_spent
from securesgd.privacy.composition import Group
from securesgd.privacy.pld import pld_deltas
from securesgd.theory.audit import LineTradeoff, simple_p_value, tradeoff_rejects

_EPSILONS = tuple(0.05 * k for k in range(40)) + tuple(2 * 1.06**k for k in range(56))  # to 50
_COARSER = 10  # of the grid of the accountant: every one gives an upper bound, so the audit errs towards 0
_STEP = 1.02  # between two noise multipliers
_STRIDE, _WIDEST = 16, 320  # of the search: noise from 560 times down to a 560th


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is claimed about a training run: (epsilon, delta), and the steps it rests on."""

    epsilon: float
    delta: float
    sampling_rate: float
    noise_multiplier: float
    steps: int

    def curve(self, weaker: int = 0) -> LineTradeoff:
        """Return the trade-off curve of the steps with noise 1.02^weaker times smaller."""
        return _curve(self.sampling_rate, self.noise_multiplier / _STEP**weaker, self.steps)

    def epsilon_of(self, weaker: int) -> float:
        """Return the epsilon at delta of the steps with noise 1.02^weaker times smaller."""
        noise = self.noise_multiplier / _STEP**weaker
        steps = SampledGaussianSteps(sampling_rate=self.sampling_rate, noise_multiplier=noise, steps=self.steps)
        return epsilon_spent([steps], self.delta)


def claim_of_ledger(ledger: LedgerContents) -> Claim:
    """Return what a ledger claims: its epsilon for everything released, and its steps.

    Raises: InvalidInputError if something was released without protection, or there are no steps: nothing is claimed.
    """
    statement = ledger.statement
    steps = [record.event for record in ledger.records if isinstance(record.event, SampledGaussianSteps)]
    if not steps or not statement.guaranteed_but_for_seed:
        why = "; ".join(statement.reasons) or "there are no steps of DP-SGD in its ledger"
        raise InvalidInputError(f"the run claims no privacy ({why}); valid: a run of a private method")
    return Claim(
        epsilon=statement.accounted_epsilon,
        delta=statement.delta,
        sampling_rate=steps[0].sampling_rate,
        noise_multiplier=steps[0].noise_multiplier,
        steps=sum(event.steps for event in steps),
    )


@lru_cache(maxsize=1024)
def _curve(sampling_rate: float, noise_multiplier: float, steps: int) -> LineTradeoff:
    group = Group(sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, steps=steps)
    return LineTradeoff(_EPSILONS, pld_deltas([group], _EPSILONS, coarser=_COARSER))


def sampled_epsilon_bound(canaries: int, guesses: int, right: int, claim: Claim, failure_prob: float) -> float:
    """Return the epsilon at the claim's delta of the least noise that the guesses reject; 0 if they reject none.

    The family: the claim's sampling rate and number of steps, with 1.02^k times its noise for whole numbers k, each
    with its exact trade-off curve.
    Guarantee: steps of this family with an epsilon up to the claim's give a larger bound with probability at most
    `failure_prob`; canaries that are not in the data give 0 with probability at least 1 − `failure_prob`.
    Assumes: the game of `theory.audit`; `guesses` was fixed before the run.
    """

    def rejects(weaker: int) -> bool:
        return tradeoff_rejects(canaries, guesses, right, claim.curve(weaker), failure_prob)

    if simple_p_value(canaries, guesses, right, 0.0, 0.0) > failure_prob:
        return 0.0  # no better than tossing coins
    low, high = -_STRIDE, 0  # low shall reject, high shall not
    while not rejects(low) and low > -_WIDEST:
        low, high = low - _STRIDE, low
    while rejects(high) and high < _WIDEST:
        low, high = high, high + _STRIDE
    if not rejects(low):
        return 0.0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if rejects(middle) else (low, middle)
    return claim.epsilon_of(low)
