"""Rollouts that TRL's GRPOTrainer really makes with our games, for tests of `spa diagnose`.

    PYTHON benchmarks/rollouts/trl_rollouts.py MODEL_FOLDER OUT_FOLDER

PYTHON is an interpreter with spa and TRL 1.16. Prompts, parser, limits and penalties are those of spa's PPO; tokens are
only ever appended to, and what the game says is masked. Gradient checkpointing is off: with it a model in training has
no cache, and `generate` would sample each token from the last one alone.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from spa.prompts.template import ChatTemplate
from spa_integrations.export.chat import make_chat, token_episode

TAG, RESPONSE_TOKENS = "FrozenLake", 48


def sampler(trainer: Any, template: ChatTemplate) -> Any:
    """Continues token ids with the trainer's policy."""
    model = trainer.accelerator.unwrap_model(trainer.model)

    def generate(ids: list[int]) -> tuple[list[int], list[float]]:
        out = model.generate(
            torch.tensor([ids], device=model.device),
            do_sample=True,
            top_k=0,
            max_new_tokens=RESPONSE_TOKENS,
            eos_token_id=sorted(template.stop_ids),
            pad_token_id=template.end_id,
            output_logits=True,
            return_dict_in_generate=True,
        )
        response = out.sequences[0, len(ids) :].tolist()
        return response, [
            torch.log_softmax(s[0].float(), -1)[i].item()
            for s, i in zip(out.logits, response, strict=True)
        ]

    return generate


def main() -> None:
    """A step of GRPO on two puzzles; writes the episodes beside TRL's own tables."""
    folder, out = sys.argv[1], Path(sys.argv[2])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    template, chat = ChatTemplate(tokenizer), make_chat(TAG)
    out.mkdir(parents=True, exist_ok=True)

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """An episode for each prompt, which is the seed of a puzzle."""
        step = trainer.state.global_step
        episodes = [
            token_episode(
                chat,
                template,
                sampler(trainer, template),
                int(prompt[0]["content"]),
                1000 * step + number,
            )
            for number, prompt in enumerate(prompts)
        ]
        columns = {name: [episode[name] for episode in episodes] for name in episodes[0]}
        kept = {name: column for name, column in columns.items() if name != "logprobs"}
        with (out / "episodes.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(kept) + "\n")
        return columns

    trainer = GRPOTrainer(
        model=folder,
        reward_funcs=lambda score, **_: score,
        rollout_func=rollout,
        train_dataset=Dataset.from_dict(
            {"prompt": [[{"role": "user", "content": str(seed)}] for seed in range(2)]}
        ),
        processing_class=tokenizer,
        args=GRPOConfig(
            output_dir=str(out),
            max_steps=1,
            learning_rate=1e-6,
            per_device_train_batch_size=4,
            num_generations=2,
            max_completion_length=4096,
            log_completions=True,
            logging_steps=1,
            save_strategy="no",
            gradient_checkpointing=False,
            report_to=[],
            use_cpu=not torch.cuda.is_available(),
            seed=0,
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()
