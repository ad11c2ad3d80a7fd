import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.config.load import load_config
from spa.config.schema import schema_keys
from spa.errors import ConfigError

ERRORS = [
    ("trainer.total_trainin_steps=3", "trainer.total_trainin_steps", "did you mean trainer.total_training_steps?"),
    ("optim.lr=3", "optim.lr", "did you mean sft.optim.lr or actor_rollout_ref.actor.optim.lr or critic.optim.lr?"),
    ("max_turn=3", "max_turn", "did you mean agent_proxy.max_turn or custom_envs.*.max_turn?"),
    ("zzz.qqq=3", "zzz.qqq", "unknown key"),
    ("critic.optim.lr=fast", "critic.optim.lr", "must be a number"),
    ("agent_proxy.max_turn=2.5", "agent_proxy.max_turn", "must be a whole number"),
    ("agent_proxy.max_turn=true", "agent_proxy.max_turn", "must be a whole number"),
    ("agent_proxy.enable_think=1", "agent_proxy.enable_think", "must be true or false"),
    ("agent_proxy.max_turn=0", "agent_proxy.max_turn", "must be at least 1"),
    ("algorithm.gamma=1.5", "algorithm.gamma", "must be at most 1"),
    ("actor_rollout_ref.actor.optim.lr=0", "actor_rollout_ref.actor.optim.lr", "must be greater than 0"),
    ("actor_rollout_ref.actor.optim.lr=nan", "actor_rollout_ref.actor.optim.lr", "must be a finite number"),
    ("actor_rollout_ref.actor.optim.betas=[0.9]", "actor_rollout_ref.actor.optim.betas[1]", "missing"),
    ("critic.optim.betas=[1,0.9]", "critic.optim.betas[0]", "must be less than 1"),
    ("trainer.run_dir=s3://bucket/run", "trainer.run_dir", "to copy checkpoints to a URL, set trainer.default_hdfs_dir=URL"),
    ("trainer.default_hdfs_dir=/mnt/copies", "trainer.default_hdfs_dir", "must be a URL such as s3://…"),
    ("state_text=grids", "state_text", "did you mean grid?"),
    ("es_manager.train=3", "es_manager.train", "must be a section with keys"),
    ("custom_envs=[a]", "custom_envs", "must be a mapping"),
    ("custom_envs.Mine={max_tokens: 3}", "custom_envs.Mine.env_type", "missing"),
    ("es_manager.val.env_configs.tags=Sudoku", "es_manager.val.env_configs.tags", "must be a list"),
    ("es_manager.val.env_configs.tags=[Sudoko]", "es_manager.val.env_configs.tags", "did you mean 'Sudoku'?"),
    ("es_manager.val.env_configs.tags=[]", "es_manager.val.env_configs.tags", "must name at least one environment tag"),
    ("custom_envs.FrozenLake.env_type=frozenlake", "custom_envs.FrozenLake.env_type", "did you mean 'frozen_lake'?"),
    ("es_manager.train.env_configs.n_groups=[5]", "es_manager.train.env_configs.n_groups", "change either value, or set n_groups=null"),
    ("es_manager.train.env_configs.n_groups=[16,16]", "es_manager.train.env_configs.n_groups", "give one number per tag, or null for equal shares"),
    ("actor_rollout_ref.actor.ppo_mini_batch_size=128", "actor_rollout_ref.actor.ppo_mini_batch_size", "use at most 64, or play more episodes"),
    ("actor_rollout_ref.actor.ppo_num_mini_batches=65", "actor_rollout_ref.actor.ppo_num_mini_batches", "use at most 64"),
    ("critic.ppo_micro_batch_size_per_gpu=64", "critic.ppo_micro_batch_size_per_gpu", "lower the micro-batch size"),
    ("actor_rollout_ref.rollout.rollout_filter_ratio=1.5", "actor_rollout_ref.rollout.rollout_filter_ratio", "must be at most 1 with rollout_filter_type=std"),
    ("actor_rollout_ref.rollout.rollout_filter_type=top_k_abs", "actor_rollout_ref.rollout.rollout_filter_ratio", "must be at least 1 with rollout_filter_type=top_k_abs, which keeps this number of groups"),
    ("sft.data.micro_batch_size_per_gpu=32", "sft.data.micro_batch_size_per_gpu", "must be at most sft.data.train_batch_size (16)"),
    ("sft.data.val_files=a.parquet", "sft.data.train_files", "must name files, because sft.data.val_files does"),
    ("algorithm.adv_estimator=remax", "algorithm.adv_estimator", "must be one of gae, reinforce_plus_plus, turn_gae, grpo, rloo, reinforce_plus_plus_baseline, turn_rloo, gigpo or an import path package.module:name"),
    ("es_manager.train.group_size=9223372036854775807", "es_manager.train.group_size", "must be at most 9.0072e+15"),
    ("es_manager.val.group_size=1000000", "es_manager.val.group_size", "lower env_groups or group_size"),
    ("es_manager.train.group_size=1", "es_manager.train.group_size", "use 2 or more, or set actor_rollout_ref.rollout.rollout_filter_include_zero=true"),
    ("sft.model.dtype=float16", "sft.model.dtype", "use bfloat16, or float32 on a GPU without bfloat16. actor_rollout_ref.rollout.dtype may be float16"),
    ("trainer.device=gpu", "trainer.device", "must be auto, cpu, cuda or cuda:N"),
    ("trainer.run_dir=-5", "trainer.run_dir", "must be a folder name that is not empty and does not begin with -"),
    ("model_path='${..}'", "model_path", "cannot resolve ${..}: extraneous input '}' expecting {INTER_OPEN, BRACKET_OPEN, ID, '.', INTER_KEY}"),
    ("custom_envs='${custom_envs.FrozenLake}'", "custom_envs", "cannot resolve ${custom_envs.FrozenLake}: the reference is circular"),
    ("actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.kl_loss_coef", "set kl_loss_coef above 0, or use_kl_loss=false"),
    ("actor_rollout_ref.actor.world_loss={tokens:correct_predictions,turns:0.5}", "actor_rollout_ref.actor.world_loss.turns", "must be 1 with world_loss.tokens=correct_predictions: a smaller share selects the states that follow uncertain answers"),
    ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef", "set kl_ctrl.kl_coef above 0, or use_kl_in_reward=false"),
    ("trainer.logger=[console,wandbb]", "trainer.logger", "did you mean 'wandb'?"),
    ("actor_rollout_ref.rollout.name=vlm", "actor_rollout_ref.rollout.name", "did you mean 'vllm'?"),
    ("agent_proxy.action_sep=' '", "agent_proxy.action_sep", "must not be blank, because the separator splits an answer into actions"),
    ("actor_rollout_ref.rollout.response_length=3600", "actor_rollout_ref.rollout.response_length", "lower response_length, or raise max_model_len"),
    ("trainer.resume_mode=resume_path", "trainer.resume_from_path", "must name a checkpoint when trainer.resume_mode is resume_path"),
    ("model_path=${nothing.here}", "model_path", "cannot resolve ${nothing.here}: Interpolation key 'nothing.here' not found"),
    ("seed.train=1,2", "", "write a list as key=[a,b], or quote a string with commas"),
    ("seed.train", "", "write key=value"),
    ("model_path=a=b", "", "quote a value with special characters, for example key='a=b'"),
    ("seed.train.more=1", "seed.train", "correct the override"),
    ("~critic.optm", "critic.optm", "did you mean critic.optim?"),
    ("algorithm.bi_level_gae=true & algorithm.adv_estimator=grpo", "algorithm.bi_level_gae", "needs algorithm.adv_estimator=gae"),
    ("actor_rollout_ref.actor.use_kl_loss=true & actor_rollout_ref.actor.kl_loss_coef=0.1 & actor_rollout_ref.actor.use_ref=false", "actor_rollout_ref.actor.use_ref", "must be true"),
    ("algorithm.adv_estimator=grpo & es_manager.train.group_size=1 & ppo_mini_batch_size=8", "es_manager.train.group_size", "grpo compares the episodes of a group"),
    ("actor_rollout_ref.rollout.name=local & actor_rollout_ref.rollout.tensor_model_parallel_size=2", "", "the engine local cannot split a model over 2 GPUs"),
    ("algorithm.adv_estimator=turn_rloo & actor_rollout_ref.actor.loss_mask=all_after_system", "actor_rollout_ref.actor.loss_mask", "cannot be all_after_system with adv_estimator=turn_rloo"),
    ("ctx_manager.history=false & algorithm.bootstrap_truncated=true", "algorithm.bootstrap_truncated", "must be false with ctx_manager.history=false"),
    ("ctx_manager.history=false & actor_rollout_ref.actor.loss_mask=all_after_system", "actor_rollout_ref.actor.loss_mask", "needs ctx_manager.history=true"),
    ("es_manager.val.env_groups=1 & es_manager.val.env_configs.tags=[Sudoku,Bandit]", "", "1 groups are too few"),
]  # fmt: skip
"""Overrides, separated by &, the key path that the message names, and the remedy or what the value must be."""


