#!/usr/bin/env bash
# One arm on a board that must be learned, on one core: examples, SFT, evaluation of success by sampling and greedily.
#   experiments/learned_world.sh PRESET ARM SEED [KEY=VALUE...]
# PRESET: smol_hidden_lake and others whose examples are written searches. ARM: a method of `spa compare`, or other_world:
# `search_model` on single moves and searches of the lake's next world, played in the lake itself.
# Run it again to resume. RUNS is the folder of the runs (default: runs/learned-world), EPOCHS the passes over the examples
# (default: 1), EVAL_SET=NAME opens the evaluation set of the board instead of playing 256 development puzzles.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
preset=$1 arm=$2 seed=$3
shift 3
python=${PYTHON:-.venv/bin/python}
epochs=${EPOCHS:-1}
name=$preset-$arm-$epochs-$seed
folder=${RUNS:-runs/learned-world}/$name
results=${RESULTS:-runs/results/learned-world}
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

source "$here/methods.sh"
method=$arm
if [ "$arm" = other_world ]; then method=search_model; fi
found=$(overrides_of "$method")
mapfile -t settings <<< "$found"
settings+=(
  "seed.train=$((70000 + 1000000 * seed))"
  "seed.val=$((9000000 + 100000 * seed))"
  "sft.trainer.seed=$seed"
  es_manager.val.env_groups=256
  "trainer.run_dir=$folder"
  sft.trainer.save_freq=10
  "$@"
)
# The steps of one pass over the examples are the preset's.
steps=$("$python" -c "
from spa.config.load import load_config
print(load_config('$preset').sft.trainer.total_training_steps)")
if [ "$arm" = other_world ]; then
  settings+=(
    'custom_envs.OtherWorld={env_type: hidden_dynamics_lake, env_config: {min_moves: 3, world: 1}, max_actions_per_traj: 6}'
    'es_manager.train.env_configs.tags=[OtherWorld]'
  )
fi
mkdir -p "$results"
run=("$python" -m spa run "$preset" --stages selfplay,sft "${settings[@]}" "sft.trainer.total_training_steps=$((steps * epochs))")
"${run[@]}"
sft=$folder/sft
played=(--puzzles 256)
if [ -n "${EVAL_SET:-}" ]; then played=(--eval-set "$EVAL_SET"); fi
"$python" -m spa eval "$sft" --config "$preset" "${settings[@]}" "${played[@]}" --samples 2 --output "$results/$name-sampled.json"
"$python" -m spa eval "$sft" --config "$preset" "${settings[@]}" "${played[@]}" --samples 1 \
  actor_rollout_ref.rollout.val_kwargs.do_sample=false --output "$results/$name-greedy.json"
cp "$sft/metrics.jsonl" "$results/$name.jsonl"
