#!/usr/bin/env bash
# The arms of the written-search experiment that QUEUE.md lists as not run, all at once on one GPU of 140 GB with 16 cores:
# nine minutes on an H200, without PPO. The small files of the results are *.json and *.jsonl in $RESULTS.
#   RESULTS=FOLDER experiments/search_gpu.sh [RUNS]
set -euo pipefail
runs=${1:-runs/search}
mkdir -p "$runs/logs"
# Processes share the GPU at the same time, not in turns.
nvidia-cuda-mps-control -d || true
arm() {
  BOARD=$1 "$(dirname "${BASH_SOURCE[0]}")/search_gpu_arm.sh" "$2" "$3" "$runs" "${@:4}" \
    > "$runs/logs/$1-$2-$3.log" 2>&1 &
}
for seed in 0 1 2; do
  arm 4x4 search_simulator $seed ppo
  arm 5x5 search_simulator $seed
  arm 4x4 search_model $seed transfer
done
for seed in 1 2; do
  arm 4x4 search_dealt $seed
  arm 4x4 search_other_puzzle $seed
done
arm 4x4 actions_only 2
wait
