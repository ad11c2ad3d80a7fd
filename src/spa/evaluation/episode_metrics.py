"""Metrics of a policy, computed from its episodes. Searches that the episodes write are compared
with the game."""

from collections import Counter
from collections.abc import Callable, Sequence

from spa.envs.base import TextEnv
from spa.envs.limits import MAKING_S, EnvFault, boundary
from spa.evaluation.passk import pass_metrics
from spa.formats.base import SearchScore, search_metrics
from spa.formats.blocks import think_text
from spa.formats.registry import format_of
from spa.rollout.loop import puzzle_hash
from spa.types import Episode, Metrics, StopReason
from spa.worldmodel.accuracy import world_model_metrics

# A loop has at least REPEATS periods and SHORTEST_RUN characters.
LONGEST_PERIOD = 64
REPEATS = 4
SHORTEST_RUN = 48


def episode_metrics(episodes: Sequence[Episode], prefix: str) -> Metrics:
    """Compute metrics per environment tag as `<prefix>/<tag>/<name>`, with the names of the
    original code.

    Shares of actions are shares of all executed actions of the tag. Episodes that ended in an error
    are only counted in `errors`.
    """
    metrics: Metrics = {}
    for tag in dict.fromkeys(episode.tag for episode in episodes):
        of_tag = [episode for episode in episodes if episode.tag == tag]
        played = [episode for episode in of_tag if episode.stop is not StopReason.ERROR]
        for name, value in _metrics(played).items():
            metrics[f"{prefix}/{tag}/{name}"] = value
        metrics[f"{prefix}/{tag}/errors"] = float(len(of_tag) - len(played))
    return metrics


def pooled_metrics(episodes: Sequence[Episode], prefix: str) -> Metrics:
    """Compute the metrics of `episode_metrics`, except `errors`, over all tags together, as
    `<prefix>/<name>`."""
    played = [episode for episode in episodes if episode.stop is not StopReason.ERROR]
    return {f"{prefix}/{name}": value for name, value in _metrics(played).items()}


def _metrics(episodes: Sequence[Episode]) -> Metrics:
    if not episodes:
        return {"episodes": 0.0}
    # The tag is part of the key, since two environments may use the same seed. So is the player:
    # both players of a game have the same puzzle.
    puzzles = [f"{episode.tag}/{episode.puzzle_seed}/{episode.seat}" for episode in episodes]
    # The largest group has the configured size. Groups with failed episodes are smaller, and do not
    # count for k = `size`.
    size = max(Counter(puzzles).values())
    infos = [info for episode in episodes for turn in episode.turns for info in turn.infos]
    turns = [turn for episode in episodes for turn in episode.turns]
    sampled = [int(episode.sampled.sum()) for episode in episodes if episode.sampled is not None]
    successes = [episode.success for episode in episodes]
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64) if k < size] + [size]
    metrics = {
        "success": _mean(successes),
        "episodes": float(len(episodes)),
        "score": _mean([episode.score for episode in episodes]),
        "reward": _mean([sum(turn.reward for turn in episode.turns) for episode in episodes]),
        "num_actions": len(infos) / len(episodes),
        "num_turns": len(turns) / len(episodes),
        "action_is_valid": _mean([bool(info.get("action_is_valid")) for info in infos]),
        "action_is_effective": _mean([bool(info.get("action_is_effective")) for info in infos]),
        "format_rate": _mean([turn.response.well_formed for turn in turns]),
        "completions/clipped_ratio": _mean([turn.finish_reason == "length" for turn in turns]),
        "repetition": looping_share(
            [(turn.response_text, turn.finish_reason == "length") for turn in turns]
        ),
    }
    # A mean over all episodes, like `reward`. Turns without the term count as 0.
    for name in dict.fromkeys(name for turn in turns for name in turn.reward_terms or ()):
        metrics[f"reward/{name}"] = sum(
            (turn.reward_terms or {}).get(name, 0.0) for turn in turns
        ) / len(episodes)
    metrics |= pass_metrics(successes, puzzles, ks)
    # Engines without token ids report no lengths.
    if sampled:
        metrics["response_length"] = _mean(sampled)
    if any(episode.mode == "add_worldmodel" for episode in episodes):
        metrics |= world_model_metrics(episodes)
    return metrics