@pytest.mark.parametrize(("override", "key", "remedy"), ERRORS, ids=[row[0] for row in ERRORS])
def test_an_error_names_its_key_and_its_remedy(override, key, remedy):
    with pytest.raises(ConfigError) as caught:
        load_config("_3_frozen_lake", override.split(" & "))
    head, *lines = str(caught.value).splitlines()
    assert head.startswith(f"{len(lines)} problem") and "_3_frozen_lake" in head
    assert any(line.startswith(f"  {key}: " if key else "  ") and remedy in line for line in lines)


OF_PRESETS = [
    ("tiny", "generate.states=model & generate.policy=random", "needs generate.policy=self"),
    ("tiny", "generate.states=model & generate.epsilon=0.5", "without generate.mixture and"),
    ("tiny", "generate.states=model & generate.shuffle_next_states=true", "one of the two"),
    ("tiny", "generate.states=random_coords & state_text=grid", "no coordinates"),
    ("tiny", "agent_proxy.world_model_reward.prediction=1 & ctx_manager.mode=base", "need ctx_manager.mode"),
    ("tiny", "generate.mixture={counterfactul: 1}", "counterfactual"),
    ("tiny", "generate.mixture={random: -1}", "must be greater than 0"),
    ("tiny", "ctx_manager.mode=base & imagine.n=4", "imagine.n: planning needs ctx_manager.mode=add_worldmodel"),
    ("tiny", "agent_proxy.response_format=no_prediction & imagine.n=4", "  imagine.n: this setting needs predictions"),
    ("tiny", "agent_proxy.response_format=no_prediction & generate.imagine.n=4", "generate.imagine.n: this setting needs"),
    ("tiny", "imagine.n=4 & imagine.noise_prob=0.5", "imagine.noise_prob: noise_prob above 0 needs dynamics=simulator"),
    ("tiny", "imagine.n=4 & imagine.keep=true", "imagine.keep: keep=true needs a depth of at least 2"),
    ("tiny", "generate.later_batches=2 & generate.rounds=1", "generate.later_batches: later rounds need generate.rounds"),
    ("tiny", "es_manager.train.group_size=8 & generate.group_size=3", "generate.group_size: 3 does not divide"),
    ("tiny", "imagine.proposals=exhaustive & agent_proxy.response_format=prediction_first", "response_format=plan_first"),
    ("tiny", "imagine.proposals=exhaustive & agent_proxy.response_format=plan_first & imagine.n=2", "imagine.n: must be 1"),
    ("tiny", "imagine.proposals=exhaustive & agent_proxy.response_format=plan_first & imagine.dynamics=simulator",
     "imagine.dynamics: cannot be simulator"),
    ("tiny", "sft.data.loss_on=act_ob", "did you mean 'act_obs'"),
    ("base", "agent_proxy.response_format=no_prediction & generate.shuffle_next_states=true", "no_prediction leaves out"),
    ("tiny", "generate.example_format=base & generate.states=random_coords", "base examples contain no states"),
    ("tiny", "generate.example_format=moves & generate.shuffle_next_states=true", "moves examples contain no states"),
    ("base", "agent_proxy.response_format=no_prediction & gate.enable=true", "no_prediction leaves out"),
    ("base", "agent_proxy.response_format=no_prediction & generate.states=model", "no_prediction leaves out"),
    ("base", "trainer.critic_warmup=2 & algorithm.adv_estimator=rloo", "critic_warmup: must be 0 with adv_estimator=rloo"),
    ("smol_frozen_lake", "ctx_manager.history=true", "ctx_manager.history"),
    ("smol_frozen_lake", "ctx_manager.mode=add_worldmodel", "agent_proxy.response_format"),
    ("smol_frozen_lake", "agent_proxy.enable_think=false", "agent_proxy.enable_think"),
    ("smol_frozen_lake", "generate.example_format=world_model", "generate.example_format"),
    ("smol_frozen_lake", "agent_proxy.response_format=plan_first", "agent_proxy.response_format"),
    ("smol_frozen_lake", "algorithm.adv_estimator=grpo", "algorithm.adv_estimator: grpo needs"),
    ("smol_frozen_lake", "algorithm.gamma=0.97", "algorithm.gamma: must be 1"),
    ("smol_frozen_lake", "actor_rollout_ref.actor.world_loss.tokens=env_observations", "needs ctx_manager.history=true"),
]  # fmt: skip
"""Preset, overrides, and what the message has."""


