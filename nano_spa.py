"""SPA (arXiv 2510.15047) in one file: learn a world model from self-play, then learn to win.

1. Self-play. In every turn the base model writes what it observes, what it predicts its actions
   will do, and the actions. Then the truth replaces what it believed: the observation becomes the
   state that was shown, the prediction becomes the state that really followed.
2. World-model SFT. The model is fine-tuned on these corrected responses. No reward is involved.
3. PPO. The fine-tuned model learns to win, over episodes of several turns.

The game is the 3x3 FrozenLake. The baseline is stage 3 alone, in the same format: the package's
method `vanilla_wm`, not `vanilla`. The rest is its preset `tiny` without options and checkpoints;
a test keeps masks and losses of both equal. `python nano_spa.py` prints a table of held-out puzzles.
"""

import argparse
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedTokenizerFast

# The bundled model: 0.9 M parameters, one token per coordinate and per frequent phrase. It was
# pre-trained to quote states and to write the format, on nothing of what actions do: it stands for
# an instruct model that can follow a format in a game that it does not know.
MODEL = Path(__file__).parent / "src" / "spa" / "assets" / "tiny"
TOKENIZER = PreTrainedTokenizerFast.from_pretrained(MODEL)
TOKEN_TEXT = [TOKENIZER.decode([token]) for token in range(len(TOKENIZER))]
END = int(TOKENIZER.eos_token_id)  # <|im_end|>
MAX_RESPONSE = 96  # tokens; a response in the format has about 25
SIZE = 3  # cells per side of the lake
MAX_TURNS = 5
MAX_ACTIONS = 10  # per episode
MAX_ACTIONS_PER_TURN = 3
GROUP_SIZE = 8  # episodes per puzzle

# ---- The game: cross the ice to the goal; a hole ends the episode -------------------------------
Cell = tuple[int, int]
Example = tuple[list[int], list[bool]]  # for SFT: token ids, and which of them carry loss
MOVES = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}


class Lake(NamedTuple):
    """A puzzle."""

    start: Cell
    goal: Cell
    holes: frozenset[Cell]


def move(cell: Cell, action: str) -> Cell:
    """The cell after one action; a move off the lake stays."""
    down, right = MOVES[action]
    return min(max(cell[0] + down, 0), SIZE - 1), min(max(cell[1] + right, 0), SIZE - 1)


def puzzles(name: str, count: int, held_out: Sequence[Lake] = ()) -> list[Lake]:
    """Random lakes whose goal can be reached; the name seeds them."""
    rng = random.Random(name)
    cells = [(row, column) for row in range(SIZE) for column in range(SIZE)]
    lakes: list[Lake] = []
    while len(lakes) < count:
        start, goal = rng.sample(cells, 2)
        holes = frozenset(cell for cell in cells if rng.random() >= 0.8) - {start, goal}
        reached = {start}
        for _ in cells:  # no path without loops has more moves
            reached |= {move(cell, action) for cell in reached for action in MOVES} - holes
        if goal in reached and (lake := Lake(start, goal, holes)) not in held_out:
            lakes.append(lake)
    return lakes


def state_text(lake: Lake, player: Cell) -> str:
    """The state in words, where `lake` is fixed and only `player` moves."""
    holes = "".join(f" ({row},{column})" for row, column in sorted(lake.holes))
    words = {0: "no holes (O)", 1: "hole (O) is at"}.get(len(lake.holes), "holes (O) are at")
    end = " on the goal" if player == lake.goal else " in a hole" if player in lake.holes else ""
    goal = f"goal (G) is at ({lake.goal[0]},{lake.goal[1]})"
    return f"{words}{holes}; {goal}; player (P) is at ({player[0]},{player[1]}){end}."


