#!/usr/bin/env bash
# One arm of the written-search experiment on one core: examples, SFT, evaluation on 256 fresh puzzles.
#   experiments/search.sh ARM SEED [RUNS]     ARM: a method of smol_search, such as search_simulator
# Run it again to resume. RUNS is the folder of the runs (default: runs/search).
set -euo pipefail
arm=$1
seed=$2
runs=${3:-runs/search}
folder=$runs/$arm-$seed
python=${PYTHON:-.venv/bin/python}
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

# The settings of a method are those of `spa compare`; a seed has its own puzzles, sampling and order.
mapfile -t method < <($python -c "
from spa.experiments.methods import METHODS
print('\n'.join(METHODS['$arm'].overrides))")
frozen=(
  "${method[@]}"
  "seed.train=$((70000 + 1000000 * seed))"
  "seed.val=$((9000000 + 100000 * seed))"
  "sft.trainer.seed=$seed"
  es_manager.val.env_groups=256
  sft.trainer.save_freq=10
  "trainer.run_dir=$folder"
)
if [ "$arm" = search_model ]; then
  # Single moves of random play first; their model then searches, and goes on learning from its own searches.
  moves=("generate.output_dir=$folder/round_1/data" "sft.trainer.default_local_dir=$folder/round_1/sft")
  $python -m spa run smol_search --stages selfplay "${frozen[@]}" "${moves[@]}"
  $python -m spa run smol_search --stages sft "${frozen[@]}" "${moves[@]}"
  frozen+=(generate.rounds=1 "model_path=$folder/round_1/sft/global_step_80")
fi
$python -m spa run smol_search --stages selfplay "${frozen[@]}"
$python -m spa run smol_search --stages sft "${frozen[@]}"
greedy=actor_rollout_ref.rollout.val_kwargs.do_sample=false
results=${RESULTS:-benchmarks/results/search}
mkdir -p "$results"
$python -m spa eval "$folder/sft" --config smol_search "${frozen[@]}" --puzzles 256 --samples 2 \
  --output "$results/$arm-$seed-sampled.json"
$python -m spa eval "$folder/sft" --config smol_search "${frozen[@]}" "$greedy" --puzzles 256 --samples 1 \
  --output "$results/$arm-$seed-greedy.json"
cp "$folder/sft/metrics.jsonl" "$results/$arm-$seed-sft.jsonl"
