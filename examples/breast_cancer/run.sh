#!/usr/bin/env bash
# From a table to a report on the command line alone: privacy of the patients, and radii in the units of the columns.
# Run it in this folder: bash run.sh [FOLDER]
set -euo pipefail
out=${1:-runs/cancer}
python make_table.py cancer.csv
securesgd data check cancer.csv --target diagnosis
securesgd plan --dataset cancer.csv --target diagnosis --method dp-ibp --no-time
securesgd train --dataset cancer.csv --target diagnosis --method dp-ibp --out "$out"
securesgd certify "$out" --falsify
securesgd attack "$out" --budget 0.02,0.05
securesgd report "$out"
