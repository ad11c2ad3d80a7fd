"""TRL's SFTTrainer as a side of `bench.py`, in an environment of its own (requirements-trl.txt): one optimizer step of
the same rows for every line of standard input.

    python bench_trl.py MODEL_FOLDER SIZE SIDE [--quick]        SIDE: bfloat16, float32 or packed
"""

import argparse
import sys
import tempfile
import time

import torch
from bench_worker import report
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer
from workload import rows_of

MOST_ROUNDS = 10_000


class Rounds(TrainerCallback):
    """Waits for a line before each step, and says what the step took."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def on_step_begin(self, args, state, control, **unused):
        if not sys.stdin.readline():
            sys.exit(0)
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def on_step_end(self, args, state, control, **unused):
        spent = {"cpu": time.process_time() - self.cpu, "wall": time.perf_counter() - self.wall}
        report(lambda: {**spent, "tokens": float(self.tokens)})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("size")
    parser.add_argument("side", choices=("bfloat16", "float32", "packed"))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(options.model)
    rows = rows_of(options.size, options.quick).batch(model.config.vocab_size)
    data = Dataset.from_list(
        [
            {
                "input_ids": ids,
                "completion_mask": [int(i >= len(ids) // 2) for i in range(len(ids))],
            }
            for ids in rows
        ]
        * 4
    )
    longest = max(map(len, rows))
    packed = options.side == "packed"
    with tempfile.TemporaryDirectory() as folder:
        settings = SFTConfig(
            output_dir=folder, max_steps=MOST_ROUNDS, per_device_train_batch_size=len(rows), learning_rate=1e-6,
            bf16=options.side != "float32", use_cpu=True, gradient_checkpointing=False, max_length=longest,
            packing=packed, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
            completion_only_loss=True, dataloader_num_workers=0,
        )  # fmt: skip
        tokens = sum(map(len, rows)) if not packed else len(rows) * longest
        trainer = SFTTrainer(
            model=model,
            args=settings,
            train_dataset=data,
            processing_class=tokenizer,
            callbacks=[Rounds(tokens)],
        )
        trainer.train()


if __name__ == "__main__":
    main()
