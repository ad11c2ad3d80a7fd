#!/usr/bin/env bash
# Pieces of work for a lent GPU, each at most eight minutes. A piece trains and evaluates in one call, and leaves only
# metrics in OUT (default: runs/results/gpu).
#   OUT=FOLDER experiments/gpu.sh PIECE [SEED]
# speed       decode and SFT, before and after: without and with CUDA graphs; with a mask, without, compiled
# ppo_step    where the time of a PPO step of 256 episodes goes
# one_gpu     the preset one_gpu with SmolLM2, from start to end: minutes and peak memory
# block       method, control and baseline on the board whose world must be learned, side by side
# twice       two trainings of one seed side by side: which digits agree
# `speed` and `ppo_step` need torch, transformers and numpy; the others an installation of spa and `spa model import-gguf
# smollm2`. STEPS shortens trainings, for example to try a piece on a CPU.
set -euo pipefail
piece=${1:?name a piece: speed, ppo_step, one_gpu, block, twice}
seed=${2:-0}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=${OUT:-runs/results/gpu}
python=${PYTHON:-python}
limit=${LIMIT_S:-470}
work=$(mktemp -d)
mkdir -p "$out"
export TOKENIZERS_PARALLELISM=false PYTHONPATH=$here/src
read -ra tiny <<< "${TINY:+--tiny}"

# measure NAME SCRIPT [OPTION...]: a script of benchmarks/gpu, whose JSON goes to OUT
measure() {
  $python "$here/benchmarks/gpu/$2.py" --shape Qwen2.5-0.5B "${tiny[@]}" --output "$out/$1.json" "${@:3}" > /dev/null
}

# settings of SEED in a run folder, as the other experiments choose them
settings() {
  seeded=("trainer.run_dir=$work/$1" "seed.train=$((70000 + 1000000 * seed))" "seed.val=$((9000000 + 100000 * seed))"
          "sft.trainer.seed=$seed" trainer.save_freq=-1)
  if [ -n "${STEPS:-}" ]; then
    seeded+=("trainer.total_training_steps=$STEPS" "sft.trainer.total_training_steps=$STEPS" generate.num_batches=1)
  fi
}

# Metrics, settings and results of all runs, without weights; and the most memory that was in use, in MB.
collect() {
  (cd "$work" && find . \( -name '*.jsonl' -o -name '*.json' -o -name config.yaml -o -name '*.log' -o -name '*.csv' \) \
    -size -1000k ! -path '*/global_step_*' -print0 | tar --null -T - -cf -) | tar -xf - -C "$out"
  rm -rf "$work"
}
trap collect EXIT

# Sampled every second; nothing without a GPU.
if command -v nvidia-smi > /dev/null; then
  nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv,noheader,nounits -l 1 > "$work/$piece-gpu.csv" &
  monitor=$!
  trap 'kill $monitor; collect' EXIT
fi

case $piece in
  speed)
    measure decode-before rollout_throughput --no-graphs
    measure decode-after rollout_throughput
    measure sft-before sft_throughput --attention sdpa
    measure sft-after sft_throughput
    measure sft-compiled sft_throughput --compile
    ;;
  ppo_step)
    measure ppo-step ppo_step
    ;;
  one_gpu)
    settings one_gpu
    # As it comes, SmolLM2 writes no format, so that random play gives the examples.
    SECONDS=0
    timeout "$limit" "$python" -m spa run one_gpu model_path=smollm2 generate.policy=random state_text=coords \
      gate.enable=false sft.trainer.total_training_steps=100 trainer.total_training_steps=20 trainer.test_freq=20 \
      es_manager.val.env_groups=64 "${seeded[@]}" > "$work/one_gpu.log" 2>&1
    echo "{\"minutes\": $(awk "BEGIN {print $SECONDS / 60}")}" > "$work/one_gpu-minutes.json"
    ;;
  block)
    settings "block-$seed"
    timeout "$limit" "$python" -m spa compare smol_hidden_lake --controls compare.per_gpu=4 compare.parallel=4 \
      "${seeded[@]}" > "$work/block-$seed.log" 2>&1
    ;;
  twice)
    for copy in a b; do
      settings "twice-$copy"
      timeout "$limit" "$python" -m spa run smol_hidden_lake sft.trainer.total_training_steps=30 \
        trainer.total_training_steps=5 gate.enable=false "${seeded[@]}" > "$work/twice-$copy.log" 2>&1 &
      pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid"; done
    "$python" "$here/experiments/same_digits.py" "$work/twice-a" "$work/twice-b" > "$work/twice.json"
    ;;
  *)
    echo "unknown piece: $piece" >&2
    exit 2
    ;;
esac
