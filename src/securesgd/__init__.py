"""Neural networks private for their training data, with a proven robustness radius for every prediction.

    import securesgd as ss

What is listed in `__all__` is the public API; every other module may change without notice. Names are loaded when they
are first used, so that `import securesgd` costs nothing and does not load torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from securesgd.certificates.certify import certify
    from securesgd.certificates.record import Certificates, CertifySettings
    from securesgd.certificates.verify import CertifiedClassifier, verify
    from securesgd.errors import DamagedFileError, InvalidInputError, PrivacyError, SecureSGDError
    from securesgd.models.noisy import NoisyNetwork
    from securesgd.privacy.mechanism import HeterogeneousGaussianMechanism, Release
    from securesgd.privacy.statement import PrivacyStatement

__version__ = "0.2.0"

__all__ = [
    "Certificates",
    "CertifiedClassifier",
    "CertifySettings",
    "DamagedFileError",
    "HeterogeneousGaussianMechanism",
    "InvalidInputError",
    "NoisyNetwork",
    "PrivacyError",
    "PrivacyStatement",
    "Release",
    "SecureSGDError",
    "__version__",
    "certify",
    "verify",
]

_HOMES = {
    "Certificates": "certificates.record",
    "CertifiedClassifier": "certificates.verify",
    "CertifySettings": "certificates.record",
    "DamagedFileError": "errors",
    "HeterogeneousGaussianMechanism": "privacy.mechanism",
    "InvalidInputError": "errors",
    "NoisyNetwork": "models.noisy",
    "PrivacyError": "errors",
    "PrivacyStatement": "privacy.statement",
    "Release": "privacy.mechanism",
    "SecureSGDError": "errors",
    "certify": "certificates.certify",
    "verify": "certificates.verify",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'securesgd' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"securesgd.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