@pytest.mark.parametrize(("preset", "overrides", "words"), OF_PRESETS)
def test_settings_that_exclude_each_other_are_refused(preset, overrides, words):
    with pytest.raises(ConfigError) as caught:
        load_config(preset, overrides.split(" & "))
    assert words in str(caught.value)


def test_a_tag_that_yaml_reads_as_another_type_is_named(tmp_path):
    path = tmp_path / "mine.yaml"
    for tag, read in (("On", "true"), ("1:30", "90")):
        path.write_text(
            f"defaults: [tiny, _self_]\ncustom_envs: {{{tag}: {{env_type: frozen_lake}}}}\n"
        )
        with pytest.raises(
            ConfigError, match=rf"custom_envs: the key {read} is not a string.*quotes"
        ):
            load_config(path)


def test_everything_wrong_is_reported_at_once(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "defaults: [_3_frozen_lake, _self_]\nagent_proxy: {max_turns: 3, enable_think: maybe}\nsead: {train: 1}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["critic.optim.lr=-1", "launcher=slurm"])
    assert str(caught.value).splitlines() == [
        f"5 problems in the configuration {path}:",
        "  launcher: must be one of local, ray, got the string 'slurm'",
        "  agent_proxy.max_turns: unknown key; did you mean agent_proxy.max_turn?",
        "  sead.train: unknown key; did you mean seed.train?",
        "  agent_proxy.enable_think: must be true or false, got the string 'maybe'",
        "  critic.optim.lr: must be greater than 0, got -1",
    ]  # fmt: skip


def test_a_wrong_value_is_blamed_on_the_key_that_has_it():
    with pytest.raises(ConfigError) as caught:
        load_config("base", ["lora.rank=-1"])  # three other keys take their value from it
    assert str(caught.value).splitlines()[1:] == ["  lora.rank: must be at least 0, got -1"]
    with pytest.raises(ConfigError) as caught:
        load_config("base", ["model_path=${model_path}"])
    assert "  model_path: cannot resolve ${model_path}: Recursive interpolation detected" in str(
        caught.value
    )


@settings(max_examples=12)
@given(
    st.sampled_from(sorted({path for path, _, key in schema_keys() if key and "*" not in path})),
    st.text(max_size=20),
)
def test_any_text_as_an_override_loads_or_is_a_config_error(key, value):
    try:
        load_config("base", [f"{key}={value}"])
    except ConfigError as error:
        assert "problem" in str(error)


BROKEN = {
    "a: b: c": "mapping values are not allowed here",
    "defaults: [mine, _self_]\n": "cannot read",
    "model_path: ${..}\n": "cannot read",
    "a: !!python/object:os.system {}\n": "could not determine a constructor",
    "- a\n- b\n": "cannot read",
    "\x00": "cannot read",
    "defaults: [nowhere]\n": "nowhere",
    "defaults: null\n": "defaults must be a list",
    "hydra: null\n": "cannot read",
    "seed: {train: 1}\nseed: {train: 2}\n": "duplicate",
    "a: [1, 2\nb: 3\n": "line 2",
}


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: text[:20].split("\n")[0])
def test_a_broken_file_is_refused_in_one_message(text, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "mine.yaml")
    assert BROKEN[text] in str(caught.value) and len(str(caught.value)) < 1000


