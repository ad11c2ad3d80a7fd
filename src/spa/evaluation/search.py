"""Accuracy of written searches: replay the episodes, and compare each search with the game."""

from collections.abc import Callable, Sequence

from spa.envs.base import TextEnv
from spa.envs.limits import MAKING_S, EnvFault, boundary
from spa.evaluation.episode_metrics import episode_metrics
from spa.formats.base import SearchScore, search_metrics
from spa.formats.blocks import think_text
from spa.formats.registry import format_of
from spa.rollout.loop import puzzle_hash
from spa.types import Episode, Metrics, StopReason

MakeEnv = Callable[[str], TextEnv]


def episode_scores(episode: Episode, make_env: MakeEnv) -> list[SearchScore]:
    """The score of each turn that wrote a search. Empty for other response formats, for episodes
    that ended in an error, if the game has changed since the recording, or if its states have no
    names or cannot be searched."""
    form = format_of(episode.response_format)
    if episode.stop is StopReason.ERROR or not form.scored(episode):
        return []
    env = make_env(episode.tag)
    # Randomness is replayed from the episode's own noise seed, so each turn starts in the state
    # that the model saw.
    validation = episode.episode_id.startswith("val/")
    options = {"noise_seed": episode.noise_seed, "validation": validation}
    env.reset(seed=episode.puzzle_seed, options=options)
    # If the puzzle has another hash, the game has changed since the recording, and scores would be
    # about another puzzle.
    if puzzle_hash(env) != episode.puzzle_hash:
        return []
    # A search of all states may trigger a fault of the game that play did not.
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
    """Metrics of episodes and of the searches written in them, as `<prefix>/<tag>/<name>`."""
    played = episode_metrics(episodes, prefix)
    return played | episode_search_metrics(episodes, make_env, prefix)


def episode_search_metrics(episodes: Sequence[Episode], make_env: MakeEnv, prefix: str) -> Metrics:
    """`search_metrics` per environment tag, as `<prefix>/<tag>/<name>`."""
    metrics: Metrics = {}
    for tag in dict.fromkeys(episode.tag for episode in episodes):
        pooled = pooled_search_metrics(
            [each for each in episodes if each.tag == tag], make_env, f"{prefix}/{tag}"
        )
        metrics |= pooled
    return metrics


def pooled_search_metrics(episodes: Sequence[Episode], make_env: MakeEnv, prefix: str) -> Metrics:
    """`search_metrics` over all tags together, as `<prefix>/<name>`."""
    scores = [score for episode in episodes for score in episode_scores(episode, make_env)]
    return {f"{prefix}/{name}": value for name, value in search_metrics(scores).items()}
