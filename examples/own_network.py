"""Your own network and data: noise in the first layer, private training, a certificate for every prediction.

    python examples/own_network.py runs/own

The same lines work for any module whose first layer is Linear or Conv2d, and any data given as tensors or a Dataset.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

from securesgd.certificates.record import CertifySettings
from securesgd.certificates.verify import CertifiedClassifier, verify
from securesgd.errors import SecureSGDError
from securesgd.models.control import SensitivityControl
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.redistribution import prior
from securesgd.training.loop import train
from securesgd.training.settings import TrainingSettings


def main(folder: str) -> None:
    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
    torch.manual_seed(0)
    mine = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 32), nn.Tanh(),
        nn.Linear(32, 10),
    )  # fmt: skip

    model = NoisyNetwork(mine, input_shape=(1, 8, 8), place="input")  # or the first layer: leave `place` out
    model.set_noise(prior((1, 8, 8)).std(0.3), learned=True)  # where the noise goes: start here, then learn it
    control = SensitivityControl(model, "linf", target=1 / 0.04)  # one std of noise is worth 0.04 in l_inf
    settings = TrainingSettings(
        epsilon=8.0, delta=1e-4, batch_size=256, steps=300, learning_rate=2.0, momentum=0.9, max_grad_norm=0.1, copies=4
    )
    result = train(model, (images[:1500], labels[:1500]), settings, folder, project=control)
    print(result.statement.in_words)

    classifier = CertifiedClassifier(model, CertifySettings(norm="linf", draws=2_000))
    print(f"accuracy {classifier.score(images[1500:], labels[1500:]):.3f} on 297 digits, abstentions counted as wrong")
    answer = verify(model, images[1500], radius=0.03)
    print(f"digit 1500: {answer.label}, proven within 0.03: {answer.is_robust} ({answer.draws} draws)")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    try:
        main(sys.argv[1])
    except SecureSGDError as error:
        raise SystemExit(f"error: {error}") from None
