"""Examples of self-play: the response of each turn, in which true states replace the states that
the model wrote."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from spa.config.problems import Problems
from spa.config.schema import Config, ImagineConfig
from spa.envs.base import TextEnv
from spa.envs.limits import SLOW, EnvFault, boundary
from spa.examples.source import Examples, ExampleSource, Puzzles
from spa.run import watchdog
from spa.seeds import stream
from spa.types import Episode, SFTExample

log = logging.getLogger(__name__)


class Play(ExampleSource):
    """The default source, with one example per turn that can be relabelled."""

    order = 3

    def makes(self, cfg: Config) -> bool:
        """Return True, because this source takes every configuration that no other source takes."""
        return True

    def check(self, cfg: Config, problems: Problems) -> None:
        """Add a problem for settings that change states, if the examples contain none."""
        changed = cfg.generate.states != "ground_truth" or cfg.generate.shuffle_next_states
        if changed and not self.has_states:
            kind = cfg.generate.example_format
            problems.add(
                "generate.example_format",
                f"cannot be {kind} with generate.shuffle_next_states, or with generate.states other "
                f"than ground_truth, because {kind} examples contain no states",
            )

    def first_round(self, cfg: Config) -> Config:
        """Return the configuration of the first round. If more rounds follow, it has no planning,
        since there is no world model yet."""
        # With one round, every value of `train_on` selects the same examples. Set it to a fixed
        # value, so that the fingerprint does not depend on it.
        own = replace(cfg.generate, train_on="all_rounds")
        if cfg.generate.rounds > 1:
            own = replace(own, rounds=1, later_batches=None, imagine=ImagineConfig())
        return replace(cfg, generate=own)

    def rounds(self, cfg: Config) -> list[Config]:
        """Return the configuration of each round. The fine-tuned model plays all rounds except the
        first, which `generate.policy` plays."""
        count = cfg.generate.rounds
        if count == 1:
            return [self.first_round(cfg)]
        trainer = cfg.sft.trainer
        alone = self.first_round(cfg).generate
        later = replace(
            cfg.generate,
            rounds=1,
            num_batches=cfg.generate.batches_of_later_rounds,
            later_batches=None,
            policy="self",
            mixture=None,
        )
        configs = list[Config]()
        for number in range(1, count + 1):
            # Each round has its own SFT seed, so that repeated examples of earlier rounds come in
            # another order.
            resumed = trainer.resume_path if number == 1 else None
            own = replace(trainer, seed=trainer.seed + number - 1, resume_path=resumed)
            config = replace(
                cfg,
                generate=alone if number == 1 else later,
                sft=replace(cfg.sft, trainer=own),
            )
            # Only the last round has a gate. A failed gate asks for more training, which the next
            # round provides anyway.
            if number < count:
                config = replace(config, gate=replace(config.gate, enable=False))
            configs.append(config)
        return configs

    def make(self, cfg: Config, puzzles: Puzzles, episodes: Sequence[Episode]) -> Examples:
        """Make the examples of the episodes. Leave out episodes of validation puzzles, episodes
        that cannot be replayed, and, with `generate.success_only`, unsuccessful episodes. `dropped`
        counts their turns by reason."""
        examples = list[SFTExample]()
        dropped: Counter[str] = Counter()
        for episode in episodes:
            # Self-play skipped the validation puzzles of its own configuration. Stored episodes of
            # another configuration may contain puzzles that are held out here.
            if episode.puzzle_hash in puzzles.held_out:
                dropped["validation_puzzle"] += len(episode.turns)
                continue
            if cfg.generate.success_only and not episode.success:
                dropped["not_successful"] += len(episode.turns)
                continue
            watchdog.beat()
            try:
                with boundary(
                    "replaying the episode to make examples",
                    puzzles.worker.replay_limit_s(len(episode.turns)),
                    advice=SLOW,
                ):
                    made, counts = self.of_episode(cfg, puzzles, episode)
            except EnvFault as error:
                log.warning("spa made no examples from episode %s: %s", episode.episode_id, error)
                made = []
                counts = Counter(environment_fault=len(episode.turns))
            examples += made
            dropped += counts
        return Examples(examples=examples, dropped=dropped)

    def of_episode(
        self, cfg: Config, puzzles: Puzzles, episode: Episode
    ) -> tuple[list[SFTExample], Counter[str]]:
        """Return the examples of an episode, and the number of dropped turns by reason."""
        from spa.worldmodel.examples import episode_examples

        return episode_examples(episode, action_sep=cfg.action_sep(episode.tag))


def policy_of(cfg: Config, episode_id: str) -> str:
    """Return the name of the policy that plays an episode: `generate.policy`, or a policy sampled
    from the shares of `generate.mixture`."""
    shares = cfg.generate.mixture
    if not shares:
        return cfg.generate.policy
    # A random point on the sum of all shares: the policy whose interval contains it plays the
    # episode.
    left = stream(cfg.seed.train, f"mixture/{episode_id}").random() * sum(
        map(float, shares.values())
    )
    for name, share in shares.items():
        left -= float(share)
        if left < 0:
            return name
    # Rounding can leave a remainder after the last share.
    return next(reversed(list(shares)))


def at_start(env: TextEnv, episode: Episode) -> TextEnv:
    """Reset `env` to the episode's puzzle and noise seed, and return it."""
    env.reset(
        seed=episode.puzzle_seed,
        options={"noise_seed": episode.noise_seed, "validation": False},
    )
    return env


SOURCE = Play()
