#!/usr/bin/env bash
# PPO of an arm whose SFT has ended (experiments/search.sh), and its evaluation on the same 256 puzzles.
#   experiments/search_ppo.sh ARM SEED [RUNS]
# Run it again to resume. RATE and PUZZLES (a step) choose other settings than the preset's, in a folder of their own.
set -euo pipefail
arm=$1
seed=$2
runs=${3:-runs/search}
rate=${RATE:-3e-5}
puzzles=${PUZZLES:-4}
name=ppo
if [ -n "${RATE:-}${PUZZLES:-}" ]; then name=ppo-$rate-$puzzles; fi
folder=$runs/$arm-$seed
python=${PYTHON:-.venv/bin/python}
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

mapfile -t method < <($python -c "
from spa.experiments.methods import METHODS
print('\n'.join(METHODS['$arm'].overrides))")
frozen=(
  "${method[@]}"
  "seed.train=$((70000 + 1000000 * seed))"
  "seed.val=$((9000000 + 100000 * seed))"
  "sft.trainer.seed=$seed"
  es_manager.val.env_groups=256
  trainer.val_before_train=false  # the evaluation after SFT is that measurement
  trainer.test_freq=20
  "actor_rollout_ref.actor.optim.lr=$rate"
  "es_manager.train.env_groups=$puzzles"
  "trainer.default_local_dir=$folder/$name"
  "trainer.run_dir=$folder"
)
if [ "$arm" = search_model ]; then
  frozen+=(generate.rounds=1 "model_path=$folder/round_1/sft/global_step_80")
fi
$python -m spa run smol_search --stages ppo "${frozen[@]}" "model_path=$folder/sft/global_step_80"
results=${RESULTS:-benchmarks/results/search}
mkdir -p "$results"
$python -m spa eval "$folder/$name" --config smol_search "${frozen[@]}" --puzzles 256 --samples 2 \
  --output "$results/$arm-$seed-$name-sampled.json"
$python -m spa eval "$folder/$name" --config smol_search "${frozen[@]}" \
  actor_rollout_ref.rollout.val_kwargs.do_sample=false --puzzles 256 --samples 1 \
  --output "$results/$arm-$seed-$name-greedy.json"
cp "$folder/$name/metrics.jsonl" "$results/$arm-$seed-$name.jsonl"
