"""Write scikit-learn's breast-cancer data as cancer.csv: 569 patients, 30 measurements, one diagnosis each.

The public ranges are in schema.toml. They are those of the published description of the data (`load_breast_cancer()
.DESCR`), rounded outwards; for data of your own, write down what is known without looking at them.
"""

import csv
import sys
from pathlib import Path

from sklearn.datasets import load_breast_cancer


def write_table(path: Path) -> None:
    data = load_breast_cancer()
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*data.feature_names, "diagnosis"])
        for row, label in zip(data.data, data.target, strict=True):
            table.writerow([*(f"{value:g}" for value in row), data.target_names[label]])


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "cancer.csv")
    write_table(place)
    print(place)
