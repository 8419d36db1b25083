"""Your own network, loss, optimizer and schedule: private training, certificates, attacks and a report.

    python examples/own_network.py runs/own

The network is a small ResNet with GroupNorm. The same lines work for any module that treats examples one by one, and
for data given as tensors, a torch Dataset, a file or a name. Afterwards the command line works on the same folder:

    securesgd certify runs/own --network examples/own_network.py:small_resnet
"""

import sys

import torch
from torch import Tensor, nn

import securesgd as ss


class Block(nn.Module):
    """Two convolutions with GroupNorm and a connection around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.GroupNorm(4, channels), nn.GroupNorm(4, channels)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm1(self.first(x)))
        return torch.relu(x + self.norm2(self.second(h)))


def small_resnet(input_shape: tuple[int, ...] = (1, 8, 8), classes: int = 10) -> nn.Module:
    """Return the network without its noise; the command line calls this, too."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 16, 3, padding=1), nn.ReLU(), Block(16), nn.MaxPool2d(2), Block(16),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, classes),
    )  # fmt: skip


def smoothed_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a loss per example: cross-entropy with label smoothing."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.05)


def main(folder: str = "runs/own") -> None:
    torch.manual_seed(0)
    digits, steps = ss.load_data("digits"), 100
    model = ss.NoisyNetwork(small_resnet(), (1, 8, 8), norm="linf", radius_per_std=0.04, redistribution="learned")
    run = ss.train(
        model, digits, out=folder, network="examples/own_network.py:small_resnet",
        epsilon=8.0, delta=1e-4, batch_size=256, steps=steps, max_grad_norm=0.5,
        loss=smoothed_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
    )  # fmt: skip
    print(run.privacy)

    print(run.certify(examples=100, draws=1_000))
    print(run.attack(attacks=["fgsm", "madry"], budget=0.05, examples=40, eot=5, draws=100, certify_draws=100))
    print(run.report())

    run = ss.load_run(folder, network=small_resnet)  # what another program does with the folder
    print(run.predict(digits.test_inputs[0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
