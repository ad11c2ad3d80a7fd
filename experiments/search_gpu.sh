#!/usr/bin/env bash
# The arms of the written-search experiment that QUEUE.md lists as not run, all at once on one GPU of 140 GB with 16 cores:
# about nine minutes on an H200, PPO longer. The results are the files, not the folders, in $RESULTS.
#   RESULTS=FOLDER experiments/search_gpu.sh [RUNS]
set -euo pipefail
export GPU=1
here=$(dirname "${BASH_SOURCE[0]}")
runs=${1:-runs/search}
mkdir -p "$runs/logs"
# Processes share the GPU at the same time, not in turns.
nvidia-cuda-mps-control -d || true
# arm BOARD ARM SEED: examples, SFT and evaluation
arm() {
  BOARD=$1 "$here/search.sh" "$2" "$3" "$runs" > "$runs/logs/$1-$2-$3.log" 2>&1
}
pids=()
for seed in 0 1 2; do
  { arm 4x4 search_simulator $seed && RATE=5e-6 PUZZLES=8 "$here/search_ppo.sh" search_simulator $seed "$runs"; } &
  pids+=($!)
  { arm 4x4 search_model $seed && "$here/search_transfer.sh" search_model $seed "$runs"; } &
  pids+=($!)
  arm 5x5 search_simulator $seed &
  pids+=($!)
done
for seed in 1 2; do
  arm 4x4 search_dealt $seed &
  pids+=($!)
  arm 4x4 search_other_puzzle $seed &
  pids+=($!)
done
arm 4x4 actions_only 2 &
pids+=($!)
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
exit $failed
