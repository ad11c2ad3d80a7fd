#!/bin/sh
# finetune_ft.sh CONFIG N CKPT_DIR DATA_DIR SIZE [key=value ...]    The original's stage 2: SFT on N GPUs.
# DATA_DIR holds wm_train.parquet and wm_val.parquet; checkpoints go to CKPT_DIR. SIZE is 0.5B, 1.5B, 3B, or a model.
# N is lowered to the GPUs of this machine. A failure ends with its exit status.
PATH="$(dirname "$0")/../../../.venv/bin:$PATH"
if [ $# -lt 5 ]; then
    echo "usage: $0 CONFIG N CKPT_DIR DATA_DIR SIZE [key=value ...]" >&2
    exit 2
fi
config=$1 count=$2 checkpoints=$3 data=$4 model=$5
shift 5
case "$model" in 0.5B | 1.5B | 3B) model="Qwen/Qwen2.5-$model-Instruct" ;; esac
gpus=$(python -c "import torch; print(torch.cuda.device_count())") || exit
if [ "$count" -gt "$gpus" ]; then
    [ "$gpus" -gt 0 ] && count=$gpus || count=1
    echo "$0: this machine has $gpus GPUs; using $count process(es)" >&2
fi
set -- run "$config" --stages sft --model "$model" "data.train_files='$data'" "data.val_files='$data'" \
    "sft.trainer.default_local_dir='$checkpoints'" "$@"
set -x
[ "$count" -eq 1 ] && exec spa "$@"
exec torchrun --standalone --nproc-per-node "$count" -m spa "$@"
