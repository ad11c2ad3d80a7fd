#!/usr/bin/env bash
# One arm of the written-search experiment on one core: examples, SFT, evaluation on 256 fresh puzzles.
#   experiments/search.sh ARM SEED [RUNS]     ARM: a method of smol_frozen_lake, such as search_simulator
# Run it again to resume. RUNS is the folder of the runs (default: runs/search).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/search_settings.sh"
frozen+=("sft.trainer.save_freq=$save_freq")
if [ "$arm" = search_model ]; then
  # Single moves of random play first; their model then searches, and goes on learning from its own searches.
  moves=("generate.output_dir=$folder/round_1/data" "sft.trainer.default_local_dir=$folder/round_1/sft"
         sft.trainer.total_training_steps=80)
  $python -m spa run smol_frozen_lake --stages selfplay "${frozen[@]}" "${moves[@]}"
  $python -m spa run smol_frozen_lake --stages sft "${frozen[@]}" "${moves[@]}"
  frozen+=(generate.rounds=1 "model_path=$folder/round_1/sft/global_step_80")
fi
$python -m spa run smol_frozen_lake --stages selfplay "${frozen[@]}"
$python -m spa run smol_frozen_lake --stages sft "${frozen[@]}"
evaluate "$folder/sft" "$name" -sft
