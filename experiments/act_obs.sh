#!/usr/bin/env bash
# ActObs on the 3x3 lake with the bundled model: SFT on the conversations of self-play without states, with and without loss
# on the states that the environment shows, then PPO; evaluation on 256 unseen puzzles after both.
#   experiments/act_obs.sh LOSS SEED [RUNS]     LOSS: response or act_obs. Run it again to resume.
set -euo pipefail
loss=$1
seed=$2
name=actobs-$loss-$seed
folder=${3:-runs/act_obs}/$name
python=${PYTHON:-.venv/bin/python}
results=${RESULTS:-runs/results/act_obs}
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

mkdir -p "$results"
# All stages leave out the same puzzles.
$python -m spa run tiny --seed "$seed" es_manager.val.env_groups=256 trainer.test_freq=-1 trainer.val_before_train=false \
  ctx_manager.mode=base generate.example_format=base gate.enable=false actor_rollout_ref.actor.world_loss.tokens=none \
  "sft.data.loss_on=$loss" "trainer.run_dir=$folder"
for stage in sft ppo; do
  $python -m spa eval "$folder/$stage" --puzzles 256 --samples 8 --output "$results/$name-$stage.json"
  cp "$folder/$stage/metrics.jsonl" "$results/$name-$stage.jsonl"
done
