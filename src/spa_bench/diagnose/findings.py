"""Measurements and findings about rollouts: masks, tokens, rewards, format, repetition, collapse
and world model. All functions are pure."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from statistics import fmean, pstdev, stdev
from typing import Any

from spa.formats.blocks import TAGS, find_block
from spa_bench.diagnose.copying import state_likelihood
from spa_bench.diagnose.predictions import drift, inside, world_model
from spa_bench.diagnose.replay import Game, replay_report, replayed
from spa_bench.diagnose.rollouts import Chat, Rollout
from spa_bench.diagnose.rules import Row, ranked

# Matches the header of another role's message in the formats of Qwen (ChatML), Llama 3 and Gemma.
_ROLE = re.compile(
    r"<\|im_start\|>(?:user|system|tool)|<\|start_header_id\|>(?:user|system|tool)|<start_of_turn>user"
)
_FORCED = re.compile(r"<(?:think|answer)>\s*$")


def diagnose(
    rollouts: Sequence[Rollout], tokenizer: Any = None, game: Game | None = None
) -> dict[str, Any]:
    """Run all measurements, and return plain data. `findings` has one sentence per problem worth
    acting on. `reward` describes why the reward does not rise, by the rules of `spa doctor`.

    Without a tokenizer, tokens are only counted, and rollouts that contain only tokens have no
    text. With a game, the recorded actions are replayed in it, and predictions are compared with
    the true states.
    """
    if tokenizer is not None:
        rollouts = [with_text(rollout, tokenizer) for rollout in rollouts]
    replays = [] if game is None else [replayed(rollout, game) for rollout in rollouts]
    # After a replay, the rollouts contain its true states, which the measurements below use.
    rollouts = [replay.rollout for replay in replays] or rollouts
    report: dict[str, Any] = {
        "rollouts": len(rollouts),
        "stacks": dict(Counter(rollout.stack for rollout in rollouts)),
        "masks": masks(rollouts, tokenizer),
        "tokens": retokenized(rollouts, tokenizer) if tokenizer is not None else {},
        "rewards": rewards(rollouts),
        "format": formats(rollouts),
        "repetition": repetition(rollouts),
        "collapse": collapse(rollouts),
        "replay": replay_report(replays) if replays else {},
        "world_model": world_model(rollouts),
        "drift": drift(rollouts),
        "state_likelihood": state_likelihood(rollouts, tokenizer),
    }
    report["findings"] = findings(report)
    report["reward"] = [finding.text for finding in ranked([metrics_row(report)], {})]
    return report


def metrics_row(report: Mapping[str, Any]) -> Row:
    """Convert a report to a row with the keys of `metrics.jsonl`, as the shared rules require."""
    score = report["rewards"]
    form = report["format"]
    row = dict[str, float]()
    if score["groups"]:
        row["rollout/groups"] = score["groups"]
        row["rollout/groups_zero_std"] = score["groups_without_spread"]
        row["rollout/in_group_std"] = score["in_group_std"]
    # A response that lacks several blocks is malformed only once. So the count for the worst block
    # is a lower bound.
    if form["tags"]:
        worst = max(tag["broken"] + tag["lacking"] for tag in form["tags"].values())
        row["train/rollouts/episodes"] = report["rollouts"]
        row["train/rollouts/format_rate"] = max(0.0, 1 - worst / form["responses"])
    return row


def with_text(rollout: Rollout, tokenizer: Any) -> Rollout:
    """Add text to a rollout that contains only tokens. Each contiguous range of trained tokens
    becomes a response, and all other tokens become user messages."""
    ids = rollout.token_ids
    mask = rollout.mask
    if rollout.chat or not ids or mask is None or len(mask) != len(ids):
        return rollout
    chat = list[tuple[str, str]]()
    tag = ""
    for trained, span in ((False, rollout.prompt_ids), *_runs(ids, mask)):
        text = tokenizer.decode(span, skip_special_tokens=True)
        if trained:
            chat.append(("assistant", tag + text))
        elif span:
            # A prompt can end with the tag that begins the response, so move the tag there.
            match = _FORCED.search(text)
            tag = match[0] if match else ""
            chat.append(("user", text.removesuffix(tag)))
    return replace(rollout, chat=tuple(chat))


def masks(rollouts: Sequence[Rollout], tokenizer: Any = None) -> dict[str, Any]:
    """Find rollouts with a faulty mask. Each list in the result has the locations of such rollouts:

    * `another_length`: the mask is longer or shorter than the tokens.
    * `nothing_trained`: no token is trained on.
    * `all_trained`: there are several turns, but every token is trained on.
    * `without_logprob`: a trained token has no log-prob.
    * `others_trained`: the header of another role's message is trained on. This needs a tokenizer.

    `with_mask` counts the rollouts with a mask. `replaced` counts the responses that were tokenized
    again before the next turn.
    """
    findings: dict[str, list[str]] = {
        "another_length": [],
        "nothing_trained": [],
        "all_trained": [],
        "others_trained": [],
        "without_logprob": [],
    }
    known = [
        (r, r.token_ids, r.mask) for r in rollouts if r.token_ids is not None and r.mask is not None
    ]
    for rollout, ids, mask in known:
        if len(ids) != len(mask):
            findings["another_length"].append(rollout.where)
            continue
        if not any(mask):
            findings["nothing_trained"].append(rollout.where)
        # A single response may have no environment text to mask.
        elif all(mask) and len(rollout.responses) > 1:
            findings["all_trained"].append(rollout.where)
        if any(
            trained and math.isnan(score)
            # Not strict, because a record without log-probs has none to compare.
            for trained, score in zip(mask, rollout.logprobs or (), strict=False)
        ):
            findings["without_logprob"].append(rollout.where)
        if tokenizer is not None and any(
            _ROLE.search(tokenizer.decode(span)) for span in _spans(ids, mask)
        ):
            findings["others_trained"].append(rollout.where)
    return {
        "with_mask": len(known),
        **findings,
        "replaced": sum(rollout.replaced for rollout in rollouts),
    }


def _runs(ids: Sequence[int], mask: Sequence[bool]) -> list[tuple[bool, list[int]]]:
    """Split the tokens where the mask changes. Returns (trained, token ids) pairs."""
    pairs = zip(mask, ids, strict=True)
    return [
        (trained, [token for _, token in run]) for trained, run in groupby(pairs, itemgetter(0))
    ]


def _spans(ids: Sequence[int], mask: Sequence[bool]) -> list[list[int]]:
    """Return the contiguous ranges of trained tokens."""
    return [span for trained, span in _runs(ids, mask) if trained]


def retokenized(rollouts: Sequence[Rollout], tokenizer: Any) -> dict[str, Any]:
    """Find responses whose token ids change when their text is tokenized again. Log-probs of the
    new ids would belong to tokens that the model did not sample."""
    spans = 0
    changed = []
    for rollout in rollouts:
        ids = rollout.token_ids
        mask = rollout.mask
        if ids is None or (mask is not None and len(mask) != len(ids)):
            continue
        for span in _spans(ids, mask or [True] * len(ids)):
            spans += 1
            if list(tokenizer.encode(tokenizer.decode(span), add_special_tokens=False)) != span:
                changed.append(rollout.where)
    return {"responses": spans, "changed": changed}


def rewards(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Return the mean and standard deviation of the rewards, and the mean by turn.

    Also count the training groups, and those without reward variance, from which a group baseline
    learns nothing.
    """
    # The training step is part of the key, because the same puzzle may occur again at a later step,
    # with another policy.
    groups: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for rollout in rollouts:
        # Validation groups are not trained on, so equal rewards in them do no harm.
        if rollout.reward is not None and rollout.split != "val":
            key = (rollout.split, rollout.step, rollout.group, rollout.batch_group)
            groups[key].append(rollout.reward)
    several = [values for values in groups.values() if len(values) > 1]
    values = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    turns: dict[int, list[float]] = defaultdict(list)
    for rollout in rollouts:
        for index, reward in enumerate(rollout.turn_rewards):
            turns[index].append(reward)
    return {
        "with_reward": len(values),
        "mean": fmean(values) if values else None,
        "std": pstdev(values) if values else None,
        "groups": len(several),
        "groups_without_spread": sum(max(values) == min(values) for values in several),
        # Use the sample standard deviation, as in the metrics of PPO.
        "in_group_std": fmean(map(stdev, several)) if several else None,
        "by_turn": [fmean(turns[index]) for index in sorted(turns)],
    }


