#!/bin/sh
# run_baseline.sh CONFIG [vanilla|state_estimation] [key=value ...]    The original's command, as `spa run --method`.
# The original's environment variables become overrides; docs/parity.md lists them. The command that runs is printed.
PATH="$(dirname "$0")/.venv/bin:$PATH"
case "${MODEL:-}" in 0.5B | 1.5B | 3B) MODEL="Qwen/Qwen2.5-$MODEL-Instruct" ;; esac
if ! command -v spa >/dev/null; then
    echo "$0: the command spa is not installed. Run \`make .venv/.ready\` in $(dirname "$0"), or activate its environment." >&2
    exit 127
fi
config=${1:---help}
[ $# -gt 0 ] && shift
method=vanilla
case "${1:-}" in "" | -* | *=*) ;; *) method=$1 && shift ;; esac
set -x
exec spa run "$config" --method "$method" "$@" ${MODE:+"ctx_manager.mode=$MODE"} ${MODEL:+"model_path=$MODEL"} \
    ${RENDER_MODE:+"render_mode=$RENDER_MODE"} ${BASE_DIR:+"trainer.default_local_dir=$BASE_DIR"}
