"""Examples of self-play in base format, for the baseline `vanilla_format`: the same conversations
with plans and answers, but without states in the responses."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from spa.config.schema import Config
from spa.examples.play import Play, at_start
from spa.examples.source import Examples, Puzzles
from spa.types import Episode, SFTExample


class Base(Play):
    """Source of examples in base format, one per turn, without the states of the response
    (`spa.worldmodel.base_format`)."""

    mode = "base"
    has_states = False
    order = 1

    def makes(self, cfg: Config) -> bool:
        """Return whether the examples have base format."""
        return cfg.generate.example_format == "base"

    def rounds(self, cfg: Config) -> list[Config]:
        """Return a single round with the SFT steps of all rounds. Separate rounds would add
        nothing, because examples in base format teach no world model."""
        count = cfg.generate.rounds
        own = self.first_round(cfg)
        if count == 1:
            return [own]
        trainer = cfg.sft.trainer
        steps = trainer.total_training_steps
        longer = replace(
            trainer,
            # None stays None: `total_epochs` then determines the length.
            total_training_steps=steps and steps * count,
            total_epochs=trainer.total_epochs * count,
        )
        return [replace(own, sft=replace(cfg.sft, trainer=longer))]

    def make(self, cfg: Config, puzzles: Puzzles, episodes: Sequence[Episode]) -> Examples:
        """Make the examples of every episode, with prompts of base mode."""
        from spa.recipes import setup

        worker = setup.make_worker(cfg, None, mode=self.mode)
        return super().make(cfg, replace(puzzles, worker=worker), episodes)

    def of_episode(
        self, cfg: Config, puzzles: Puzzles, episode: Episode
    ) -> tuple[list[SFTExample], Counter[str]]:
        """Return the examples of an episode, with the states removed from the responses, and the
        number of dropped turns by reason."""
        from spa.worldmodel.base_format import in_base_format

        made, dropped = super().of_episode(cfg, puzzles, episode)
        if not made:
            return made, dropped
        env = at_start(puzzles.worker.make_env(episode.tag), episode)
        prompter = puzzles.worker.prompters[episode.tag]
        return in_base_format(made, episode, prompter, env), dropped


SOURCE = Base()
