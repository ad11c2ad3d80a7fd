"""Our games as an environment of Prime Intellect's verifiers: a taskset of puzzles, an environment
that runs the game as the user of the chat, and a plain chat harness.

Source: https://github.com/PrimeIntellect-ai/verifiers (0.4, `verifiers.v1`). The package
`spa_verifiers` exports them under the name that verifiers looks for: `vf-eval spa-verifiers
--env.taskset.tag FrozenLake`.
"""

import asyncio
from collections.abc import Iterator
from typing import Literal

import verifiers.v1 as vf
from openai import AsyncOpenAI

from spa.errors import EnvFault
from spa.seeds import stream_seed
from spa.types import StopReason
from spa_integrations.export.chat import GameChat, make_chat


class SpaConfig(vf.TasksetConfig):
    """Configuration of the taskset. `config` is a preset or a YAML file that defines the
    environment `tag`. `mode` is the prompt format: `add_worldmodel` also asks for states and
    predictions. The puzzles have the seeds `first_seed` to `first_seed + puzzles - 1`."""

    tag: str = "FrozenLake"
    config: str = "base"
    mode: Literal["base", "add_worldmodel"] = "base"
    first_seed: int = 10  # prompts can show the solution of a puzzle with a lower seed
    puzzles: int = 100


class SpaData(vf.TaskData):
    """Data of a task, from which any process can recreate its puzzle."""

    tag: str
    config: str
    mode: Literal["base", "add_worldmodel"]
    seed: int


class SpaTask(vf.Task[SpaData, vf.State, vf.TaskConfig]):
    """One puzzle."""


class SpaTaskset(vf.Taskset[SpaTask, SpaConfig]):
    """One task for each seed. Its prompts are the first messages of the episode."""

    def load(self) -> Iterator[SpaTask]:
        """Yield the tasks in the order of their seeds."""
        config = self.config
        chat = make_chat(config.tag, config.config, mode=config.mode)
        for seed in range(config.first_seed, config.first_seed + config.puzzles):
            system, user = chat.begin(seed)
            # Tasks are sent between processes as plain data. The receiver creates the game from
            # tag, configuration and seed.
            data = SpaData(
                name=f"{config.tag}#{seed}",
                prompt=user["content"],
                system_prompt=system["content"],
                tag=config.tag,
                config=config.config,
                mode=config.mode,
                seed=seed,
            )
            yield SpaTask(data, config.task)


class ChatHarnessConfig(vf.HarnessConfig):
    """Configuration of `ChatHarness`, which adds no settings."""


class ChatHarness(vf.Harness[ChatHarnessConfig]):
    """Harness that sends one request per turn from this process: a game needs no tools, no sandbox
    and no program to install."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Request the model's next response to the conversation so far."""
        system, prompt = self.resolve_prompt(data)
        told = [] if system is None else [{"role": "system", "content": system}]
        if isinstance(prompt, str):
            told.append({"role": "user", "content": prompt})
        else:
            told += [
                {"role": message.role, "content": message.content or ""} for message in prompt or []
            ]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            # The endpoint records the response on the trace, so it is not read here.
            await client.chat.completions.create(model=ctx.model, messages=told)  # type: ignore[arg-type]
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class SpaEnvConfig(vf.EnvConfig):
    """Agents of the environment: one player, which runs in this process."""

    player: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class SpaEnv(vf.Env[SpaEnvConfig]):
    """Environment in which the game answers every response until the episode ends. Episodes of a
    task share the puzzle, but not its random outcomes.

    The trace gets the score as reward, success as metric, and the true states and seeds, which `spa
    diagnose` reads.
    """

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Play one puzzle. If its environment fails, raises EnvFault, so that the trace records an
        error instead of a reward."""
        data: SpaData = task.data  # type: ignore[assignment]
        # Creating a game reads configuration files. It runs in a thread, so that it does not block
        # the other rollouts.
        chat = await asyncio.to_thread(make_chat, data.tag, data.config, mode=data.mode)
        async with agents.player.interaction(task) as interaction:
            # The trace's id is new for every rollout, so rollouts of the same puzzle have different
            # random outcomes.
            chat.begin(data.seed, stream_seed(data.seed, "verifiers/noise", interaction.trace.id))
            segment = await interaction.turn()
            while not segment.terminated:
                told = chat.answer(whole_response(segment))
                if told is None:
                    break
                segment = await interaction.turn(told)
            # Raise an error before `record` is called. Otherwise the score before the error would
            # become a reward.
            if chat.stop is StopReason.ERROR:
                raise EnvFault(chat.fault)
        record(chat, interaction.trace)


def whole_response(segment: vf.Segment) -> str:
    """Return the last response of a segment, including its reasoning.

    Clients and servers may have moved the reasoning to a separate field. If the think block has no
    end, that field contains the whole response.
    """
    for message in reversed(segment.messages):
        if message.role == "assistant":
            if thoughts := message.reasoning_content:
                said = message.content or ""
                return f"{thoughts}</think>{said}" if said else thoughts
            break
    return segment.last_response


def record(chat: GameChat, trace: vf.Trace) -> None:
    """Record the game's results on the player's trace."""
    trace.record_reward("score", chat.score)
    trace.record_metric("success", float(chat.success))
    trace.info["spa"] = {
        "stop": str(chat.stop),
        "turn_rewards": chat.turn_rewards,
        "states": list(chat.states),
        "seed": chat.seed,
        "noise_seed": chat.noise_seed,
    }
