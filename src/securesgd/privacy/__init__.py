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
from securesgd.privacy.full_statement import FullStatement, GroupEpsilon, full_statement, statement_schema
from securesgd.privacy.group import group_epsilon
from securesgd.privacy.ledger import Ledger, LedgerContents, Reservation, read_ledger, replayed_statement
from securesgd.privacy.membership import MembershipBounds, membership_bounds
from securesgd.privacy.run_statement import run_statement
from securesgd.privacy.statement import NoiseScheme, PrivacyStatement, privacy_statement
from securesgd.privacy.statement_rows import statement_rows

__all__ = [
    "ACCOUNTANTS",
    "ADJACENCIES",
    "FullStatement",
    "GaussianRelease",
    "GroupEpsilon",
    "Ledger",
    "LedgerContents",
    "MembershipBounds",
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
    "full_statement",
    "group_epsilon",
    "membership_bounds",
    "privacy_statement",
    "read_ledger",
    "replayed_statement",
    "run_statement",
    "statement_rows",
    "statement_schema",
]
