#!/usr/bin/env bash
# One arm on a board that must be learned, on one core: single moves, examples, SFT, evaluation by sampling and greedily.
#   MOVES=true|permuted|without_way|none|WORLD experiments/learned_world.sh PRESET ARM SEED [KEY=VALUE...]
# PRESET: smol_hidden_lake and others whose examples are written searches. ARM: a method of `spa compare`; the examples of
# `search_model` follow from the model's own moves, those of the others from copies of the game.
# MOVES: the single moves on which the model is fine-tuned first. true (default): random play. permuted: the same questions,
# with next states permuted among them. without_way: the same moves without what they pass. none: it starts from the preset's
# model. WORLD: random play in the hidden lake's world of that number. Arms with the same moves start from the same checkpoint,
# and train on the same puzzles.
# Run it again to resume. RUNS is the folder of the runs (default: runs/learned-world), EPOCHS the passes over the examples
# (default: 1), PUZZLES the development puzzles (default: 256). EVAL_SET=NAME opens an evaluation set in place of them.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
preset=$1 arm=$2 seed=$3
shift 3
python=${PYTHON:-.venv/bin/python}
moves=${MOVES:-true} epochs=${EPOCHS:-1} puzzles=${PUZZLES:-256}
runs=${RUNS:-runs/learned-world}
results=${RESULTS:-runs/results/learned-world}
name=$preset-$arm-$moves-$epochs-$seed
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

source "$here/methods.sh"
# The seed of the development puzzles is that of the reference policies. Training leaves these puzzles out.
common=(
  "seed.train=$((70000 + 1000000 * seed))"
  seed.val=300000
  "sft.trainer.seed=$seed"
  "es_manager.val.env_groups=$puzzles"
  sft.trainer.save_freq=10
  "$@"
)
found=$(overrides_of "$arm")
mapfile -t method <<< "$found"
settings=("${common[@]}" "${method[@]}" generate.rounds=1)

if [ "$moves" != none ]; then
  first=$runs/$preset-moves-$moves-$seed
  data=$first/data
  found=$(overrides_of search_model)
  mapfile -t rounds <<< "$found"
  if [[ $moves =~ ^[0-9]+$ ]]; then
    rounds+=(
      "custom_envs.OtherWorld={env_type: hidden_dynamics_lake, env_config: {min_moves: 3, world: $moves}, max_actions_per_traj: 6}"
      'es_manager.train.env_configs.tags=[OtherWorld]'
    )
  fi
  one=("$python" -m spa run "$preset" "${common[@]}" "${rounds[@]}")
  changed=$here/${moves}_moves.py
  if [ -f "$changed" ]; then data=$runs/$preset-moves-true-$seed/data; fi
  # A stage alone belongs to the first round: the single moves.
  "${one[@]}" --stages selfplay "generate.output_dir=$data"
  files=()
  if [ -f "$changed" ]; then
    "$python" "$changed" "$data" "$first/changed" "$seed"
    files=("sft.data.train_files=$first/changed/wm_train.parquet" "sft.data.val_files=$first/changed/wm_val.parquet")
  fi
  "${one[@]}" --stages sft "generate.output_dir=$data" "trainer.run_dir=$first" "${files[@]}"
  model=$(ls -d "$first"/sft/global_step_* | sort -V | tail -n 1)
  settings+=("model_path=$model" "sft.model.partial_pretrain=$model")
fi

steps=$("$python" -c "
import sys
from spa.config.load import load_config
print(load_config('$preset', sys.argv[1:]).sft.trainer.total_training_steps)" "${settings[@]}")
settings+=("trainer.run_dir=$runs/$name")
mkdir -p "$results"
"$python" -m spa run "$preset" --stages selfplay,sft "${settings[@]}" "sft.trainer.total_training_steps=$((steps * epochs))"
sft=$runs/$name/sft
cp "$sft/metrics.jsonl" "$results/$name.jsonl"
played=("$python" -m spa eval "$sft" --config "$preset" "${settings[@]}")
if [ -n "${EVAL_SET:-}" ]; then
  # Samples and the names of the results are fixed.
  "${played[@]}" --eval-set "$EVAL_SET"
  exit
fi
"${played[@]}" --puzzles "$puzzles" --samples 2 --output "$results/$name-sampled.json"
"${played[@]}" --puzzles "$puzzles" --samples 1 actor_rollout_ref.rollout.val_kwargs.do_sample=false \
  --output "$results/$name-greedy.json"
