# What the runs of the written-search experiment share; sourced by the other scripts with ARM SEED [RUNS].
# EXAMPLES: 10 a step of SFT. 1,600 were chosen on development puzzles (0055).
# Results are files in RESULTS; `tools/results.py runs/results/search` adds them to benchmarks/results/search.parquet.
# BOARD=5x5: the larger lake, with five turns. BOARD=sokoban: rooms of 6x6 with one box, with five turns.
arm=$1
seed=$2
runs=${3:-runs/search}
examples=${EXAMPLES:-1600}
name=${arm}_$examples-$seed
board=${BOARD:-4x4}
if [ "$board" != 4x4 ]; then name=$name-$board; fi
folder=$runs/$name
python=${PYTHON:-.venv/bin/python}
results=${RESULTS:-runs/results/search}
greedy=actor_rollout_ref.rollout.val_kwargs.do_sample=false
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

# The settings of a method are those of `spa compare`; a seed has its own puzzles, sampling and order.
source "$(dirname "${BASH_SOURCE[0]}")/methods.sh"
found=$(overrides_of "$arm")
# choose_plan changes the recipe with written states, which the preset does not have.
if [ "$arm" = choose_plan ]; then found=$(overrides_of random_states)$'\n'gate.enable=false$'\n'$found; fi
mapfile -t method <<< "$found"
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
# Two of three searches of such rooms fit into 1,000 tokens.
sokoban=(
  'es_manager.train.env_configs.tags=[SimpleSokoban]' 'es_manager.val.env_configs.tags=[SimpleSokoban]'
  state_text=grid_and_coords agent_proxy.max_turn=5 actor_rollout_ref.rollout.response_length=1000
  actor_rollout_ref.rollout.max_model_len=1536 sft.data.max_length=1536
)
if [ "$board" = 5x5 ]; then frozen+=("${large_board[@]}"); fi
if [ "$board" = sokoban ]; then frozen+=("${sokoban[@]}"); fi
save_freq=10
# GPU=1: larger batches, and nothing measured during SFT. Padded rows need no attention mask, so that they are faster here.
if [ -n "${GPU:-}" ]; then
  save_freq=$((examples / 10))
  frozen+=(
    sft.trainer.eval_episodes=0 trainer.save_freq=-1 sft.data.max_token_len_per_gpu=5000
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8000 "actor_rollout_ref.rollout.max_num_seqs=${ROWS:-512}"
    actor_rollout_ref.model.packing=false sft.model.packing=false critic.model.packing=false
  )
fi

# evaluate STAGE_FOLDER NAME SUFFIX_OF_METRICS: sampled twice and, without GPU, greedy, on the 256 puzzles
evaluate() {
  $python -m spa eval "$1" --config smol_frozen_lake "${frozen[@]}" --puzzles 256 --samples 2 --output "$results/$2-sampled.json"
  [ -n "${GPU:-}" ] || $python -m spa eval "$1" --config smol_frozen_lake "${frozen[@]}" "$greedy" --puzzles 256 --samples 1 \
    --output "$results/$2-greedy.json"
  cp "$1/metrics.jsonl" "$results/$2$3.jsonl"
}
mkdir -p "$results"
