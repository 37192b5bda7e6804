#!/bin/bash
# The same command on several machines under Slurm: one torchrun a node, ranks on its GPUs (or cores).
#   sbatch --nodes=16 experiments/launch/slurm.sh train --data /shared/log.clicks --out /shared/run
#SBATCH --job-name=embeddings
#SBATCH --ntasks-per-node=1
set -euo pipefail
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun .venv/bin/torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "${RANKS_PER_NODE:-8}" \
    --rdzv-backend c10d --rdzv-endpoint "$first:${PORT:-29400}" --rdzv-id "$SLURM_JOB_ID" -m experiments "$@"
