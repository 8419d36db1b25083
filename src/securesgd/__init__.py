"""Neural networks private for their training data, with a proven robustness radius for every prediction."""

from securesgd.errors import DamagedFileError, InvalidInputError, PrivacyError, SecureSGDError
from securesgd.privacy.mechanism import HeterogeneousGaussianMechanism, Release

__version__ = "0.2.0"

__all__ = [
    "DamagedFileError",
    "HeterogeneousGaussianMechanism",
    "InvalidInputError",
    "PrivacyError",
    "Release",
    "SecureSGDError",
    "__version__",
]
