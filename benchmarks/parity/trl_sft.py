"""Run whole fine-tuning steps with TRL's SFTTrainer on frozen rows, and keep the numbers that ours must give.

    PYTHONPATH=src:tests python benchmarks/parity/trl_sft.py tests/golden/trl_sft.json

Needs trl in an environment of its own. Loss, its division by the batch's targets, clipping, AdamW and schedules are
TRL's and transformers'; only the rows and the model are ours (tests/helpers/reference_sft.py).
tests/recipes/test_reference_sft.py holds our fine-tuning to the file.
"""

import sys
import tempfile
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from helpers.golden import write_golden
from helpers.reference_sft import BATCH, BETAS, CASES, CLIP, LR, SFTCase, frozen_rows, small_llama
from helpers.reference_updates import change, weights
from tokenizers import Tokenizer, models


class Steps(transformers.TrainerCallback):
    """Notes each optimizer step: the clipped gradient, and what the step changes."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.before = weights(kwargs["model"])

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        named = kwargs["model"].named_parameters()
        self.gradient = {name: float(p.grad.double().norm()) for name, p in named}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.found.append(
            {"gradient": self.gradient, "change": change(kwargs["model"], self.before)}
        )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "grad_norm" in logs:
            self.found[-1] |= {
                "loss": logs["loss"],
                "lr": logs["learning_rate"],
                "grad_norm": float(logs["grad_norm"]),
            }


def run(case: SFTCase) -> list[dict[str, Any]]:
    """The steps of a case. Dropout is off in the model, rows are read in their order."""
    rows = frozen_rows()
    data = Dataset.from_list(
        [
            {
                "input_ids": list(row.ids),
                "labels": [i if t else -100 for i, t in zip(row.ids, row.targets, strict=True)],
            }
            for row in rows
        ]
    )
    # only its padding is used
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<end>": 1}, unk_token="<pad>"))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>"
    )
    model, steps = small_llama(), Steps()
    # Left to itself, the trainer spares norms and biases from weight decay.
    own = torch.optim.AdamW(
        model.parameters(), lr=LR, betas=BETAS, eps=case.eps, weight_decay=case.weight_decay
    )
    with tempfile.TemporaryDirectory() as folder:
        args = trl.SFTConfig(
            output_dir=folder,
            per_device_train_batch_size=case.micro,
            gradient_accumulation_steps=BATCH // case.micro,
            num_train_epochs=case.epochs,
            learning_rate=LR,
            lr_scheduler_type=case.scheduler,
            warmup_steps=case.warmup,
            weight_decay=0.0,
            adam_epsilon=case.eps,
            max_grad_norm=CLIP,
            train_sampling_strategy="sequential",
            dataset_kwargs={"skip_prepare_dataset": True},
            logging_steps=1,
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        )
        trainer = trl.SFTTrainer(
            model=model,
            args=args,
            train_dataset=data,
            processing_class=tokenizer,
            callbacks=[steps],
            optimizers=(own if case.weight_decay else None, None),
        )
        trainer.train()
    return steps.found


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_golden(
        sys.argv[1],
        origin=f"trl {trl.__version__}, transformers {transformers.__version__}: SFTTrainer.train",
        cases={name: run(case) for name, case in CASES.items()},
    )