RULES = f"""\
<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user
You are crossing a frozen lake. Walk over the ice to the goal and do not step into a hole: a hole \
ends the game. Each action moves you by one cell; a move off the lake leaves you where you are. \
Coordinates are (row,column), counted from 0: the top left corner is (0,0), the bottom right \
corner is ({SIZE - 1},{SIZE - 1}). Rows grow downwards, columns to the right.
Actions: {", ".join(MOVES)}.
At most {MAX_ACTIONS_PER_TURN} actions per turn, separated by ||; at most {MAX_ACTIONS} actions \
and {MAX_TURNS} turns in all."""
FORMAT = """\
<think><observation>the state as it is now</observation> your plan <prediction>the state after \
your actions</prediction></think><answer>actions</answer>"""


# ---- Episodes -----------------------------------------------------------------------------------
# Token ids are only ever appended, and a response keeps the very ids that were sampled: nothing is
# rendered or tokenized a second time, so no mask has to be searched for afterwards.
@dataclass
class Turn:
    """A turn: the shown state, the response, and its result."""

    prompt: str
    state: str
    response: str = ""
    well_formed: bool = False
    actions: list[str] = field(default_factory=list)  # that the game executed
    next_state: str = ""
    correct: set[str] = field(default_factory=set)  # of "observation" and "prediction"


@dataclass
class Episode:
    """An episode; the last four lists have one entry per token."""

    lake: Lake
    player: Cell
    actions_left: int = MAX_ACTIONS
    turns: list[Turn] = field(default_factory=list)
    score: float = 0.0
    done: bool = False
    ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # under the policy that sampled
    correct: list[bool] = field(default_factory=list)  # inside a correct observation or prediction

    def append(self, ids: list[int], logprobs: list[float] | None = None) -> None:
        """Append the game's tokens, or with log-probs the model's."""
        self.ids += ids
        self.sampled += [logprobs is not None] * len(ids)
        self.logprobs += logprobs or [0.0] * len(ids)
        self.correct += [False] * len(ids)


# The parts of a well-formed response that stay when the texts inside its blocks are replaced
WELL_FORMED = re.compile(
    r"(<think>\s*<observation>)[^<]*(</observation>[^<]*<prediction>)[^<]*"
    r"(</prediction>\s*</think>\s*<answer>)[^<]*(</answer>)[^<]*"
)


def block(text: str, tag: str) -> re.Match[str] | None:
    """A tag's block with its content as group 1; None unless it is there exactly once."""
    once = text.count(f"<{tag}>") == text.count(f"</{tag}>") == 1
    return re.search(f"<{tag}>([^<]*)</{tag}>", text) if once else None


def begin_turn(episode: Episode) -> None:
    """Append the prompt of the next turn: the rules or the last reward, then the state."""
    if episode.ids and episode.ids[-1] != END:
        episode.append([END])  # of a response that was cut at MAX_RESPONSE
    number = len(episode.turns) + 1
    state = state_text(episode.lake, episode.player)
    news = RULES if number == 1 else "\n<|im_start|>user\nReward: 0"  # a reward ends the episode
    prompt = (
        f"{news}\n\nTurn {number}:\nState:\n{state}\n"
        f"Actions left: {episode.actions_left}. Reply only with {FORMAT} in at most 100 words."
        "<|im_end|>\n<|im_start|>assistant\n<think>"  # the first tag is forced
    )
    episode.append(TOKENIZER.encode(prompt))
    episode.turns.append(Turn(prompt, state))


