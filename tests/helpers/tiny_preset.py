"""Overrides that shorten the preset `tiny` to seconds: every stage, with the bundled model."""

SMALL = {
    "trainer.total_training_steps": 1,
    "trainer.test_freq": 1,
    "trainer.save_freq": 1,
    "trainer.logger": [],
    "trainer.device": "cpu",
    "agent_proxy.max_turn": 2,
    "es_manager.train.env_groups": 4,
    "es_manager.train.group_size": 2,
    "es_manager.val.env_groups": 2,
    "es_manager.val.group_size": 2,
    "generate.num_batches": 1,
    "actor_rollout_ref.actor.ppo_num_mini_batches": 1,
    "sft.data.train_batch_size": 4,
    "sft.data.micro_batch_size_per_gpu": 4,
    "sft.trainer.total_training_steps": 1,
    "sft.trainer.test_freq": 1,
    "sft.trainer.save_freq": 1,
    "sft.trainer.eval_episodes": 2,
    "gate.enable": False,
}
