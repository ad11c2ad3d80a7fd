"""Pretraining of the bundled base model, which has the Qwen2 architecture and about a million
parameters.

The model learns to use the two response formats, to quote a state, and to act by random habits (see
`spa_bench.tiny_model.documents`). It learns nothing about the dynamics of any environment. On the
same processor type, the same seed gives the same weights.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from spa.models import attention
from spa.models.allocator import release_memory
from spa.models.forward import micro_batches, token_logprobs
from spa.prompts.template import ChatTemplate
from spa.run.progress import ProgressLine
from spa.seeds import stream, stream_seed
from spa.training.optim import make_optimizer, warmup_cosine
from spa.types import Message
from spa_bench.tiny_model.documents import Documents, prompt_texts
from spa_bench.tiny_model.tokenizer import build_tokenizer, fixed_phrases

PREFILL = "<think>"
SCHEDULE = 3000  # Length of the learning rate's cosine schedule in steps.
# Number of training steps. A base model that follows the schedule to its end fine-tunes worse
# (experiments/0003).
STEPS = 1300
# Frequent words in prompts, which get one token each. All other words outside the fixed phrases
# need one token per byte.
WORDS = (
    "Left", "Right", "Up", "Down", "rows", "columns", "From", "to",
    "by", "row", "column", "the", "a", "is", "are", "at",
    "and", "of", "in", "on", "no", "you", "move",
    "action", "actions", "state", "turn", "goal", "player", "box", "target",
    "hole", "wall", "empty", "number", "find", "click", "search", "buy", "now", "answer", "question", "next",
)  # fmt: skip
# Further phrases that are single tokens: tags and fixed texts of responses, message headers, and
# words that occur only in states after a move.
RESPONSE_PIECES = (
    "<think>", "</think>", "<answer>",
    "</answer>", "</think><answer>", "<observation>\n", "\n</observation><prediction>\n",
    "\n</prediction></think><answer>", "<observation>", "</observation>",
    "<prediction>", "</prediction>", " || ", "||",
    "\n</observation>", "\n</prediction>", "</think>\n<answer>", "Let me try this.", "I will see what happens.",
    "This may work.", "user\n", "assistant\n", "system\n", "√", " in a hole", " on the goal",
)  # fmt: skip


def pretrain_tiny(
    folder: Path,
    *,
    seed: int = 0,
    steps: int = STEPS,
    batch_tokens: int = 8192,
    lr: float = 3e-3,
    muon_lr: float = 0.02,
) -> Path:
    """Train the base model from scratch, and save it with its tokenizer in `folder`. Weights are
    float32, matrix products bfloat16. Returns `folder`."""
    texts, states = prompt_texts()
    sentences = [line for state in states for line in state.splitlines() if "(" in line]
    # The first call cuts whole states out of the texts. The second finds the phrases inside
    # coordinate sentences.
    phrases = [*fixed_phrases(texts, states), *fixed_phrases(sentences, ()), *RESPONSE_PIECES]
    tokenizer = build_tokenizer([p for p in phrases if p.strip()], WORDS)
    model = new_model(len(tokenizer), seed, tokenizer)
    documents = Documents(stream(seed, "pretrain/documents"))
    batches = document_batches(
        documents, ChatTemplate(tokenizer), batch_tokens, stream(seed, "pretrain/order")
    )
    schedule = warmup_cosine(SCHEDULE, SCHEDULE // 20)
    optimizer = make_optimizer(
        model,
        name="muon",
        lr=lr,
        betas=(0.9, 0.95),
        weight_decay=0.01,
        muon_lr=muon_lr,
        schedule=schedule,
    )
    started = time.monotonic()
    tokens = 0
    progress = ProgressLine("pretrain", total=steps)
    for step in range(steps):
        ids, mask = next(batches)
        optimizer.at(step)
        # The optimizer needs float32 weights for their precision. Only matrix products are
        # bfloat16.
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logprobs, _ = token_logprobs(model, ids, mask)
        # The mean is over all trained tokens of the batch, so every token has the same weight,
        # whatever the length of its response.
        loss = -logprobs.sum() / mask.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        tokens += ids.numel()
        speed = tokens / (time.monotonic() - started)
        progress.update(step + 1, {"loss": f"{loss.item():.4f}", "tokens/s": f"{speed:,.0f}"})
        # Batches of many different lengths fragment the memory, and the C library does not return
        # freed memory to the system.
        if step % 100 == 0:
            release_memory()
    progress.close()
    save(model, tokenizer, folder)
    return folder


def new_model(vocabulary: int, seed: int, tokenizer) -> Qwen2ForCausalLM:
    """Build the model with random weights that depend on `seed`."""
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=384,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    # `fork_rng` preserves the state of the caller's random generator.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "pretrain/weights"))
        model = Qwen2ForCausalLM(config)
    model.set_attn_implementation(attention.register())
    return model


def save(model: Qwen2ForCausalLM, tokenizer, folder: Path) -> None:
    """Save weights and tokenizer as a plain Hugging Face folder."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def document_batches(
    documents: Documents,
    template: ChatTemplate,
    max_tokens: int,
    rng: np.random.Generator,
    pool: int = 512,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield endless batches of documents of similar length, with about `max_tokens` tokens each:
    input_ids int64 [B, T] and mask bool [B, A], where A = T - 1.

    The mask is True for predicted tokens that are trained on: responses and displacement texts, but
    not prompts.
    """
    while True:
        # Sorting within a pool keeps padding small. The shuffle keeps batches from being ordered by
        # length.
        tokenized = [tokenize(documents.next(), template) for _ in range(pool)]
        lengths = torch.tensor([len(ids) for ids, _ in tokenized])
        rows = list(micro_batches(lengths, rows=None, max_tokens=max_tokens))
        for index in rng.permutation(len(rows)):
            yield padded([tokenized[row] for row in rows[index].tolist()])


def tokenize(
    document: str | tuple[Message, ...], template: ChatTemplate
) -> tuple[list[int], list[bool]]:
    """Tokenize a document into its token ids and a mask of the tokens that are trained on."""
    if isinstance(document, str):
        ids = [*template.encode(document), template.end_id]
        # The first token cannot be predicted, because no token precedes it.
        return ids, [False, *[True] * (len(ids) - 1)]
    ids = template.start(document[:2], PREFILL)
    mask = [False] * len(ids)
    # After the system message and the first prompt, responses and prompts alternate.
    for i in range(2, len(document), 2):
        response = template.response_ids(document[i]["content"], PREFILL)
        delta = (
            template.follow(document[i + 1]["content"], PREFILL, response=response)
            if i + 1 < len(document)
            else []
        )
        ids += [*response, *delta]
        mask += [True] * len(response) + [False] * len(delta)
    return ids, mask


def padded(sequences: list[tuple[list[int], list[bool]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-pad sequences to ids int64 [B, T] and a mask of trained predictions bool [B, A]."""
    shape = (len(sequences), max(len(ids) for ids, _ in sequences))
    ids = torch.zeros(shape, dtype=torch.int64)
    mask = torch.zeros(shape, dtype=torch.bool)
    for row, (tokens, trained) in enumerate(sequences):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = torch.tensor(trained)
    # Logits at t predict token t + 1, so drop the first column: [B, T] -> [B, A] with A = T - 1.
    return ids, mask[:, 1:]
