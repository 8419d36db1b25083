"""Train a small network on scikit-learn's digits under a privacy budget; interrupt, resume, or use many cores.

python examples/private_digits.py runs/digits
python examples/private_digits.py runs/digits --resume
torchrun --nproc-per-node 2 examples/private_digits.py runs/digits-2
torchrun --nnodes 2 --nproc-per-node 4 --rdzv-endpoint HOST:29500 … (more machines: the same script)
"""

import argparse
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

from securesgd.training.loop import train
from securesgd.training.settings import TrainingSettings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--noise-seed", type=int, help="fix the noise: repeatable, and private only to the unknowing")
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    if "RANK" in os.environ:  # started by torchrun
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    first = not dist.is_initialized() or dist.get_rank() == 0

    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip
    settings = TrainingSettings(
        epsilon=options.epsilon, delta=1e-4, batch_size=256, steps=options.steps, learning_rate=1.0, momentum=0.5,
        ema_decay=0.95, noise_seed=options.noise_seed,
    )  # fmt: skip

    def show(report):
        if report.step % 20 == 0:
            print(f"step {report.step}/{report.steps}  epsilon {report.epsilon:.2f} of {options.epsilon:g}", flush=True)

    result = train(model, (images[:1500], labels[:1500]), settings, options.folder, resume=options.resume, on_step=show)
    if first:
        accuracy = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
        print(result.statement.in_words)
        print(f"accuracy {accuracy:.3f} on 297 held-out digits; weights in {result.folder}/model.safetensors")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
