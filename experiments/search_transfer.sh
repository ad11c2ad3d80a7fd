#!/usr/bin/env bash
# A model of the 4x4 lake without slip on boards it was not trained on, 256 puzzles each, sampled twice:
# the 5x5 lake, with five turns, and the 4x4 lake with slip 0.2.
#   experiments/search_transfer.sh ARM SEED [RUNS]     after experiments/search.sh ARM SEED
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/search_settings.sh"

# transfer BOARD OVERRIDE...
transfer() {
  local output=$results/$name-on-$1-sampled.json
  shift
  [ -e "$output" ] || $python -m spa eval "$folder/sft" --config smol_frozen_lake "${frozen[@]}" "$@" \
    --puzzles 256 --samples 2 --output "$output"
}
transfer slip 'es_manager.val.env_configs.tags=[FrozenLake]' custom_envs.FrozenLake.env_config.success_rate=0.8
transfer 5x5 "${large_board[@]}"
