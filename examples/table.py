"""A table of your own: private training with interval bounds, and radii in the units of the columns.

    python examples/table.py runs/patients

The table is written to runs/patients-data, with its schema beside it: the ranges of the columns that are known without
the data. Only those paths change for a table of yours. breast_cancer/run.sh is the same on the command line.
"""

import shutil
import sys
from pathlib import Path

import torch
from breast_cancer.make_table import write_table
from torch import nn

import securesgd as ss
from securesgd.predict_files import predict_files


def main(folder: str = "runs/patients") -> None:
    data = Path(f"{folder}-data")
    data.mkdir(parents=True, exist_ok=True)
    write_table(data / "cancer.csv")
    shutil.copy(Path(__file__).with_name("breast_cancer") / "schema.toml", data / "schema.toml")

    patients = ss.load_data(data / "cancer.csv", settings=ss.DataSettings(target="diagnosis"))
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(*patients.input_shape, 32), nn.ReLU(), nn.Linear(32, patients.classes))
    model = ss.IntervalNetwork(network, patients.input_shape, train_radius=0.03)
    run = ss.train(
        model, patients, out=folder, epsilon=4.0, delta=1e-4, batch_size=150, steps=120, learning_rate=0.5,
    )  # fmt: skip
    print(run.privacy)
    print(f"accuracy {run.test_accuracy:.3f} on {run.test_images} test patients")

    print(run.certify())  # column-radii.csv has the radii in the units of the columns
    print(run.attack(attacks="madry", budget=[0.02, 0.05]))
    print(run.report())

    first_rows = (data / "cancer.csv").read_text().splitlines()[:3]
    new = data / "new.csv"  # patients without a diagnosis
    new.write_text("\n".join(row.rpartition(",")[0] for row in first_rows) + "\n")
    for answer in predict_files(run, [new]).predictions:
        print(answer.prediction.class_name, {name: f"± {radius:.3g}" for name, radius in answer.column_radii.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
