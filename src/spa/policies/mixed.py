"""Mixtures of policies: each policy plays some of the turns or episodes."""

from collections.abc import Callable, Sequence

from torch import nn

from spa.engines.factory import PlayingEngine
from spa.seeds import stream
from spa.types import Completion, Prompt, SamplingParams


class MixedEngine:
    """An engine that mixes several policies. For each prompt, `choose` returns the index in
    `players` of the policy that responds."""

    def __init__(self, players: Sequence[PlayingEngine], choose: Callable[[Prompt], int]) -> None:
        self.players = players
        self.choose = choose
        # All policies use the chat template of the first.
        self.template = players[0].template

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        """Return one completion per prompt, in order."""
        chosen = [self.choose(prompt) for prompt in prompts]
        out: dict[int, Completion] = {}
        # Each policy gets its prompts in one batch.
        for place, engine in enumerate(self.players):
            rows = [row for row, player in enumerate(chosen) if player == place]
            if rows:
                out |= dict(
                    zip(
                        rows, engine.generate([prompts[row] for row in rows], sampling), strict=True
                    )
                )
        return [out[row] for row in range(len(prompts))]

    def load_weights(self, model: nn.Module, *, version: int) -> None:
        """Load new weights into every policy."""
        for player in self.players:
            player.load_weights(model, version=version)

    def forget(self, episode_ids: Sequence[str]) -> None:
        """Drop the caches of finished episodes."""
        for player in self.players:
            player.forget(episode_ids)

    def close(self) -> None:
        """Close every policy."""
        for player in self.players:
            player.close()


def epsilon_mixture(player: PlayingEngine, other: PlayingEngine, *, epsilon: float) -> MixedEngine:
    """Return a mixture in which `other` plays each turn with probability `epsilon`, and `player`
    plays the other turns."""
    # The choice uses its own random stream. The response of `player` to a prompt therefore does not
    # depend on `epsilon`.
    return MixedEngine(
        (player, other), lambda prompt: int(stream(prompt.seed, "epsilon").random() < epsilon)
    )
