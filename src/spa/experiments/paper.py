"""The results of the paper (arXiv 2510.15047) as experiments: which trainings, which numbers are expected, what is
claimed. What could not be found is not here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from spa.errors import ConfigError

B05, B15, OSS = "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct", "openai/gpt-oss-20b"
ScaleName = Literal["tiny", "full"]

PASS: Mapping[tuple[str, str, str], tuple[float, float]] = {
    (B05, "vanilla_grid", "Sokoban"): (10.6, 13.9),
    (B05, "vanilla_grid", "FrozenLake"): (10.3, 24.1),
    (B05, "vanilla_grid", "Sudoku"): (5.8, 15.6),
    (B05, "state_estimation", "Sokoban"): (30.2, 34.2),
    (B05, "state_estimation", "FrozenLake"): (22.1, 48.0),
    (B05, "state_estimation", "Sudoku"): (7.9, 19.3),
    (B05, "spa", "Sokoban"): (40.3, 44.9),
    (B05, "spa", "FrozenLake"): (50.5, 63.4),
    (B05, "spa", "Sudoku"): (17.2, 31.7),
    (B15, "vanilla_grid", "Sokoban"): (25.6, 34.0),
    (B15, "vanilla_grid", "FrozenLake"): (22.1, 51.1),
    (B15, "vanilla_grid", "Sudoku"): (8.8, 21.0),
    (B15, "state_estimation", "Sokoban"): (52.7, 53.9),
    (B15, "state_estimation", "FrozenLake"): (60.5, 72.8),
    (B15, "state_estimation", "Sudoku"): (9.0, 25.2),
    (B15, "spa", "Sokoban"): (59.8, 69.5),
    (B15, "spa", "FrozenLake"): (70.9, 83.3),
    (B15, "spa", "Sudoku"): (23.5, 45.5),
    (OSS, "vanilla_grid", "Sokoban"): (58.7, 63.8),
    (OSS, "vanilla_grid", "FrozenLake"): (65.6, 73.1),
    (OSS, "vanilla_grid", "Sudoku"): (33.3, 52.2),
    (B15, "sft_epochs_1", "Sokoban"): (29.2, 52.7),
    (B15, "sft_epochs_5", "Sokoban"): (59.8, 69.5),
    (B15, "random_data", "Sokoban"): (20.2, 50.0),
}
"""(model, method, environment) -> Pass@1 and Pass@8 after PPO, in percent."""

PERPLEXITY: Mapping[tuple[str, str], float] = {
    ("SimpleSokoban", "grid"): 163.9,
    ("FrozenLake", "grid"): 187.1,
    ("Sudoku", "grid"): 15.5,
    ("WebShop", "grid"): 11.7,
    ("SimpleSokoban", "grid_and_coords"): 19.6,
    ("FrozenLake", "grid_and_coords"): 15.4,
    ("Sudoku", "grid_and_coords"): 7.3,
}
"""(environment tag, state text) -> state perplexity under the paper's base model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How an environment is played at a scale: a shipped configuration and what is changed in it."""

    preset: str
    overrides: tuple[str, ...] = ()


def _tags(tag: str) -> tuple[str, ...]:
    groups = f"{{tags: [{tag}], n_groups: null}}"
    return (f"es_manager.train.env_configs={groups}", f"es_manager.val.env_configs={groups}")


