#!/usr/bin/env bash
# One arm of the written-search experiment on one core: examples, SFT, evaluation on 256 fresh puzzles.
#   experiments/search.sh ARM SEED [RUNS]     ARM: a method of smol_search, such as search_simulator
# Run it again to resume. RUNS is the folder of the runs (default: runs/search).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/search_settings.sh"
frozen+=(sft.trainer.save_freq=10)
train
evaluate "$folder/sft" "$name" -sft
