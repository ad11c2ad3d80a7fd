#!/usr/bin/env bash
# Arms of the written-search experiment, ten at once on one GPU of 140 GB with 16 cores: about ten minutes on an H200.
# The results are the files, not the folders, in $RESULTS.
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
  arm 5x5 search_simulator $seed &
  pids+=($!)
  { arm 4x4 search_model $seed && "$here/search_transfer.sh" search_model $seed "$runs" >> "$runs/logs/transfer-$seed.log" 2>&1; } &
  pids+=($!)
done
for control in search_dealt search_other_puzzle; do
  arm 4x4 $control 2 &
  pids+=($!)
done
for seed in 0 1; do
  # Sequences are longer here, so fewer of them fit.
  { ROWS=256 arm sokoban search_simulator $seed && arm sokoban actions_only $seed; } &
  pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
exit $failed
