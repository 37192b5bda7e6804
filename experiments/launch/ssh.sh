#!/bin/bash
# The same command on several machines over ssh; the checkout, its .venv and the data are at the same path on each.
#   HOSTS="a b c" experiments/launch/ssh.sh train --data /shared/log.clicks --out /shared/run
set -euo pipefail
read -ra hosts <<< "${HOSTS:?names of the machines, the first one leads}"
job=$RANDOM
command=$(printf '%q ' .venv/bin/torchrun --nnodes "${#hosts[@]}" --nproc-per-node "${RANKS_PER_NODE:-8}" \
    --rdzv-backend c10d --rdzv-endpoint "${hosts[0]}:${PORT:-29400}" --rdzv-id "$job" -m experiments "$@")
trap 'kill $(jobs -p) 2> /dev/null || true' EXIT
for host in "${hosts[@]}"; do
    ssh -tt -o BatchMode=yes "$host" "cd $(printf '%q' "$PWD") && $command" &
done
for _ in "${hosts[@]}"; do wait -n; done
