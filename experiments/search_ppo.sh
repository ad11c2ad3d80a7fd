#!/usr/bin/env bash
# PPO of an arm whose SFT has ended (experiments/search.sh), and its evaluation on the same 256 puzzles.
#   experiments/search_ppo.sh ARM SEED [RUNS]
# Run it again to resume. RATE (default 3e-5) and PUZZLES (a step, default 4) choose other settings, in a folder of their own.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/search_settings.sh"
rate=${RATE:-3e-5}
puzzles=${PUZZLES:-4}
stage=ppo
if [ -n "${RATE:-}${PUZZLES:-}" ]; then stage=ppo-$rate-$puzzles; fi
frozen+=(
  trainer.val_before_train=false  # the evaluation after SFT is that measurement
  trainer.test_freq=20
  "actor_rollout_ref.actor.optim.lr=$rate"
  "es_manager.train.env_groups=$puzzles"
  "trainer.default_local_dir=$folder/$stage"
)
if [ "$arm" = search_model ]; then
  frozen+=(generate.rounds=1 "model_path=$folder/round_1/sft/global_step_80")
fi
$python -m spa run smol_frozen_lake --stages ppo "${frozen[@]}" "model_path=$folder/sft/global_step_$((examples / 10))"
evaluate "$folder/$stage" "$name-$stage" ""