def formats(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Count all responses, the empty ones, and the responses by tag.

    For every tag that occurs, `responses` counts the responses with the tag. Of these, `broken`
    counts the responses without exactly one closed block. `lacking` counts responses without the
    tag although an earlier message asks for it.
    """
    responses = [response for rollout in rollouts for response in rollout.responses]
    tags = {}
    for tag in TAGS:
        having = [response for response in responses if _has(response, tag)]
        lacking = sum(_count_lacking(rollout.chat, tag) for rollout in rollouts)
        if having or lacking:
            broken = sum(find_block(response, tag) is None for response in having)
            tags[tag] = {"responses": len(having), "broken": broken, "lacking": lacking}
    return {
        "responses": len(responses),
        "empty": sum(not response.strip() for response in responses),
        "tags": tags,
    }


def _has(text: str, tag: str) -> bool:
    return f"<{tag}>" in text or f"</{tag}>" in text


def _count_lacking(chat: Chat, tag: str) -> int:
    """Number of responses that lack a tag which an earlier message contains."""
    asked = False
    lacking = 0
    for role, text in chat:
        # Only messages before the response count as a request, because the model may invent tags.
        lacking += asked and role == "assistant" and not _has(text, tag)
        asked = asked or (role != "assistant" and f"<{tag}>" in text)
    return lacking


def repetition(rollouts: Sequence[Rollout], n: int = 4) -> dict[str, Any]:
    """The mean share of repeated word n-grams per response (`mean`), and the number of responses in
    which that share exceeds one half (`responses_over_half`)."""
    shares = []
    for response in (response for rollout in rollouts for response in rollout.responses):
        words = response.split()
        grams = [tuple(words[index : index + n]) for index in range(len(words) - n + 1)]
        # The share of repeated n-grams is 0 if all differ, and near 1 for a loop.
        shares.append(1 - len(set(grams)) / len(grams) if grams else 0.0)
    return {
        "mean": fmean(shares) if shares else 0.0,
        "responses_over_half": sum(share > 0.5 for share in shares),
    }


def collapse(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Measure the entropy of the first responses in bits, over all rollouts (`entropy`) and within
    groups (`within_groups`).

    The difference (`information`) is the mutual information of response and prompt. It is a plug-in
    estimate, which is too high for small groups. If a response has an answer block, only the answer
    counts, otherwise the whole response.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.responses:
            # Use only the first response, because the prompts of later ones differ within a group.
            response = rollout.responses[0]
            span = find_block(response, "answer")
            groups[rollout.group].append(response if span is None else inside(response, "answer"))
    total = sum(map(len, groups.values()))
    if not total:
        return {}
    # I(prompt; response) = H(response) - H(response | prompt).
    every = entropy(Counter(response for values in groups.values() for response in values))
    within = sum(len(values) / total * entropy(Counter(values)) for values in groups.values())
    return {
        "groups": len(groups),
        "entropy": every,
        "within_groups": within,
        "information": max(0.0, every - within),
    }


def entropy(counts: Mapping[str, int]) -> float:
    """Entropy in bits of the distribution given by `counts`."""
    total = sum(counts.values())
    return sum(n / total * math.log2(total / n) for n in counts.values() if n)


def findings(report: Mapping[str, Any]) -> list[str]:
    """One sentence per problem worth acting on, with the location of its first occurrence."""
    out = []
    texts = {
        "another_length": "have a mask whose length differs from the number of tokens",
        "nothing_trained": "have no trained token, because the mask covers every token",
        "all_trained": "have several turns and no masked token, so messages of the environment are trained on",
        "others_trained": "train on messages of the user or the system",
        "without_logprob": "train on tokens whose log-prob is not a number",
    }
    for name, text in texts.items():
        if places := report["masks"][name]:
            out.append(
                f"{len(places)} of {report['masks']['with_mask']} rollouts with a mask {text} (first: {places[0]})"
            )
    if count := report["masks"]["replaced"]:
        out.append(
            f"{count} of {report['format']['responses']} responses were tokenized again before the next turn. The "
            "conversation continued from tokens that differ from the sampled tokens, so the loss skips these responses"
        )
    if places := report["tokens"].get("changed"):
        of = report["tokens"]["responses"]
        out.append(
            f"{len(places)} of {of} responses give different tokens when tokenized again (first: {places[0]})"
        )
    score = report["rewards"]
    if score["groups_without_spread"]:
        out.append(
            f"{score['groups_without_spread']} of {score['groups']} groups have zero reward variance, so a group "
            "baseline gives them no gradient"
        )
    for tag, counts in report["format"]["tags"].items():
        if counts["broken"]:
            out.append(
                f"{counts['broken']} of {counts['responses']} responses with <{tag}> do not have exactly one closed "
                f"<{tag}> block"
            )
        if counts["lacking"]:
            out.append(
                f"{counts['lacking']} of {report['format']['responses']} responses lack the requested <{tag}> block"
            )
    if report["format"]["empty"]:
        out.append(
            f"{report['format']['empty']} of {report['format']['responses']} responses are empty"
        )
    if report["repetition"]["responses_over_half"]:
        out.append(
            f"in {report['repetition']['responses_over_half']} responses more than half of the text is repetition"
        )
    bits = report["collapse"]
    # Three groups or fewer cannot show whether responses depend on the prompt. Less than 0.1 bits
    # is almost no dependence.
    if bits and bits["groups"] > 3 and bits["information"] < 0.1:
        out.append(
            f"the responses hardly depend on the prompt (mutual information: {bits['information']:.2f} bits), so the "
            "policy may have collapsed"
        )
    return out + _world_findings(report)


def _world_findings(report: Mapping[str, Any]) -> list[str]:
    """Findings about the replay and the predicted states."""
    out = []
    replay = report["replay"]
    if replay and replay["without_seed"]:
        out.append(
            f"{replay['without_seed']} of {report['rollouts']} rollouts were not replayed, because they name no seed"
        )
    if replay and replay["other_tag"]:
        out.append(
            f"{replay['other_tag']} of {report['rollouts']} rollouts were not replayed, because they are of "
            "another game than --env"
        )
    if replay and replay["differ"]:
        first = min(replay["differ"], key=itemgetter("turn"))
        why = f": {first['fault']}" if first["fault"] else ""
        out.append(
            f"{len(replay['differ'])} of {replay['played']} replays differ from the recorded "
            "rollout, the earliest at turn "
            f"{first['turn']} ({first['where']}{why}). The turns after a difference are not measured"
        )
    if replay and replay["unchecked"]:
        out.append(
            f"{replay['unchecked']} of {replay['played']} replays cannot be checked, because no message shows a state "
            "of the replay and no rewards by turn are recorded. If --env or the options of the "
            "environment differ from those of the "
            "rollouts, the findings about predictions are wrong"
        )
    model = report["world_model"]
    if model.get("prediction") and model["copied"] > model["prediction"] / 2:
        out.append(
            f"{model['copied']} of {model['prediction']} predictions repeat the observation, so the model is copying "
            "instead of predicting"
        )
    # Compare only rows in which all predictions have true states. In other rows, copying would be
    # judged on fewer predictions.
    examples = [
        example
        for example in report["drift"]["by_turn"]
        if example.get("with_states") == example["predictions"]
    ]
    right, copy = (sum(example[name] for example in examples) for name in ("right", "copy_right"))
    if right < copy:
        out.append(
            f"{right} predictions are correct, but copies of the state before the actions would be correct {copy} times"
        )
    known = report["state_likelihood"]
    for split, part in known["falls"].items():
        if part["total"] > 0 and part["changed"] < part["total"] / 2:
            first, last = (known["steps"][split][end]["step"] for end in (0, -1))
            out.append(
                f"cross-entropy of predicted states fell by {part['total']:.2f} nats per token from step {first} to "
                f"{last}{f' ({split})' if split else ''}. Changed tokens account for {part['changed']:.2f} nats, so "
                "the model learned mostly to copy"
            )
    return out