def test_files_that_name_each_other_are_refused(tmp_path):
    (tmp_path / "one.yaml").write_text("defaults: [two, _self_]\n")
    (tmp_path / "two.yaml").write_text("defaults: [one, _self_]\n")
    with pytest.raises(ConfigError, match=r"cannot read .*one.yaml"):
        load_config(tmp_path / "one.yaml")


@pytest.mark.parametrize("name", ["../common/other", "/shared/other.yaml", "~/other"])
def test_a_path_among_the_defaults_is_refused_in_plain_words(tmp_path, name):
    path = tmp_path / "mine.yaml"
    path.write_text(f"defaults: ['{name}']\n")
    (tmp_path / "other.yaml").write_text("model_path: x\n")
    with pytest.raises(ConfigError, match="Write only the file name") as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}: `defaults` names '{name}'")


def test_self_play_does_not_care_for_mini_batches():
    overrides = ["es_manager.train.env_groups=1", "es_manager.train.group_size=2"]
    assert load_config("base", overrides, stages=("selfplay",)).es_manager.train.group_size == 2
    with pytest.raises(
        ConfigError, match="ppo_mini_batch_size: a mini-batch of 32 episodes is larger"
    ):
        load_config("base", overrides)


def test_turns_without_a_history_may_be_more_than_the_episodes():
    overrides = ["ctx_manager.history=false", "ctx_manager.mode=base", "ppo_mini_batch_size=128"]
    assert load_config("base", overrides).critic.ppo_mini_batch_size == 128
    with pytest.raises(ConfigError, match="larger than a step"):
        load_config("base", overrides[2:])