def _lake(tag: str, size: int, slippery: bool) -> tuple[str, ...]:
    options = f"{{size: {size}, p: 0.8, is_slippery: {str(slippery).lower()}}}"
    return (f"custom_envs.{tag}={{env_type: frozen_lake, env_config: {options}}}", *_tags(tag))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What is run: models, how each environment is played, which method stands for the paper's state estimation, and
    about how many hours a stage takes on one device. `state_estimation` and `from_lake` are names of methods; `lakes`
    are the sizes of the lake that a world model is learnt on and of the one it is tried on."""

    models: tuple[str, ...]
    settings: Mapping[str, Setting]
    state_estimation: str
    from_lake: str
    lakes: tuple[str, str]
    hours: Mapping[str, float]
    seeds: int
    common: tuple[str, ...] = ()  # overrides of every experiment


SCALES: Mapping[str, Scale] = {
    "tiny": Scale(
        models=("builtin:tiny",),
        settings={
            "FrozenLake": Setting(preset="demo"),
            # Two turns: games that end only when they are won take several times as long as the lake with five.
            "Sokoban": Setting(
                preset="demo", overrides=(*_tags("SimpleSokoban"), "agent_proxy.max_turn=2", "trainer.test_freq=24")
            ),
            "Sudoku": Setting(
                preset="demo",
                overrides=(
                    *_tags("Sudoku"),
                    "trainer.test_freq=24",
                    "custom_envs.Sudoku.env_config.clues=15",
                    "state_text=grid_and_coords",
                    "agent_proxy.max_turn=2",
                    "actor_rollout_ref.rollout.response_length=110",
                ),
            ),
            "FrozenLake 4x4": Setting(
                preset="demo", overrides=(*_lake("FrozenLakeNoSlip4", 4, slippery=False), "trainer.test_freq=24")
            ),
            "Sokoban, 2 boxes": Setting(preset="demo", overrides=_tags("Sokoban2Boxes")),
        },
        state_estimation="vanilla",
        from_lake="from_FrozenLakeNoSlip",
        lakes=("3x3", "4x4"),
        hours={"selfplay": 0.015, "sft": 0.06, "ppo": 0.05},
        seeds=3,
        # Boards of 3x3 free cells, like the demo's lake, and fewer steps: the grid is to fit into an evening. Every
        # method has the same SFT: the gate only measures.
        common=(
            "gate.max_extra_rounds=0",
            "custom_envs.SimpleSokoban.env_config.dim_x=5",
            "custom_envs.SimpleSokoban.env_config.dim_y=5",
            "trainer.total_training_steps=24",
            "trainer.test_freq=8",
        ),
    ),
    "full": Scale(
        models=(B05, B15),
        settings={
            "FrozenLake": Setting(preset="_3_frozen_lake"),
            "Sokoban": Setting(preset="_2_sokoban"),
            "Sudoku": Setting(preset="_10_sudoku"),
            "FrozenLake 6x6": Setting(preset="_3_frozen_lake", overrides=_lake("FrozenLake6", 6, slippery=True)),
            "Sokoban, 2 boxes": Setting(preset="_2_sokoban", overrides=_tags("Sokoban2Boxes")),
        },
        state_estimation="state_estimation",
        from_lake="from_FrozenLake",
        lakes=("4x4", "6x6"),
        hours={"selfplay": 0.3, "sft": 0.8, "ppo": 12.0},
        seeds=3,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One row of a table: a method on an environment from a model. `paper`: expected Pass@1 and Pass@8 in percent."""

    model: str
    environment: str
    method: str
    paper: tuple[float, float] | None = None

    @property
    def id(self) -> str:
        """Unique in a scale, for `--only` and the results file."""
        return f"{self.model.rpartition('/')[2]}/{self.environment}/{self.method}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A claim of the paper about two methods in the same environment.

    kind: `better`: the first has the higher Pass@1; `no_gain`: the first is not better than the second; `keeps`: Pass@8
    of the first does not fall during PPO (there is no second).
    """

    text: str
    environment: str
    first: str
    second: str = ""
    kind: Literal["better", "no_gain", "keeps"] = "better"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperTable:
    """A named result of the paper."""

    name: str
    title: str
    experiments: tuple[Experiment, ...] = ()
    findings: tuple[Finding, ...] = ()


NAMES: Mapping[str, str] = {
    "main": "Main results: vanilla RL, state-estimation RL, SPA",
    "ablations": "What the world model is made of",
    "sft_epochs": "Length of SFT, and where its data come from",
    "dynamics": "Pass@k over training",
    "transfer": "World models learnt elsewhere",
    "extensions": "Data, groups and losses beyond the paper",
    "perplexity": "State perplexity",
}


def paper_table(name: str, scale_name: str) -> PaperTable:
    """A table at a scale. Raises ConfigError if there is none of this name."""
    if name not in NAMES:
        raise ConfigError(f"there is no table {name!r}; there are {', '.join(NAMES)}, and all")
    if scale_name not in SCALES:
        raise ConfigError(f"there is no scale {scale_name!r}; there are {', '.join(SCALES)}")
    scale = SCALES[scale_name]
    experiments, findings = _CONTENT[name](scale)
    return PaperTable(name=name, title=NAMES[name], experiments=experiments, findings=findings)


Content = tuple[tuple[Experiment, ...], tuple[Finding, ...]]


def _experiment(scale: Scale, model: str, environment: str, method: str) -> Experiment:
    paper = PASS.get((model, method, environment))
    own = scale.state_estimation if method == "state_estimation" else method
    return Experiment(model=model, environment=environment, method=own, paper=paper)


def _main(scale: Scale) -> Content:
    environments = ("Sokoban", "FrozenLake", "Sudoku")
    methods = ("vanilla_grid", "state_estimation", "spa")
    rows = [_experiment(scale, m, e, method) for m in scale.models for e in environments for method in methods]
    if OSS not in scale.models and B15 in scale.models:
        rows += [_experiment(scale, OSS, environment, "vanilla_grid") for environment in environments]
    findings = []
    for environment in environments:
        estimation = scale.state_estimation
        findings += [
            Finding(text="SPA beats state-estimation RL", environment=environment, first="spa", second=estimation),
            Finding(
                text="state-estimation RL beats vanilla RL",
                environment=environment,
                first=estimation,
                second="vanilla_grid",
            ),
        ]
    return tuple(rows), tuple(findings)


def _home(scale: Scale) -> tuple[str, str]:
    """The model and environment of the ablations: 1.5B and Sokoban in the paper, FrozenLake at tiny scale."""
    return scale.models[-1], "Sokoban" if B15 in scale.models else "FrozenLake"


def _rows(scale: Scale, *methods: str) -> tuple[Experiment, ...]:
    model, environment = _home(scale)
    return tuple(_experiment(scale, model, environment, method) for method in methods)


def _ablations(scale: Scale) -> Content:
    home, estimation = _home(scale)[1], scale.state_estimation
    rows = _rows(
        scale, "spa", "state_estimation", "vanilla_wm", "masked_states", "believed_states", "random_coordinates",
        "shuffled_states", "online_world_model",
    )  # fmt: skip
    return rows, (
        Finding(
            text="masking the states in SFT removes the gain",
            environment=home,
            first="masked_states",
            second=estimation,
            kind="no_gain",
        ),
        Finding(text="true states beat masked ones", environment=home, first="spa", second="masked_states"),
        Finding(text="true states beat believed ones", environment=home, first="spa", second="believed_states"),
        Finding(text="true states beat random ones", environment=home, first="spa", second="random_coordinates"),
        Finding(
            text="random coordinates remove the gain",
            environment=home,
            first="random_coordinates",
            second=estimation,
            kind="no_gain",
        ),
        Finding(text="SPA beats online world modelling", environment=home, first="spa", second="online_world_model"),
        Finding(text="true next states beat shuffled ones", environment=home, first="spa", second="shuffled_states"),
        Finding(text="the gain is not the format's alone", environment=home, first="spa", second="vanilla_wm"),
    )


def _sft_epochs(scale: Scale) -> Content:
    home = _home(scale)[1]
    rows = _rows(scale, *(f"sft_epochs_{epochs}" for epochs in range(1, 6)), "spa", "random_data")
    return rows, (
        Finding(text="more SFT epochs help", environment=home, first="sft_epochs_5", second="sft_epochs_1"),
        Finding(text="self-play data beat random data", environment=home, first="spa", second="random_data"),
    )


def _dynamics(scale: Scale) -> Content:
    home = _home(scale)[1]
    return _rows(scale, "vanilla_grid", "state_estimation", "spa"), (
        Finding(text="with SPA Pass@8 does not fall during PPO", environment=home, first="spa", kind="keeps"),
    )


def _transfer(scale: Scale) -> Content:
    model = scale.models[-1]
    small, large = scale.lakes
    lake = f"FrozenLake {large}"
    pairs = (
        (lake, "state_estimation"), (lake, "spa"), (lake, scale.from_lake),
        ("Sokoban, 2 boxes", "state_estimation"), ("Sokoban, 2 boxes", "from_SimpleSokoban"),
        ("FrozenLake", "state_estimation"), ("FrozenLake", "spa"), ("FrozenLake", "from_SimpleSokoban"),
    )  # fmt: skip
    rows = tuple(_experiment(scale, model, environment, method) for environment, method in pairs)
    estimation = scale.state_estimation
    return rows, (
        Finding(
            text=f"a {small} world model lifts {large}",
            environment=lake,
            first=scale.from_lake,
            second=estimation,
        ),
        Finding(
            text="a one-box world model lifts two boxes",
            environment="Sokoban, 2 boxes",
            first="from_SimpleSokoban",
            second=estimation,
        ),
        Finding(
            text="transfer from Sokoban to FrozenLake is limited",
            environment="FrozenLake",
            first="spa",
            second="from_SimpleSokoban",
        ),
    )


def _extensions(scale: Scale) -> Content:
    home = _home(scale)[1]
    rows = _rows(
        scale, "spa", "mixed_data", "expert_data", "mixed_expert_data", "success_data", "states_only",
        "group_size_4", "group_size_16", "no_filter", "answer_only", "base_format", "world_model_format",
    )  # fmt: skip
    return rows, (Finding(text="self-play data beat expert data", environment=home, first="spa", second="expert_data"),)


_CONTENT = {
    "main": _main,
    "ablations": _ablations,
    "sft_epochs": _sft_epochs,
    "dynamics": _dynamics,
    "transfer": _transfer,
    "extensions": _extensions,
    "perplexity": lambda scale: ((), ()),
}
