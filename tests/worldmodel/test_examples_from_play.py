"""World-model rows from real play: every row can be replayed in the environment."""

from collections.abc import Sequence

import numpy as np
import pytest

from spa.envs.pool import EpisodeSpec
from spa.envs.registry import make_env
from spa.formats.registry import world_model_response
from spa.prompts.render import Prompter
from spa.rollout.loop import collect
from spa.types import Completion, Prompt, SamplingParams
from spa.worldmodel.accuracy import world_model_metrics
from spa.worldmodel.examples import episode_examples


class Babbler:
    """Random actions (some do not exist), invented states, and a broken response now and then."""

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        return [self._response(prompt) for prompt in prompts]

    def _response(self, prompt: Prompt) -> Completion:
        rng = np.random.default_rng(prompt.seed)
        actions = [
            prompt.context.random_action(rng) if rng.random() < 0.9 else "fly" for _ in range(4)
        ]
        text = world_model_response(
            "3_P \\g<0>", "hm", "nowhere", " || ".join(actions)
        ).removeprefix(prompt.prefill)
        if rng.random() < 0.2:
            text = text.replace("</prediction>", "")
        return Completion(text=text, token_ids=None, logprobs=None, finish_reason="stop")

    def load_weights(self, model, *, version: int) -> None: ...

    def forget(self, episode_ids: Sequence[str]) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("env_type", ["frozen_lake", "sokoban"])
def test_every_example_is_what_the_environment_does(env_type):
    specs = [
        EpisodeSpec(
            episode_id=f"{i}",
            tag=env_type,
            group=i,
            member=0,
            puzzle_seed=i,
            noise_seed=50 + i,
            sample_seed=i,
        )
        for i in range(8)
    ]
    episodes = collect(
        specs,
        make_env=make_env,
        prompters={env_type: Prompter(mode="add_worldmodel", state_text="grid_and_coords")},
        template=None,
        engine=Babbler(),
        sampling=SamplingParams(),
        format_penalty=-0.1,
        max_model_len=10_000,
    )
    kept = lost = 0
    for episode in episodes:
        assert not episode.error
        examples, dropped = episode_examples(episode, action_sep="||")
        kept, lost = kept + len(examples), lost + dropped.total()
        by_turn = {example.turn: example for example in examples}
        env = make_env(env_type)
        env.reset(seed=episode.puzzle_seed, options={"noise_seed": episode.noise_seed})
        for index, turn in enumerate(episode.turns):
            before = env.state_text("grid_and_coords")
            for action in turn.executed:
                chosen = env.to_action(action)
                assert chosen is not None
                env.step(chosen)
            if index in by_turn:
                answer = " || ".join(turn.executed)
                truth = world_model_response(
                    before, "hm", env.state_text("grid_and_coords"), answer
                )
                assert by_turn[index].response == truth
                assert before in by_turn[index].prompt[-1]["content"]
    assert kept > 8 and lost > 0
    metrics = world_model_metrics(episodes)
    assert metrics["wm/turns"] == kept + lost
    assert metrics["wm/prediction_em"] == metrics["wm/obs_exact"] == 0