def test_a_mini_batch_size_that_a_number_of_them_replaces_is_refused():
    replaced = r"ppo_mini_batch_size: has no effect.*ppo_num_mini_batches is 4; set"
    for key in ("", "actor_rollout_ref.actor.", "critic."):
        with pytest.raises(ConfigError, match=key + replaced):
            load_config("tiny", [f"{key}ppo_mini_batch_size=8"])
    both = ["ppo_mini_batch_size=8", "actor_rollout_ref.actor.ppo_num_mini_batches=null"]
    assert load_config("tiny", both).actor_rollout_ref.actor.ppo_mini_batch_size == 8


@pytest.mark.parametrize(
    "address",
    [
        "me:hunter2@host/v1",
        "me:hunter2/3@host/v1",
        "host/v1?api_key=hunter2",
        "host/v1?a=1&TOKEN=hunter2",
    ],
)
def test_a_password_in_an_address_is_refused_and_not_repeated(address):
    entry = f"{{provider_name: custom, model_name: m, base_url: 'https://{address}'}}"
    with pytest.raises(ConfigError) as caught:
        load_config("base", [f"+model_info.mine={entry}", "model_config.model_name=mine"])
    assert "model_info.mine.base_url: the URL contains a password" in str(
        caught.value
    ) and "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "sftp://me:hunter2@host/runs",
        "https://host/runs?sig=hunter2",
        "https://host/r?X-Amz-Signature=hunter2&a=1",
        "https://host/r?AccountKey=hunter2",
    ],
)
def test_a_password_in_the_place_of_copies_is_refused_and_not_repeated(url):
    with pytest.raises(
        ConfigError, match=r"trainer\.default_hdfs_dir: the URL contains a password or key"
    ) as caught:
        load_config("base", [f"trainer.default_hdfs_dir='{url}'"])
    assert "hunter2" not in str(caught.value)
    for plain in (
        "abfs://box@account.dfs.core.windows.net/runs",
        "sftp://me@host/runs",
        "s3://bucket/a:b@c",
    ):
        assert (
            load_config("base", [f"trainer.default_hdfs_dir='{plain}'"]).trainer.default_hdfs_dir
            == plain
        )


def test_a_secret_of_the_environment_is_refused_and_not_repeated(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    with pytest.raises(ConfigError, match="would save the secret MY_TOKEN") as caught:
        load_config(
            "evaluate_api_llm", ["+model_info.gpt-4o.generation_kwargs.user='${oc.env:MY_TOKEN}'"]
        )
    assert "hunter2" not in str(caught.value)


FIELDS = [
    "api_key",
    "API_KEY",
    "extra_headers",
    "x-api-key",
    "token",
    "password",
    "extra_body.auth.password",
]


@pytest.mark.parametrize("field", FIELDS)
def test_a_key_among_the_fields_of_a_request_is_refused_and_not_repeated(field):
    with pytest.raises(
        ConfigError, match=rf"generation_kwargs\.{field}: spa would save this secret .*api_key_env"
    ) as caught:
        load_config("evaluate_api_llm", [f"model_info.gpt-4o.generation_kwargs.{field}=hunter2"])
    assert "hunter2" not in str(caught.value)
