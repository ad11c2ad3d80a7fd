"""Present a game as a chat, for frameworks that manage the conversation. `GameChat` returns the
first messages, then the user message after each response."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spa.config.load import load_config
from spa.config.schema import Config
from spa.custom_rewards import WeightedReward, load_rewards, rewarded
from spa.envs.base import TextEnv
from spa.envs.limits import EnvFault, boundary
from spa.envs.registry import make_env
from spa.errors import ConfigError
from spa.formats.blocks import after_prefill
from spa.prompts.render import Prompter, PromptMode
from spa.prompts.template import ChatTemplate
from spa.recipes.prompters import make_prompter
from spa.rollout.turns import stop_after, take_turn
from spa.types import Message, StopReason, Turn


@dataclass
class GameChat:
    """Plays one game at a time, with the prompts, parser, limits and penalties of a training
    episode.

    `begin` returns the first messages. `answer` takes a response and returns the next user message,
    or None when the episode is over. Then `turns`, `stop` and `score` describe the episode. If the
    environment failed, `fault` is its error message.
    """

    env: TextEnv
    prompter: Prompter
    format_penalty: float
    rewards: Sequence[WeightedReward] = ()
    """Reward terms of `custom_envs.TAG.reward`. If empty, the game's own reward is used."""

    def begin(self, seed: int, noise_seed: int | None = None) -> tuple[Message, ...]:
        """Start the puzzle of a seed, and return the system message and the first user message.
        Raises ConfigError if the puzzle cannot be generated or is shown as a picture."""
        self.seed = seed
        self.noise_seed = noise_seed
        self.turns: list[Turn] = []
        self._scores: list[float] = []
        self.stop: StopReason | None = None
        self.fault = ""
        try:
            with boundary("the puzzle"):
                # Members of a group share the puzzle. Each member has its own noise seed for random
                # outcomes.
                self.env.reset(
                    seed=seed, options={} if noise_seed is None else {"noise_seed": noise_seed}
                )
                messages = self.prompter.first_messages(self.env)
                pictured = self.env.image() is not None
        except EnvFault as error:
            raise ConfigError(
                f"the environment cannot generate the puzzle of seed {seed}: {error}. Choose another seed."
            ) from error
        if pictured:
            raise ConfigError(
                "the environment shows pictures, but exported environments can only send text. Set "
                "render_mode: text in custom_envs."
            )
        return messages

    def answer(self, response: str) -> str | None:
        """Execute a response, and return the next user message, or None if the episode is over.

        Other frameworks do not begin responses with the prefill. So a missing prefill is prepended,
        and text before a prefill is dropped. If the environment fails, the episode ends with
        `StopReason.ERROR`. Raises ValueError if the episode is already over.
        """
        prefill = self.prompter.prefill
        # Parser and penalties must see the same text as in training: a response that begins with
        # the prefill.
        after = after_prefill(response, prefill)
        return self.answer_whole(prefill + (response if after is None else after))

    def answer_whole(self, text: str) -> str | None:
        """Execute a response as in training. It begins with the prefill, and all of it counts.
        Result and errors as in `answer`."""
        if self.stop is not None:
            raise ValueError("the episode is over. Start a new episode.")
        # The action limit is for the whole episode, so the actions of earlier turns count.
        used = sum(len(turn.executed) for turn in self.turns)
        left = self.prompter.max_actions_per_traj - used
        try:
            # The boundary covers the turn and the next message, because both call the environment.
            with boundary("the turn"):
                turn, ended = take_turn(
                    self.env,
                    self.prompter,
                    text,
                    actions_left=left,
                    format_penalty=self.format_penalty,
                )
                self.turns.append(turn)
                used += len(turn.executed)
                self.stop = stop_after(
                    turn, ended, self.prompter, turns=len(self.turns), used_actions=used
                )
                if self.stop is not None:
                    return None
                message = self.prompter.next_message(
                    self.env,
                    turn=len(self.turns) + 1,
                    actions_left=left - len(turn.executed),
                    reward=turn.reward,
                )
                return message["content"]
        except EnvFault as error:
            self.stop, self.fault = StopReason.ERROR, str(error)
            return None

    @property
    def score(self) -> float:
        """Sum of rewards and penalties so far."""
        return sum(self.turn_rewards)

    @property
    def turn_rewards(self) -> list[float]:
        """Sum of reward and penalty for each turn, with the configured reward terms. Messages show
        the game's own reward instead."""
        # A reward function may be slow or nondeterministic, so it is called only once per turn.
        new = self.turns[len(self._scores) :]
        self._scores += [rewarded(turn, self.rewards).score for turn in new]
        return list(self._scores)

    @property
    def success(self) -> bool:
        """True if the goal was reached."""
        return self.stop is StopReason.SUCCESS

    @property
    def states(self) -> tuple[str, ...]:
        """True state before each response, and after the last one, for comparison with
        predictions."""
        return (
            *(turn.target for turn in self.turns),
            *(turn.next_target for turn in self.turns[-1:]),
        )


