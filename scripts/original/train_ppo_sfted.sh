#!/bin/sh
# train_ppo_sfted.sh CONFIG CKPT NAME [key=value ...]    The original's stage 3: PPO from the checkpoint folder CKPT.
# The run is called NAME and lies in runs/NAME. BASE_DIR and RENDER_MODE become overrides, as in run_spa.sh.
PATH="$(dirname "$0")/../../.venv/bin:$PATH"
if [ $# -lt 3 ]; then
    echo "usage: $0 CONFIG CKPT NAME [key=value ...]" >&2
    exit 2
fi
config=$1 checkpoint=$2 name=$(printf %s "$3" | tr / -)
shift 3
set -x
exec spa run "$config" --stages ppo --model "$checkpoint" "trainer.experiment_name='$name'" "$@" \
    ${RENDER_MODE:+"render_mode=$RENDER_MODE"} ${BASE_DIR:+"trainer.default_local_dir=$BASE_DIR"}
