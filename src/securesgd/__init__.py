"""Neural networks private for their training data, with a proven robustness radius for every prediction.

    import securesgd as ss

What is listed in `__all__` is the public API; every other module may change without notice. Names are loaded when they
are first used, so that `import securesgd` costs nothing and does not load torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from securesgd.attacks.evaluate import Evaluation
    from securesgd.certificates.certify import certify
    from securesgd.certificates.lipschitz.radius import LipschitzRadii, lipschitz_radius
    from securesgd.certificates.record import Certificates, CertifySettings
    from securesgd.certificates.verify import CertifiedClassifier, verify
    from securesgd.data.load import LoadedData, load_data
    from securesgd.data.settings import DataSettings
    from securesgd.errors import DamagedFileError, InvalidInputError, PrivacyError, SecureSGDError
    from securesgd.models.interval_network import IntervalNetwork
    from securesgd.models.networks import network
    from securesgd.models.noise_layer import ScaleLearning
    from securesgd.models.noisy import NoisyNetwork
    from securesgd.own_loop import PrivateTraining
    from securesgd.privacy.mechanism import HeterogeneousGaussianMechanism, Release
    from securesgd.privacy.statement import PrivacyStatement
    from securesgd.run import Prediction, Run, load_run
    from securesgd.run_check import check_run
    from securesgd.run_training import train
    from securesgd.training.interrupt import TrainingInterrupted
    from securesgd.training.result import StepReport
    from securesgd.training.tensorboard import tensorboard_logger
    from securesgd.tuning import tune

__version__ = "0.2.0"

__all__ = [
    "Certificates",
    "CertifiedClassifier",
    "CertifySettings",
    "DamagedFileError",
    "DataSettings",
    "Evaluation",
    "HeterogeneousGaussianMechanism",
    "IntervalNetwork",
    "InvalidInputError",
    "LipschitzRadii",
    "LoadedData",
    "NoisyNetwork",
    "Prediction",
    "PrivacyError",
    "PrivacyStatement",
    "PrivateTraining",
    "Release",
    "Run",
    "ScaleLearning",
    "SecureSGDError",
    "StepReport",
    "TrainingInterrupted",
    "__version__",
    "certify",
    "check_run",
    "lipschitz_radius",
    "load_data",
    "load_run",
    "network",
    "tensorboard_logger",
    "train",
    "tune",
    "verify",
]

_MODULES = {
    "Certificates": "certificates.record",
    "CertifiedClassifier": "certificates.verify",
    "CertifySettings": "certificates.record",
    "DamagedFileError": "errors",
    "DataSettings": "data.settings",
    "Evaluation": "attacks.evaluate",
    "HeterogeneousGaussianMechanism": "privacy.mechanism",
    "InvalidInputError": "errors",
    "LipschitzRadii": "certificates.lipschitz.radius",
    "LoadedData": "data.load",
    "IntervalNetwork": "models.interval_network",
    "NoisyNetwork": "models.noisy",
    "Prediction": "run",
    "PrivacyError": "errors",
    "PrivacyStatement": "privacy.statement",
    "PrivateTraining": "own_loop",
    "Release": "privacy.mechanism",
    "Run": "run",
    "ScaleLearning": "models.noise_layer",
    "SecureSGDError": "errors",
    "StepReport": "training.result",
    "TrainingInterrupted": "training.interrupt",
    "certify": "certificates.certify",
    "check_run": "run_check",
    "lipschitz_radius": "certificates.lipschitz.radius",
    "load_data": "data.load",
    "load_run": "run",
    "network": "models.networks",
    "tensorboard_logger": "training.tensorboard",
    "train": "run_training",
    "tune": "tuning",
    "verify": "certificates.verify",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'securesgd' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"securesgd.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
