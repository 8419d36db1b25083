#!/bin/bash
# Train one private run on several machines of a Slurm cluster: sbatch examples/slurm.sh
# A job that is requeued, or submitted again after a crash, resumes the run. OUT must be on a disk that all machines see.
#SBATCH --job-name=securesgd
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@120
set -euo pipefail

OUT=${OUT:-runs/slurm}
RANKS=${RANKS:-4} # per machine
SETTINGS=(--dataset mnist --method dpsgd --epsilon 3)

if [ -e "$OUT/config.toml" ]; then
    SETTINGS=(--resume)
fi
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / RANKS))

srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "$RANKS" --max-restarts 3 \
    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$HEAD:29500" \
    -m securesgd train "${SETTINGS[@]}" --out "$OUT"
