#!/usr/bin/env bash
# One arm of the written-search experiment on a GPU, beside others (experiments/search_gpu.sh): examples, SFT and the
# sampled evaluation; with `ppo` also PPO, with `transfer` also other boards.
#   BOARD=4x4 experiments/search_gpu_arm.sh ARM SEED RUNS [ppo] [transfer]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/search_settings.sh"
steps=$((examples / 10))
say() { echo "$SECONDS s: $name $*" >> "$runs/progress"; }
# Padded rows need no attention mask, which is faster than packing with micro-batches of this size.
frozen+=(
  "sft.trainer.save_freq=$steps" "sft.trainer.test_freq=$steps" sft.trainer.eval_episodes=0
  sft.data.max_token_len_per_gpu=5000 actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8000
  actor_rollout_ref.model.packing=false sft.model.packing=false critic.model.packing=false
  actor_rollout_ref.rollout.max_num_seqs=512
)
# measure STAGE_FOLDER NAME OVERRIDE...
measure() {
  local output=$results/$2-sampled.json
  $python -m spa eval "$1" --config smol_search "${frozen[@]}" "${@:3}" --puzzles 256 --samples 2 --output "$output"
  say "evaluated $2"
}
train
say sft
cp "$folder/sft/metrics.jsonl" "$results/$name-sft.jsonl"
cp "$folder/data/summary.json" "$results/$name-data.json"
if [ -d "$folder/round_1" ]; then cp "$folder/round_1/sft/metrics.jsonl" "$results/$name-moves-sft.jsonl"; fi
for more in "${@:4}"; do
  if [ "$more" = ppo ]; then
    ppo=(trainer.val_before_train=false trainer.test_freq=-1 trainer.save_freq=-1
         actor_rollout_ref.actor.optim.lr=5e-6 es_manager.train.env_groups=8
         "trainer.default_local_dir=$folder/ppo-5e-6-8")
    {
      $python -m spa run smol_search --stages ppo "${frozen[@]}" "${ppo[@]}" "model_path=$folder/sft/global_step_$steps"
      cp "$folder/ppo-5e-6-8/metrics.jsonl" "$results/$name-ppo-5e-6-8.jsonl"
      measure "$folder/ppo-5e-6-8" "$name-ppo-5e-6-8" "${ppo[@]}"
    } &
  else
    {
      measure "$folder/sft" "$name-on-slip" 'es_manager.val.env_configs.tags=[FrozenLake]' \
        custom_envs.FrozenLake.env_config.success_rate=0.8
      measure "$folder/sft" "$name-on-5x5" "${large_board[@]}"
    } &
  fi
done
measure "$folder/sft" "$name"
wait
