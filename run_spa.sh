#!/bin/sh
# run_spa.sh CONFIG [CKPT] [GENERATE_DATA] [key=value ...]    The original's command, as `spa run`.
# The original's environment variables become overrides; docs/parity.md lists them. The command that runs is printed.
PATH="$(dirname "$0")/.venv/bin:$PATH"
case "${MODEL:-}" in 0.5B | 1.5B | 3B) MODEL="Qwen/Qwen2.5-$MODEL-Instruct" ;; esac
if ! command -v spa >/dev/null; then
    echo "$0: the command spa is not installed. Run \`make .venv/.ready\` in $(dirname "$0"), or activate its environment." >&2
    exit 127
fi
set -x
exec spa run "$@" ${MODE:+"ctx_manager.mode=$MODE"} ${MODEL:+"model_path=$MODEL"} ${RENDER_MODE:+"render_mode=$RENDER_MODE"} \
    ${BT_NUM:+"generate.num_batches=$BT_NUM"} ${OUTPUT_DIR:+"generate.output_dir=$OUTPUT_DIR"} \
    ${BASE_DIR:+"trainer.default_local_dir=$BASE_DIR"}