def end_turn(episode: Episode, ids: list[int], logprobs: list[float]) -> None:
    """Append a response and execute its actions, which count if its answer can be read at all."""
    turn = episode.turns[-1]
    texts = [TOKEN_TEXT[token] for token in ids if token != END]
    turn.response = "<think>" + "".join(texts)
    answer = block(turn.response, "answer")
    words = [] if answer is None else [word.strip() for word in answer[1].split("||")]
    actions = [word.capitalize() for word in words if word][:MAX_ACTIONS_PER_TURN]
    turn.well_formed = bool(actions and WELL_FORMED.fullmatch(turn.response))
    legal = [action for action in actions if action in MOVES]
    ends = {episode.lake.goal, *episode.lake.holes}
    for action in legal[: episode.actions_left]:
        if episode.player not in ends:
            episode.player = move(episode.player, action)
            turn.actions.append(action)
    turn.next_state = state_text(episode.lake, episode.player)
    episode.actions_left -= len(turn.actions)
    used_up = episode.actions_left == 0 or len(episode.turns) == MAX_TURNS
    episode.done = used_up or episode.player in ends
    # Reward 1 for the goal, and -0.1 per turn with a malformed response or an unknown action.
    obeyed = turn.well_formed and legal == actions
    episode.score += (episode.player == episode.lake.goal) - (0.0 if obeyed else 0.1)

    start = len(episode.ids)
    episode.append(ids, logprobs)
    edges = list(accumulate(map(len, texts), initial=len("<think>")))  # of tokens, in characters
    for tag, truth in (("observation", turn.state), ("prediction", turn.next_state)):
        if (match := block(turn.response, tag)) and match[1].strip() == truth:
            turn.correct |= {tag} if turn.well_formed else set()
            for i, (begin, end) in enumerate(pairwise(edges)):  # tokens that touch the content
                episode.correct[start + i] |= begin < match.end(1) and end > match.start(1)


def sample(model: Any, prompts: Sequence[list[int]]) -> list[tuple[list[int], list[float]]]:
    """One response per prompt, at temperature 1: token ids (END included) and log-probs."""
    # Padding goes to the left, so that all rows end alike; rotary positions are relative.
    width = max(map(len, prompts))
    ids = torch.tensor([[END] * (width - len(prompt)) + prompt for prompt in prompts])
    attention = torch.arange(-width, 0) >= -torch.tensor([[len(prompt)] for prompt in prompts])
    cache = DynamicCache(config=model.config)
    responses: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
    running = responses
    while running and len(running[0][0]) < MAX_RESPONSE:
        output = model(ids, attention_mask=attention, past_key_values=cache, logits_to_keep=1)
        logprobs = output.logits[:, -1].log_softmax(-1)
        ids = torch.multinomial(logprobs.exp(), 1)
        chosen = logprobs.gather(1, ids)
        for response, token, logprob in zip(running, ids.tolist(), chosen.tolist(), strict=True):
            response[0].extend(token)
            response[1].extend(logprob)
        alive = (ids[:, 0] != END).nonzero()[:, 0]  # the others leave the batch
        running = [running[row] for row in alive]
        ids = ids[alive]
        attention = torch.cat([attention[alive], torch.ones_like(ids, dtype=torch.bool)], dim=1)
        cache.batch_select_indices(alive)
    return responses


@torch.no_grad()
def rollout(model: Any, lakes: Sequence[Lake]) -> list[Episode]:
    """Play GROUP_SIZE episodes of every puzzle, all at once, turn by turn."""
    episodes = [Episode(lake, lake.start) for lake in lakes for _ in range(GROUP_SIZE)]
    while active := [episode for episode in episodes if not episode.done]:
        for episode in active:
            begin_turn(episode)
        responses = sample(model, [episode.ids for episode in active])
        for episode, (ids, logprobs) in zip(active, responses, strict=True):
            end_turn(episode, ids, logprobs)
    return episodes


# ---- Stages 1 and 2: relabel the episodes of self-play and fine-tune on them --------------------
def relabel(episode: Episode) -> Example:
    """The episode with the truth in place of the model's beliefs, all turns in one sequence.

    Loss lies on whole responses: the answers teach which actions lead to which prediction, so that
    PPO can choose among predictions. A malformed turn cannot be relabelled; it stays without loss.
    """
    ids: list[int] = []
    mask: list[bool] = []
    for turn in episode.turns:
        trained = turn.well_formed and len(turn.actions) > 0
        actions = " || ".join(turn.actions)
        truth = f"\\1\n{turn.state}\n\\2\n{turn.next_state}\n\\3{actions}\\4"
        text = WELL_FORMED.sub(truth, turn.response) if trained else turn.response
        prompt = TOKENIZER.encode(turn.prompt)
        response = [*TOKENIZER.encode(text.removeprefix("<think>")), END]
        ids += prompt + response
        mask += [False] * len(prompt) + [trained] * len(response)
    return ids, mask


