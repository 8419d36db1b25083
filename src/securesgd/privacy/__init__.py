"""What was released and what it costs: events, accounting, calibration of noise, and the ledger on disk.

The names in `__all__` are for use from outside; importing the package does not load torch.
"""

from securesgd.privacy.accounting import ACCOUNTANTS, ADJACENCIES, accountant_version, epsilon_spent
from securesgd.privacy.calibration import affordable_steps, calibrated_noise_multiplier
from securesgd.privacy.events import (
    GaussianRelease,
    PrivacyEvent,
    RepeatAndSelect,
    SampledGaussianSteps,
    UnprotectedRelease,
    dp_event,
    event_from_json,
    event_json,
)
from securesgd.privacy.ledger import Ledger, LedgerContents, Reservation, read_ledger, replayed_statement
from securesgd.privacy.statement import NoiseScheme, PrivacyStatement, privacy_statement

__all__ = [
    "ACCOUNTANTS",
    "ADJACENCIES",
    "GaussianRelease",
    "Ledger",
    "LedgerContents",
    "NoiseScheme",
    "PrivacyEvent",
    "PrivacyStatement",
    "RepeatAndSelect",
    "Reservation",
    "SampledGaussianSteps",
    "UnprotectedRelease",
    "accountant_version",
    "affordable_steps",
    "calibrated_noise_multiplier",
    "dp_event",
    "epsilon_spent",
    "event_from_json",
    "event_json",
    "privacy_statement",
    "read_ledger",
    "replayed_statement",
]
