"""Examples of plans that were not played. Each plan is tried in a copy of the game
(`spa.worldmodel.branches`). It yields a separate example, or is listed in a response together with
other plans."""

from collections import Counter
from dataclasses import replace
from functools import partial

from spa.config.schema import Config
from spa.envs.base import TextEnv
from spa.examples.play import Play, policy_of
from spa.examples.source import Puzzles
from spa.formats.registry import format_of
from spa.types import Episode, SFTExample


class Counterfactual(Play):
    """Source of the examples of self-play, extended by the outcomes of other plans in every
    state."""

    policies = ("counterfactual",)
    checks_puzzles = True
    order = 2

    def makes(self, cfg: Config) -> bool:
        """Return whether the policy is counterfactual or responses list several plans."""
        return "counterfactual" in cfg.generate.policies or self._listed(cfg) > 0

    def require(self, cfg: Config, env: TextEnv, tag: str) -> None:
        """Raise ConfigError if other plans cannot be tried in the game."""
        from spa.worldmodel.branches import require_tries

        require_tries(env, tag, self._plans(cfg))

    def of_episode(
        self, cfg: Config, puzzles: Puzzles, episode: Episode
    ) -> tuple[list[SFTExample], Counter[str]]:
        """Return the examples of an episode, including plans that were not played, and the number
        of dropped turns by reason."""
        from spa.worldmodel.branches import counterfactual_examples, turn_options
        from spa.worldmodel.examples import episode_examples

        make = partial(puzzles.worker.make_env, episode.tag)
        prompter = puzzles.worker.prompters[episode.tag]
        if not format_of(episode.response_format).plans(cfg.agent_proxy.imagined_plans):
            made, dropped = super().of_episode(cfg, puzzles, episode)
            if policy_of(cfg, episode.episode_id) in self.policies:
                made += counterfactual_examples(
                    episode, make=make, prompter=prompter, plans=cfg.generate.branches
                )
            return made, dropped
        tried = turn_options(episode, make=make, prompter=prompter, plans=self._plans(cfg))
        made, dropped = episode_examples(
            episode,
            action_sep=cfg.action_sep(episode.tag),
            options=[options for options, _ in tried],
        )
        made = [
            replace(example, extra={**example.extra, "tried": tried[example.turn][1]})
            for example in made
        ]
        if made:
            # Turns without an example were tried, too.
            others = {*range(len(tried))} - {example.turn for example in made}
            made[-1].extra["tried"] += sum(tried[turn][1] for turn in others)
        return made, dropped

    def _listed(self, cfg: Config) -> int:
        return format_of(cfg.agent_proxy.response_format).plans(cfg.agent_proxy.imagined_plans)

    def _plans(self, cfg: Config) -> int | None:
        """Return the number of plans to try in each state; None means every legal action."""
        return cfg.generate.branches or self._listed(cfg) or None


SOURCE = Counterfactual()
