# What the runs of the written-search experiment share; sourced by search.sh and search_ppo.sh with ARM SEED [RUNS].
# EXAMPLES: 10 a step of SFT. 1,600 were chosen on development puzzles (0055). BOARD=5x5: the larger lake, with five turns.
arm=$1
seed=$2
runs=${3:-runs/search}
examples=${EXAMPLES:-1600}
name=${arm}_$examples-$seed
if [ "${BOARD:-4x4}" = 5x5 ]; then name=$name-5x5; fi
folder=$runs/$name
python=${PYTHON:-.venv/bin/python}
results=${RESULTS:-benchmarks/results/search}
greedy=actor_rollout_ref.rollout.val_kwargs.do_sample=false
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
  "trainer.run_dir=$folder"
  "generate.search.examples=$examples"
  "sft.trainer.total_training_steps=$((examples / 10))"
  # As the preset was when these runs began.
  es_manager.train.env_groups=4
  generate.num_batches=32
)
large_board=(custom_envs.FrozenLakeNoSlip.env_config.size=5 agent_proxy.max_turn=5 actor_rollout_ref.rollout.response_length=840)
if [ "${BOARD:-4x4}" = 5x5 ]; then frozen+=("${large_board[@]}"); fi

# Examples and SFT of the arm. A later command goes on from the settings that this leaves in `frozen`.
train() {
  if [ "$arm" = search_model ]; then
    # Single moves of random play first; their model then searches, and goes on learning from its own searches.
    local moves=("generate.output_dir=$folder/round_1/data" "sft.trainer.default_local_dir=$folder/round_1/sft"
                 sft.trainer.total_training_steps=80)
    $python -m spa run smol_search --stages selfplay "${frozen[@]}" "${moves[@]}"
    $python -m spa run smol_search --stages sft "${frozen[@]}" "${moves[@]}"
    frozen+=(generate.rounds=1 "model_path=$folder/round_1/sft/global_step_80")
  fi
  $python -m spa run smol_search --stages selfplay "${frozen[@]}"
  $python -m spa run smol_search --stages sft "${frozen[@]}"
}

# evaluate STAGE_FOLDER NAME SUFFIX_OF_METRICS: sampled twice and greedy, on the 256 puzzles
evaluate() {
  $python -m spa eval "$1" --config smol_search "${frozen[@]}" --puzzles 256 --samples 2 --output "$results/$2-sampled.json"
  $python -m spa eval "$1" --config smol_search "${frozen[@]}" "$greedy" --puzzles 256 --samples 1 \
    --output "$results/$2-greedy.json"
  cp "$1/metrics.jsonl" "$results/$2$3.jsonl"
}
mkdir -p "$results"
