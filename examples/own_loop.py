"""Private training in a loop of your own: AdamW, a cosine schedule, augmentation, a consistency loss, an early end.

    python examples/own_loop.py runs/loop
    python examples/own_loop.py runs/loop --resume      (after Ctrl-C, or a power cut)

`batches` draws the secret sample of each step, `step` clips, adds the noise, writes the ledger and moves the weights;
everything else is this program's. `finish` makes a run folder that all commands take.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import securesgd as ss


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


def plain(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return one loss per example."""
    return cross_entropy(outputs, targets, reduction="none", label_smoothing=0.05)


def agreeing(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return one loss per example, with two passes through the model: a shifted image is to have the same output.

    A loss that takes the model runs one example at a time, so it is slower.
    """
    outputs, shifted = model(inputs), model(inputs.roll(1, dims=3))
    return cross_entropy(outputs, targets, reduction="none") + 0.1 * (outputs - shifted).square().mean(dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    steps = 120
    digits, model = ss.load_data("digits"), network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    training = ss.PrivateTraining(
        model, optimizer, digits, out=options.folder, scheduler=scheduler, resume=options.resume,
        epsilon=8.0, delta=1e-4, batch_size=256, steps=steps, block_steps=10, checkpoint_steps=10,
    )  # fmt: skip
    for batch in training.batches():
        noisy = batch.inputs + 0.05 * torch.randn_like(batch.inputs)  # each row for itself
        loss = plain if training.step_number < steps - 30 else agreeing
        training.step(batch.replace(inputs=noisy), loss)
        if training.step_number % 20 == 0:
            print(f"step {training.step_number} of {training.steps}, epsilon {training.epsilon:.2f}")
        if training.step_number == steps - 20:  # decided before: no private number may decide it
            break
    run = training.finish()
    print(run.privacy)
    print(f"accuracy {run.test_accuracy:.3f} on {run.test_images} test images")


if __name__ == "__main__":
    main()