def token_episode(
    chat: GameChat,
    template: ChatTemplate,
    generate: Callable[[list[int]], tuple[list[int], list[float]]],
    seed: int,
    noise_seed: int | None = None,
) -> dict[str, Any]:
    """Play an episode on token ids without retokenizing the conversation, for trainers that need
    ids and a mask.

    `generate` samples a continuation of token ids, and returns its ids and log-probs. The result
    has the columns that a rollout function of TRL returns: `prompt_ids`, `completion_ids`,
    `logprobs` (0 for tokens of the game) and `env_mask` (1 for sampled tokens). It also has
    `score`, `success`, `stop` (why the episode ended), `turn_rewards`, `seed` and `noise_seed`. If
    the environment failed (`stop` is `error`), the mask is all 0, so the episode is not used for
    training.
    """
    prompt = template.start(chat.begin(seed, noise_seed), chat.prompter.prefill)
    # Token ids are only appended. If the conversation were tokenized again, its ids could differ
    # from the sampled ids. Then the log-probs would belong to other tokens.
    ids: list[int] = []
    logprobs: list[float] = []
    mask: list[int] = []
    while True:
        response, scores = generate(prompt + ids)
        ids = ids + response
        logprobs = logprobs + scores
        mask = mask + [1] * len(response)
        told = chat.answer_whole(chat.prompter.prefill + template.decode_response(response))
        if told is None:
            break
        answer = template.follow(told, chat.prompter.prefill, response=response)
        ids = ids + answer
        # The game's tokens have no log-probs; zeros keep the columns equally long.
        logprobs = logprobs + [0.0] * len(answer)
        mask = mask + [0] * len(answer)
    return {
        "prompt_ids": prompt,
        "completion_ids": ids,
        "logprobs": logprobs,
        # An environment error says nothing about the policy, so the episode is masked completely.
        "env_mask": [0] * len(mask) if chat.stop is StopReason.ERROR else mask,
        "score": chat.score,
        "success": chat.success,
        "stop": str(chat.stop),
        "turn_rewards": chat.turn_rewards,
        "seed": seed,
        "noise_seed": noise_seed,
    }


def make_chat(tag: str, config: str = "base", *, mode: PromptMode | None = None) -> GameChat:
    """Create the chat for an environment tag. `config` is the name of a preset, or a YAML file.
    `mode` is the prompt mode, by default the one that the configuration sets for PPO.

    Raises ConfigError if there is no such tag, if its game has several players, or if its prompts
    have no history.
    """
    cfg = load_config(config)
    env = make_game(cfg, tag)
    spec = cfg.environment(tag)
    prompter = make_prompter(cfg, spec, mode or cfg.ctx_manager.mode)
    if not prompter.history:
        raise ConfigError(
            f"{config} has ctx_manager.history=false, so each turn is a prompt of its own, but "
            "exported games are conversations. Set ctx_manager.history=true or choose another configuration."
        )
    rewards = load_rewards(f"custom_envs.{tag}.reward", spec.reward)
    return GameChat(env, prompter, cfg.es_manager.format_penalty, rewards)


def make_game(cfg: Config, tag: str) -> TextEnv:
    """Create the environment of a tag. Raises ConfigError if there is no such tag, or if its game
    has several players, because other frameworks support only one."""
    spec = cfg.environment(tag)
    env = make_env(spec.env_type, spec.env_config)
    if env.players > 1:
        raise ConfigError(
            f"{tag} is a game of {env.players} players; only games of one player can be exported. Choose another tag."
        )
    return env