def pad(rows: Sequence[Sequence[float]]) -> Tensor:
    """Right-padded rows [B, T]. Attention is causal, so padding on the right changes nothing."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def token_logprobs(model: Any, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy, both [N], of the N tokens that a mask selects.

    ids: int64 [B, T]. mask: bool [B, T - 1]; entry t is about token t + 1, which is predicted from
    the tokens up to t. Only the selected positions go through the output layer.
    """
    logprobs = model.lm_head(model.model(ids).last_hidden_state[:, :-1][mask]).log_softmax(-1)
    chosen = logprobs.gather(1, ids[:, 1:][mask][:, None])[:, 0]
    return chosen, -(logprobs.exp() * logprobs).sum(-1)


def sft_loss(model: Any, examples: Sequence[Example]) -> Tensor:
    """Mean negative log-likelihood over the trained tokens of a batch."""
    ids, mask = map(pad, zip(*examples, strict=True))
    return -token_logprobs(model, ids, mask[:, 1:])[0].mean()


# ---- Stage 3: multi-turn PPO --------------------------------------------------------------------
def make_batch(episodes: Sequence[Episode]) -> list[Tensor]:
    """Tensors for `ppo_loss`, ids [B, T] and the rest [B, T - 1], of the groups that vary most.

    Advantages without a critic (REINFORCE++): the score, discounted from the last sampled token
    so that the turn that won gets the most credit, minus the group's mean at the start; whitened.
    """
    scores = torch.tensor([episode.score for episode in episodes]).double().view(-1, GROUP_SIZE)
    std = scores.std(dim=1)
    first = torch.tensor([e.score * 0.97 ** (sum(e.sampled) - 1) for e in episodes]).view_as(scores)
    # Groups that always win, or always lose, do not show which responses were better.
    ranked = std.argsort(descending=True, stable=True)[: max(1, len(std) // 2)]
    groups = sorted(group for group in ranked.tolist() if std[group] > 1e-6)
    kept = [e for row, e in enumerate(episodes) if row // GROUP_SIZE in groups]
    if not kept:
        return []
    columns = ((e.ids, e.sampled[1:], e.logprobs[1:], e.correct[1:]) for e in kept)
    ids, mask, old_logprobs, correct = map(pad, zip(*columns, strict=True))
    group = torch.tensor(groups).repeat_interleave(GROUP_SIZE)
    returns = scores[groups].view(-1, 1) * 0.97 ** (mask.flip(1).cumsum(1).flip(1) - 1)
    advantages = (returns - first.mean(dim=1)[group, None]) / (std[group, None] + 1e-6)
    white = (advantages - advantages[mask].mean()) / advantages[mask].std()
    return [ids, mask, old_logprobs, white.float(), correct]


def ppo_loss(model: Any, batch: Sequence[Tensor]) -> Tensor:
    """PPO's clipped surrogate, the loss that keeps the world model, and an entropy bonus."""
    ids, mask, old_logprobs, advantages, correct = batch
    logprobs, entropy = token_logprobs(model, ids, mask)
    gain = advantages[mask]
    ratio = (logprobs - old_logprobs[mask]).exp()
    per_token = torch.maximum(-gain * ratio, -gain * ratio.clamp(1 - 0.2, 1 + 0.28))
    # A bad token that has become much more likely would have an unbounded loss (dual clip).
    policy_loss = torch.minimum(per_token, torch.where(gain < 0, -3 * gain, math.inf)).mean()
    # Reward alone lets the world model decay: describing the world wins nothing. So the model's own
    # observations and predictions, where they turned out to be correct, are made more likely.
    world_loss = -(logprobs * correct[mask]).sum() / correct.sum().clamp(min=1)
    return policy_loss + 0.3 * world_loss - 0.001 * entropy.mean()


# ---- Both methods and their evaluation ----------------------------------------------------------
def evaluate(model: Any, label: str, lakes: Sequence[Lake]) -> tuple[str, Tensor]:
    """A line of the table, in %, and the success rate of each puzzle."""
    episodes = rollout(model, lakes)
    turns = [turn for episode in episodes for turn in episode.turns]
    wins = torch.tensor([1.0 * (e.player == e.lake.goal) for e in episodes]).view(-1, GROUP_SIZE)
    flags = [[t.well_formed, "observation" in t.correct, "prediction" in t.correct] for t in turns]
    shares = [wins.mean(), wins.amax(dim=1).mean(), *torch.tensor(flags).float().mean(dim=0)]
    return label + "".join(f"{100 * share:13.1f}" for share in shares), wins.mean(dim=1)


def train(method: str, args: argparse.Namespace) -> list[tuple[str, Tensor]]:
    """Train `spa` or `ppo` from the bundled model; returns evaluations before, in and after PPO."""
    torch.set_num_threads(1)  # two processes with one thread each beat one with two
    torch.manual_seed(args.seed)
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    held_out = puzzles(f"{args.seed}/held out", 2 * args.puzzles)

    if method == "spa":
        examples: list[Example] = []
        for batch in range(8):
            lakes = puzzles(f"{args.seed}/self-play/{batch}", args.puzzles, held_out)
            examples += map(relabel, rollout(model, lakes))
        # Muon, for the matrices of the layers, needs fewer steps than AdamW.
        named = list(model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in named if p.ndim < 2 or "embed" in name]
        muon = torch.optim.Muon(matrices, lr=0.02, weight_decay=0.01)
        adamw = torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01)
        warmup = max(1, args.sft_steps // 10)
        rng = random.Random(f"{args.seed}/sft")
        for step in range(args.sft_steps):
            done = max(0, step - warmup) / max(1, args.sft_steps - warmup)
            rate = min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * done)))
            loss = sft_loss(model, rng.sample(examples, min(32, len(examples))))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer, lr in ((muon, 0.02), (adamw, 3e-3)):
                optimizer.param_groups[0]["lr"] = lr * rate
                optimizer.step()
                optimizer.zero_grad()
            print(f"spa | sft step {step + 1}/{args.sft_steps} | loss {loss:.3f}", flush=True)

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
    results = [evaluate(model, f"{method:6}{0:9}", held_out)]
    for step in range(1, args.ppo_steps + 1):
        episodes = rollout(model, puzzles(f"{args.seed}/ppo/{step}", args.puzzles, held_out))
        if batch := make_batch(episodes):
            # The sampler's log-probs are the old ones: sampling and training compute the same
            # numbers. The ratio is 1 in the first mini-batch; clipping acts from the second on.
            for rows in torch.randperm(len(batch[0])).tensor_split(4):
                ppo_loss(model, [tensor[rows] for tensor in batch]).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        score = sum(e.score for e in episodes) / len(episodes)
        print(f"{method} | ppo step {step}/{args.ppo_steps} | score {score:.2f}", flush=True)
        if step % 20 == 0 or step == args.ppo_steps:
            results.append(evaluate(model, f"{method:6}{step:9}", held_out))
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="SPA and plain PPO on the 3x3 FrozenLake")
    for name, default in {"seed": 0, "puzzles": 32, "sft-steps": 200, "ppo-steps": 60}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    with get_context("spawn").Pool(2) as pool:  # one process for each method
        ppo, spa = pool.starmap(train, [("ppo", args), ("spa", args)], chunksize=1)
    print(f"\n{len(spa[0][1])} held-out puzzles x {GROUP_SIZE} episodes, in %, seed {args.seed}")
    print("method ppo step       pass@1       pass@8       format  observation   prediction")
    print(*(line for line, _ in ppo + spa), sep="\n")
    gain = 100 * (spa[-1][1] - ppo[-1][1])  # per puzzle
    error = 1.96 * gain.std() / len(gain) ** 0.5
    print(f"spa - ppo, pass@1: {gain.mean():.1f} +- {error:.1f} points (95 % CI over puzzles)")
