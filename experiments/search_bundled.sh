#!/usr/bin/env bash
# Written search with the bundled model on the 3x3 lake, from another start: 2,500 examples, evaluation on 256 unseen puzzles.
#   experiments/search_bundled.sh START SEED [RUNS]
# START: bundled, the model as it is; world_model, after world-model SFT on self-play; no_states, after SFT on the same
# conversations without states. Run it again to resume.
set -euo pipefail
start=$1
seed=$2
folder=${3:-runs/search}/bundled-$start-$seed
python=${PYTHON:-.venv/bin/python}
results=${RESULTS:-runs/results/search}
name=bundled-$start-$seed
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

source "$(dirname "${BASH_SOURCE[0]}")/methods.sh"
# All stages leave out the same puzzles.
common=(--seed "$seed" --stages selfplay,sft es_manager.val.env_groups=256)
model=builtin:tiny
if [ "$start" != bundled ]; then
  first=(generate.rounds=1 generate.later_batches=null "trainer.run_dir=$folder/start")
  if [ "$start" = no_states ]; then
    found=$(overrides_of vanilla_format)
    mapfile -t without <<< "$found"
    first+=("${without[@]}")
  fi
  $python -m spa run demo "${common[@]}" "${first[@]}"
  model=$folder/start/sft/global_step_200
fi
found=$(overrides_of search_simulator)
mapfile -t search <<< "$found"
search+=(
  generate.search.examples=2500 sft.data.train_batch_size=64 sft.trainer.total_training_steps=400
  "model_path=$model" "trainer.run_dir=$folder"
)
$python -m spa run tiny "${common[@]}" "${search[@]}"
mkdir -p "$results"
$python -m spa eval "$folder/sft" --puzzles 256 --samples 2 --output "$results/$name-sampled.json"
cp "$folder/sft/metrics.jsonl" "$results/$name-sft.jsonl"
