"""A folder of images of your own, a folder for each class: private training with noise, certificates, predictions.

    python examples/image_folder.py runs/photos

The pictures are written to runs/photos-data, a damaged one among them. Only that path changes for pictures of yours;
`resize` makes pictures of several sizes equal.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

import securesgd as ss
from securesgd.predict_files import predict_files


def write_pictures(folder: Path) -> None:
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        (folder / f"digit {label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.uint8(pixels * 15.9)).save(folder / f"digit {label}" / f"{number}.png")
    (folder / "digit 3" / "damaged.png").write_bytes(b"no picture")


def main(folder: str = "runs/photos") -> None:
    data = Path(f"{folder}-data")
    write_pictures(data)
    pictures = ss.load_data(data, settings=ss.DataSettings(skip_bad=True, resize="8x8"))
    for note in pictures.notes:
        print(note)

    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, pictures.classes)
    )
    model = ss.NoisyNetwork(network, pictures.input_shape, norm="linf", radius_per_std=0.04, redistribution="learned")
    run = ss.train(
        model, pictures, out=folder, epsilon=8.0, delta=1e-4, batch_size=512, steps=100, learning_rate=1.0,
    )  # fmt: skip
    print(run.privacy)
    print(f"accuracy {run.test_accuracy:.3f} on {run.test_images} test pictures")

    print(run.certify(examples=100, draws=1_000))
    print(run.attack(attacks="madry", budget=0.05, examples=40, eot=5, draws=100, certify_draws=100))
    print(run.report())

    for answer in predict_files(run, [data / "digit 0" / "0.png", data / "digit 1" / "1.png"]).predictions:
        print(answer.place.file, answer.prediction.class_name, f"radius {answer.prediction.radius:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
