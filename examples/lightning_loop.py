"""A Lightning module trained privately: Lightning keeps its callbacks and logging, `PrivateTraining` takes the steps.

    pip install lightning
    python examples/lightning_loop.py runs/lightning

The data loader yields the secret batches of `PrivateTraining`; with manual optimization, `training_step` hands each to
`step`, which is the only place where the weights move. Log what is public: epsilon and the step, never the loss.
"""

import sys
from collections.abc import Iterator

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import securesgd as ss


class SecretBatches(IterableDataset):  # type: ignore[type-arg]
    """The batches of a private training, in its order, for a data loader without workers."""

    def __init__(self, training: ss.PrivateTraining) -> None:
        self.training = training

    def __len__(self) -> int:
        """Return how many are left; without a length Lightning would fetch a batch before the last one was used."""
        return self.training.steps - self.training.step_number

    def __iter__(self) -> Iterator[object]:
        return iter(self.training.batches())


class Digits(lightning.LightningModule):
    """A small network; its optimizer and steps are those of the private training."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
        self.training_run: ss.PrivateTraining | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    def training_step(self, batch: object, _: int) -> None:
        self.training_run.step(batch)
        self.log("epsilon", self.training_run.epsilon, prog_bar=True)

    def transfer_batch_to_device(self, batch: object, *_: object) -> object:
        return batch  # `step` does that

    def configure_optimizers(self) -> None:
        return None


class ShowEpsilon(lightning.Callback):
    """Any callback of Lightning works, as long as it shows nothing private."""

    def on_train_batch_end(self, trainer: lightning.Trainer, module: Digits, *_: object) -> None:
        if module.training_run.step_number % 10 == 0:
            print(f"step {module.training_run.step_number}, epsilon {module.training_run.epsilon:.2f}")


def main(folder: str = "runs/lightning") -> None:
    lightning.seed_everything(0, verbose=False)
    digits, module = ss.load_data("digits"), Digits()
    optimizer = torch.optim.AdamW(module.network.parameters(), lr=0.02)
    module.training_run = ss.PrivateTraining(
        module.network, optimizer, digits, out=folder, epsilon=8.0, delta=1e-4, batch_size=256, steps=40,
    )  # fmt: skip
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[ShowEpsilon()],
    )  # fmt: skip
    loader = DataLoader(SecretBatches(module.training_run), batch_size=None, num_workers=0)
    trainer.fit(module, loader)
    run = module.training_run.finish()
    print(run.privacy)
    print(f"accuracy {run.test_accuracy:.3f} on {run.test_images} test images")


if __name__ == "__main__":
    main(*sys.argv[1:])