def _mean(values: Sequence[float]) -> float:
    return float(sum(values)) / len(values) if values else 0.0


def ends_in_a_loop(text: str) -> bool:
    """Return whether a text ends with repetitions of a string of at most 64 characters. They must
    be at least four, and at least 48 characters long in total."""
    for period in range(1, LONGEST_PERIOD + 1):
        size = max(REPEATS * period, SHORTEST_RUN)
        tail = text[-size:]
        # A text with this period equals itself shifted by one period.
        if len(tail) == size and tail[period:] == tail[:-period]:
            return True
    return False


def looping_share(responses: Sequence[tuple[str, bool]]) -> float:
    """Return the share of responses that end in a loop. Each response is its text, and whether the
    length limit cut it off. Only responses that were cut off are checked, because a loop does not
    end on its own."""
    return (
        sum(cut and ends_in_a_loop(text) for text, cut in responses) / len(responses)
        if responses
        else 0.0
    )


MakeEnv = Callable[[str], TextEnv]


def episode_scores(episode: Episode, make_env: MakeEnv) -> list[SearchScore]:
    """Return the score of each turn that wrote a search. Returns an empty list for other response
    formats, for episodes that ended in an error, and if the game has changed since the recording.
    The list is also empty if the game's states have no keys or cannot be searched."""
    form = format_of(episode.response_format)
    if episode.stop is StopReason.ERROR or not form.scored(episode):
        return []
    env = make_env(episode.tag)
    # Randomness is replayed from the episode's own noise seed, so each turn starts in the state
    # that the model saw.
    validation = episode.episode_id.startswith("val/")
    options = {"noise_seed": episode.noise_seed, "validation": validation}
    env.reset(seed=episode.puzzle_seed, options=options)
    # If the puzzle's hash differs, the game has changed since the recording, and a score would be
    # meaningless.
    if puzzle_hash(env) != episode.puzzle_hash:
        return []
    # Searching all states may cause an environment error that did not occur during play.
    try:
        with boundary("searching the game's states", MAKING_S):
            reference = form.reference(env)
    except EnvFault:
        return []
    if reference is None:
        return []
    scores = list[SearchScore]()
    # A search starts from the state of its own turn, so it is scored before the turn's actions are
    # played.
    for turn in episode.turns:
        text, closed = think_text(turn.response_text)
        complete = closed or turn.finish_reason != "length"
        score = form.score(text, reference, env, complete=complete)
        scores += [] if score is None else [score]
        for name in turn.executed:
            action = env.to_action(name)
            assert action is not None
            env.step(action)
    return scores


def rollout_metrics(episodes: Sequence[Episode], make_env: MakeEnv, prefix: str) -> Metrics:
    """Compute metrics of episodes and of the searches that they write, as
    `<prefix>/<tag>/<name>`."""
    played = episode_metrics(episodes, prefix)
    return played | episode_search_metrics(episodes, make_env, prefix)


def episode_search_metrics(episodes: Sequence[Episode], make_env: MakeEnv, prefix: str) -> Metrics:
    """Compute `search_metrics` per environment tag, as `<prefix>/<tag>/<name>`."""
    metrics: Metrics = {}
    for tag in dict.fromkeys(episode.tag for episode in episodes):
        pooled = pooled_search_metrics(
            [each for each in episodes if each.tag == tag], make_env, f"{prefix}/{tag}"
        )
        metrics |= pooled
    return metrics


def pooled_search_metrics(episodes: Sequence[Episode], make_env: MakeEnv, prefix: str) -> Metrics:
    """Compute `search_metrics` over all tags together, as `<prefix>/<name>`."""
    scores = [score for episode in episodes for score in episode_scores(episode, make_env)]
    return {f"{prefix}/{name}": value for name, value in search_metrics(scores).items()}
