"""Every key of `metrics.jsonl` and `timings.jsonl`: meaning, unit, healthy range, and what to do
when it is off."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """One key, or a pattern of keys: `*` matches any text without a slash."""

    key: str
    meaning: str
    unit: str
    healthy: str  # range or direction
    action: str  # what to do when it is off


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Metrics of one part of a run. Each key follows one of the `prefixes`."""

    title: str
    about: str
    metrics: tuple[Metric, ...]
    prefixes: tuple[str, ...] = ("",)

    def patterns(self, metric: Metric) -> tuple[str, ...]:
        """The full patterns of a metric's key."""
        return tuple(prefix + metric.key for prefix in self.prefixes)


EPISODE_PREFIXES = ("selfplay/", "val/", "train/*/", "val-env/*/")
"""Self-play; validation of SFT; rollouts and validation of PPO, per environment tag."""

EPISODES = Group(
    title="Episodes",
    about=(
        "Stage 1 logs these keys of its batch under `selfplay/`. Stage 2 logs them of its held-out puzzles under "
        "`val/`. PPO logs them per environment tag: `train/TAG/` for rollouts and `val-env/TAG/` for validation. "
        "Failed episodes count only in `errors`."
    ),
    prefixes=EPISODE_PREFIXES,
    metrics=(
        Metric(
            "success",
            "share of episodes that reach the goal",
            "0 to 1",
            "rises in PPO",
            "read `format_rate` and `rollout/groups_zero_std`; start from a better model or an easier game",
        ),
        Metric(
            "pass@*",
            "unbiased Pass@k: chance that at least one of k attempts at a puzzle succeeds, averaged over puzzles",
            "0 to 1",
            "rises; the gap between pass@1 and pass@8 is what PPO can gain",
            "if pass@8 falls while pass@1 rises, lower the learning rate or raise the entropy bonus",
        ),
        Metric(
            "pass@any",
            "share of puzzles that at least one attempt solves",
            "0 to 1",
            "above pass@1",
            "0: no group has a learning signal; use an easier game or a better model",
        ),
        Metric(
            "episodes", "episodes that ended without an error", "count", "constant", "see `errors`"
        ),
        Metric(
            "errors",
            "failed episodes, in PPO only; no update uses them",
            "count",
            "0",
            "read the reasons in `log.txt`; see [failures](failures.md)",
        ),
        Metric(
            "score",
            "mean of rewards and penalties per episode",
            "reward",
            "rises",
            "if it rises while `success` does not, check the reward",
        ),
        Metric(
            "reward",
            "mean reward of the environment per episode, without penalties",
            "reward",
            "rises",
            "compare with `score`: the difference is the format penalty",
        ),
        Metric(
            "reward/*",
            "mean per episode of one of your reward functions, before its weight",
            "reward",
            "",
            "if one term outweighs the others, lower its weight",
        ),
        Metric(
            "num_actions",
            "executed actions per episode",
            "count",
            "falls when shorter solutions are learned",
            "at the budget of actions: the agent wanders; allow more turns",
        ),
        Metric(
            "num_turns",
            "model responses per episode",
            "count",
            "below `max_turn`",
            "at `max_turn`: allow more turns or more actions per turn",
        ),
        Metric(
            "action_is_valid",
            "share of executed actions that the rules allow",
            "0 to 1",
            "near 1",
            "read episodes: does the prompt name all actions?",
        ),
        Metric(
            "action_is_effective",
            "share of executed actions that change the state",
            "0 to 1",
            "rises",
            "low: the agent walks into walls; its observations may be wrong",
        ),
        Metric(
            "format_rate",
            "share of responses in the requested format",
            "0 to 1",
            "above 0.9",
            "more SFT, or a format penalty; in PPO see the warning `falling_format`",
        ),
        Metric(
            "completions/clipped_ratio",
            "share of responses that hit the length limit",
            "0 to 1",
            "below 0.1",
            "raise `response_length`, or train the format with SFT",
        ),
        Metric(
            "repetition",
            "share of responses that hit the limit while repeating the same words",
            "0 to 1",
            "near 0",
            "lower the learning rate, use an earlier checkpoint, or raise the entropy bonus",
        ),
        Metric(
            "response_length",
            "sampled tokens per episode",
            "tokens",
            "stable",
            "a steady rise towards the limit often precedes collapse; read episodes",
        ),
    ),
)

WORLD_MODEL = Group(
    title="World model",
    about=(
        "The same prefixes, for episodes in the world-model format. A prediction is compared with the state that the "
        "model's own action led to. A malformed response counts as wrong."
    ),
    prefixes=EPISODE_PREFIXES,
    metrics=(
        Metric(
            "wm/turns",
            "responses that were scored",
            "count",
            "above 100 for stable shares",
            "absent: no episode used the world-model format (`ctx_manager.mode`)",
        ),
        Metric(
            "wm/format_rate",
            "share of these responses in the format",
            "0 to 1",
            "above 0.8 (the gate's limit)",
            "more SFT steps",
        ),
        Metric(
            "wm/obs_exact",
            "share of observations equal to the true state",
            "0 to 1",
            "above 0.8 (the gate's limit)",
            "more SFT, or a shorter `state_text`; in PPO keep `world_loss` on",
        ),
        Metric(
            "wm/prediction_em",
            "share of predictions equal to the true next state",
            "0 to 1",
            "above `wm/copy_exact`",
            "more SFT steps or examples, or fewer actions per turn",
        ),
        Metric(
            "wm/pred_unit_acc",
            "share of cells and words predicted correctly",
            "0 to 1",
            "near 1",
            "high even for a model that copies: read `wm/changed_f1`",
        ),
        Metric(
            "wm/changed_acc",
            "share of changed cells predicted correctly (recall)",
            "0 to 1",
            "rises",
            "low: the model copies the state",
        ),
        Metric(
            "wm/changed_f1",
            "F1 of predicted changes; copying scores 0",
            "0 to 1",
            "above 0.1 (the gate's limit)",
            "as for `wm/prediction_em`",
        ),
        Metric(
            "wm/copy_exact",
            "copy baseline: what repeating the shown state would score as `wm/prediction_em`",
            "0 to 1",
            "below `wm/prediction_em`",
            "high: most actions change nothing; read `action_is_effective`",
        ),
    ),
)

SEARCH = Group(
    title="Written search",
    about=(
        "The same prefixes except `selfplay/`, for responses that write a search "
        "(`agent_proxy.response_format=search` or `best_first`) or a derivation, whose states are "
        "cells. Each line is scored by the game. The classes of failure add up, with "
        "`search/exact`, to 1."
    ),
    prefixes=EPISODE_PREFIXES,
    metrics=(
        Metric(
            "search/exact",
            "share of searches without an error",
            "0 to 1",
            "near 1 after SFT",
            "more examples",
        ),
        Metric(
            "search/move",
            "share of written transitions that are true; of a derivation, of lines whose conclusion follows from the "
            "lines before",
            "0 to 1",
            "near 1",
            "the world model is the bottleneck: more examples of transitions",
        ),
        Metric(
            "search/status",
            "share of moves whose mark (goal, hole, seen or none; in a best-first search also the estimate) is "
            "correct; of a derivation, of lines that assign a value if one alone fits",
            "0 to 1",
            "near 1",
            "more examples",
        ),
        Metric(
            "search/next",
            "share of lines that expand the next open state",
            "0 to 1",
            "near 1",
            "more examples",
        ),
        Metric(
            "search/path",
            "share of paths that match the search so far",
            "0 to 1",
            "near 1",
            "more examples",
        ),
        Metric(
            "search/note",
            "of a best-first search: share of lines with the right pushes and cell after the state",
            "0 to 1",
            "near 1",
            "more examples",
        ),
        Metric(
            "search/fact",
            "of a derivation: share of neighbours whose written value is true; of a best-first search: share of "
            "words in the fact lines that are correct",
            "0 to 1",
            "near 1",
            "more examples",
        ),
        Metric(
            "search/candidate",
            "of a derivation: share of lines whose values that fit follow from the line's own facts",
            "0 to 1",
            "near 1",
            "more examples",
        ),
        Metric(
            "search/open",
            "of a derivation: share of correct lists of open cells",
            "0 to 1",
            "near 1",
            "more examples",
        ),
        Metric(
            "search/skipped",
            "first error: expands an open state that is not next",
            "0 to 1",
            "0",
            "more examples",
        ),
        Metric(
            "search/never_found",
            "first error: expands a state that no line found",
            "0 to 1",
            "0",
            "more examples",
        ),
        Metric(
            "search/expanded_again",
            "first error: expands a state twice",
            "0 to 1",
            "0",
            "more examples",
        ),
        Metric(
            "search/wrong_path",
            "first error: the path to a state or to the goal",
            "0 to 1",
            "0",
            "more examples",
        ),
        Metric(
            "search/wrong_move",
            "first error: a transition is false or missing",
            "0 to 1",
            "0",
            "more examples of transitions",
        ),
        Metric(
            "search/wrong_status",
            "first error: a goal, hole or seen mark",
            "0 to 1",
            "0",
            "more examples",
        ),
        Metric(
            "search/wrong_open",
            "first error: the list of open states",
            "0 to 1",
            "0",
            "more examples",
        ),
        Metric(
            "search/wrong_fact",
            "first error: the value of a neighbour, the map, a push, a dead cell or the next cell to push from is "
            "false or missing",
            "0 to 1",
            "0",
            "more examples",
        ),
        Metric(
            "search/no_goal",
            "first error: the search ends before it finds a goal",
            "0 to 1",
            "0",
            "more examples",
        ),
        Metric(
            "search/over_limit",
            "first error: correct so far, cut off by the length limit",
            "0 to 1",
            "0",
            "raise `response_length`",
        ),
        Metric(
            "search/unreadable",
            "first error: a line that is no line of a search",
            "0 to 1",
            "0",
            "more SFT steps",
        ),
    ),
)

EXAMPLES = Group(
    title="Search examples",
    about="Stage 1 logs one line when it writes examples of searches (`generate.search`).",
    metrics=(
        Metric(
            "search/examples",
            "examples written",
            "count",
            "`generate.search.examples` plus validation",
            "see `search/dropped`",
        ),
        Metric(
            "search/dropped",
            "puzzles without an example",
            "count",
            "small",
            "`summary.json` lists the reasons",
        ),
        Metric(
            "search/questions", "transitions that the learned model was asked for", "count", "", ""
        ),
        Metric("search/tokens", "tokens that it sampled for them", "count", "", ""),
        Metric(
            "search/move_right",
            "share of the learned model's transitions that are true",
            "0 to 1",
            "near 1",
            "train the model longer on single moves",
        ),
        Metric(
            "search/search_right",
            "share of its searches equal to the search in the game",
            "0 to 1",
            "near 1",
            "train the model longer on single moves",
        ),
    ),
)

SFT = Group(
    title="SFT",
    about="Stage 2 logs one line per optimizer step; keys under `val/` appear every `sft.trainer.test_freq` steps.",
    metrics=(
        Metric(
            "train/loss",
            "negative log-likelihood of the trained tokens",
            "nats per token",
            "falls",
            "flat: raise `sft.optim.lr`; not finite: lower it",
        ),
        Metric(
            "train/entropy",
            "entropy of the model at the trained tokens",
            "nats per token",
            "falls",
            "near 0 long before the end: fewer steps or more examples",
        ),
        Metric("train/tokens", "trained tokens of the batch", "tokens", "stable", ""),
        Metric(
            "train/examples",
            "examples of the batch; merged turns of one episode count each",
            "count",
            "`sft.data.train_batch_size`",
            "",
        ),
        Metric(
            "train/lr",
            "learning rate of the optimizer's first parameter group (Muon's, if used)",
            "",
            "follows the schedule",
            "",
        ),
        Metric(
            "train/grad_norm",
            "gradient norm before clipping; -1 if no step has a finite one",
            "",
            "stable, below 10",
            "lower `sft.optim.lr`",
        ),
        Metric(
            "train/nonfinite_steps",
            "1 if the step was skipped because loss or gradient was not finite",
            "0 or 1",
            "0",
            "lower `sft.optim.lr`, or train in float32",
        ),
        Metric(
            "val/loss",
            "negative log-likelihood on validation examples",
            "nats per token",
            "falls",
            "rises while `train/loss` falls: overfitting; use more examples",
        ),
        Metric(
            "val/teacher_forced/*",
            "share of the parts of this kind that are right, given the true text before them: `observation`, "
            "`prediction`, `answer`; in a written search `next` (state to expand), `way` (what a move passes), `move`, "
            "`status`, `open`, `path`; in a derivation also `fact`, `candidate`, `value`; in a best-first search also "
            "`place`, `cell`, `fact`, `note`, `estimate`; in a format without kinds `word`",
            "0 to 1",
            "rises to 1",
            "one that stays low is the bottleneck: write what it depends on next to it",
        ),
        Metric(
            "val/sampled_nll",
            "entropy estimate: negative log-prob of the tokens sampled on held-out puzzles",
            "nats per token",
            "above `gate.entropy_min`",
            "fewer SFT steps or more varied data",
        ),
        Metric(
            "val/puzzles",
            "held-out puzzles on which the model is measured",
            "count",
            "`sft.trainer.eval_episodes`",
            "",
        ),
        Metric(
            "val/puzzles_seen",
            "of these, puzzles that also occur in the training data",
            "count",
            "0",
            "the game has too few puzzles; accuracy is not held out",
        ),
    ),
)

ROLLOUT = Group(
    title="PPO rollout",
    about=(
        "Logged after each PPO step's rollouts, before any update. Groups are the episodes of one puzzle. Steps that "
        "keep no group have no keys beyond the filter's."
    ),
    metrics=(
        Metric(
            "rollout/in_group_std",
            "standard deviation of the score within a group, mean over groups",
            "reward",
            "above 0.1 of its first values",
            "see the warning `collapsed_spread`: raise entropy or temperature",
        ),
        Metric(
            "rollout/in_group_max",
            "best score of a group, mean over groups",
            "reward",
            "above `rollout/in_group_mean`",
            "equal to the mean: nothing to learn",
        ),
        Metric(
            "rollout/in_group_mean",
            "mean score of a group, mean over groups",
            "reward",
            "rises",
            "see `success`",
        ),
        Metric(
            "rollout/chosen_in_group_std",
            "the same standard deviation over the groups that the filter kept",
            "reward",
            "above `rollout/in_group_std`",
            "",
        ),
        Metric(
            "rollout/chosen_in_group_max", "the same maximum over the kept groups", "reward", "", ""
        ),
        Metric(
            "rollout/chosen_in_group_mean",
            "the same mean over the kept groups",
            "reward",
            "0.2 to 0.8 of the range",
            "near an end: puzzles are too hard or too easy",
        ),
        Metric(
            "rollout/kept_count",
            "groups that the filter kept",
            "count",
            "above 0",
            "0: the step updates nothing; see the warning `nothing_to_learn`",
        ),
        Metric(
            "rollout/kept_ratio",
            "kept groups as a share of all",
            "0 to 1",
            "near `rollout_filter_ratio`",
            "lower: too few groups differ",
        ),
        Metric(
            "rollout/groups_zero_std",
            "groups with zero reward variance",
            "count",
            "below half of the groups",
            "larger groups, other puzzles, or a higher temperature",
        ),
        Metric(
            "rollout/mismatch_kl",
            "KL divergence between sampler and trainer on the same weights (k3 estimate)",
            "nats per token",
            "below `trainer.kl_warn` (0.01)",
            "check precision, temperature, top_k and top_p of the engine; PPO stops at step 1 above "
            "`trainer.kl_stop` (0.1)",
        ),
        Metric(
            "rollout/logprob_gap_max",
            "largest difference of one token's log-prob between sampler and trainer",
            "nats",
            "below 1",
            "as above; a few outliers are normal in bfloat16",
        ),
        Metric(
            "rollout/old_log_prob",
            "mean log-prob of the sampled tokens of `loss_mask` under the policy before the update",
            "nats per token",
            "slowly towards 0",
            "a fast rise is entropy collapse: lower the learning rate",
        ),
        Metric(
            "rollout/is_mean",
            "mean importance weight trainer / sampler",
            "",
            "near 1",
            "turn `algorithm.rollout_correction` on",
        ),
        Metric(
            "rollout/is_max",
            "largest importance weight",
            "",
            "below `rollout_correction.cap`",
            "turn `algorithm.rollout_correction` on",
        ),
        Metric(
            "rollout/is_outside",
            "share of importance weights outside the limits",
            "0 to 1",
            "near 0",
            "turn `algorithm.rollout_correction` on",
        ),
        Metric(
            "rollout/is_ess",
            "effective sample size of the weights, as a share",
            "0 to 1",
            "near 1",
            "turn `algorithm.rollout_correction` on",
        ),
        Metric(
            "rollout/world_tokens_ratio",
            "tokens under the world loss, relative to tokens under the policy loss",
            "",
            "above 0 with `world_loss` on",
            "0: no correct state to reinforce; more SFT",
        ),
    ),
)

ACTOR = Group(
    title="Actor",
    about=(
        "Over the optimizer steps of one PPO step: losses and gradient norm are means over steps, shares, entropy and "
        "KL means over tokens, `nonfinite_steps` a sum. A policy loss of your own logs each further sum that it "
        "returns as `actor/NAME`."
    ),
    metrics=(
        Metric(
            "actor/loss",
            "total loss: policy, world, replay, entropy and KL terms",
            "",
            "no direction",
            "judge by `success`, not by this value",
        ),
        Metric(
            "actor/entropy",
            "entropy at the tokens of `loss_mask`",
            "nats per token",
            "falls slowly",
            "below 0.05 early: raise `entropy_coeff` or lower the learning rate",
        ),
        Metric(
            "actor/pg_clipfrac",
            "share of tokens whose ratio is clipped",
            "0 to 1",
            "below 0.03",
            "lower the learning rate or use fewer mini-batches",
        ),
        Metric(
            "actor/pg_clipfrac_lower",
            "share of tokens under the dual clip (`clip_ratio_c`)",
            "0 to 1",
            "near 0",
            "lower the learning rate",
        ),
        Metric(
            "actor/ppo_kl",
            "mean of old minus new log-prob: how far the update moved",
            "nats per token",
            "below 0.05",
            "lower the learning rate or use fewer mini-batches",
        ),
        Metric(
            "actor/kl_loss",
            "KL divergence to the reference, with `use_kl_loss`",
            "nats per token",
            "slow rise",
            "if it runs away, set `kl_loss_type=low_var_kl` and raise `kl_loss_coef`; the gradient of "
            "`kl` is 0 on average",
        ),
        Metric(
            "actor/world_loss",
            "mean loss on the world's tokens, before its coefficient",
            "nats per token",
            "falls",
            "see [methods](methods.md)",
        ),
        Metric(
            "actor/replay_loss",
            "mean loss on replayed examples, before its coefficient",
            "nats per token",
            "falls",
            "raise `actor.replay.examples` or `coef` if predictions fall",
        ),
        Metric(
            "actor/replay_tokens", "trained tokens of replayed examples", "tokens", "stable", ""
        ),
        Metric(
            "actor/reward_kl_penalty",
            "mean KL estimate that is subtracted from rewards",
            "nats per token",
            "slow rise",
            "raise `algorithm.kl_ctrl.kl_coef`",
        ),
        Metric(
            "actor/reward_kl_coef", "its coefficient", "", "constant, or adapts to the target", ""
        ),
        Metric(
            "actor/lr", "learning rate of the first parameter group", "", "follows the schedule", ""
        ),
        Metric(
            "actor/grad_norm",
            "gradient norm before clipping; -1 if no step has a finite one",
            "",
            "stable, below 10",
            "spikes: lower the learning rate",
        ),
        Metric(
            "actor/nonfinite_steps",
            "optimizer steps skipped because loss or gradient was not finite",
            "count",
            "0",
            "lower the learning rate, or use float32; PPO stops after three in a row",
        ),
    ),
)

CRITIC = Group(
    title="Critic and advantages",
    about="Returns and advantages are logged for every estimator, the other keys for estimators with a critic.",
    metrics=(
        Metric(
            "critic/returns/mean",
            "mean return over the sampled tokens of `loss_mask`",
            "reward",
            "rises",
            "see `score`",
        ),
        Metric(
            "critic/advantages/mean",
            "mean advantage before whitening",
            "reward",
            "near 0 with a good baseline",
            "far from 0: the baseline is weak; see [estimator bias](methods.md#estimators-and-bias)",
        ),
        Metric(
            "critic/advantages/imagined",
            "mean size of the advantage added for predicted outcomes",
            "",
            "small against 1",
            "lower `algorithm.imagined_advantage`",
        ),
        Metric(
            "critic/values/mean",
            "mean value before the update",
            "reward",
            "near `critic/returns/mean`",
            "more critic steps (`trainer.critic_warmup`)",
        ),
        Metric(
            "critic/vf_explained_var",
            "share of the returns' variance that the critic explains",
            "up to 1",
            "above 0.2",
            "near 0 or below: the critic adds noise; use an estimator without one",
        ),
        Metric("critic/loss", "value loss", "reward²", "falls", "lower or raise `critic.optim.lr`"),
        Metric(
            "critic/vf_clipfrac",
            "share of tokens whose value is clipped",
            "0 to 1",
            "below 0.2",
            "raise `critic.cliprange_value`, or switch it off with null",
        ),
        Metric(
            "critic/vpred_mean",
            "mean value during the update",
            "reward",
            "near `critic/returns/mean`",
            "as for `critic/values/mean`",
        ),
        Metric(
            "critic/lr",
            "learning rate of the first parameter group",
            "",
            "follows the schedule",
            "",
        ),
        Metric(
            "critic/grad_norm",
            "gradient norm before clipping; -1 if no step has a finite one",
            "",
            "stable",
            "spikes: lower `critic.optim.lr`",
        ),
        Metric(
            "critic/nonfinite_steps",
            "optimizer steps skipped because loss or gradient was not finite",
            "count",
            "0",
            "lower `critic.optim.lr`",
        ),
    ),
)

TIMINGS = Group(
    title="Timings",
    about=(
        "These keys are in `timings.jsonl`, because they differ from run to run. Equal seeds give an equal "
        "`metrics.jsonl`."
    ),
    metrics=(
        Metric(
            "timing_s/selfplay",
            "self-play of one batch",
            "seconds",
            "",
            "raise `env_workers` or use vLLM",
        ),
        Metric("timing_s/examples", "writing search examples", "seconds", "", ""),
        Metric(
            "timing_s/rollout",
            "rollouts of one PPO step",
            "seconds",
            "often the largest part",
            "use vLLM; see [performance](scaling.md)",
        ),
        Metric(
            "timing_s/score", "log-probs of policy and reference, and values", "seconds", "", ""
        ),
        Metric(
            "timing_s/update",
            "optimizer steps",
            "seconds",
            "",
            "larger micro-batches; no gradient checkpointing",
        ),
        Metric(
            "timing_s/validate",
            "validation",
            "seconds",
            "",
            "raise `test_freq`, or play fewer groups",
        ),
        Metric(
            "perf/throughput",
            "tokens per second since the last line, prompts included",
            "tokens/s",
            "stable",
            "see [performance](scaling.md)",
        ),
        Metric(
            "perf/memory_gb",
            "largest main memory of the process so far",
            "GB",
            "flat after the first steps",
            "smaller micro-batches; see [scaling](scaling.md)",
        ),
        Metric(
            "perf/load",
            "load average of the machine over one minute",
            "processes",
            "at most the cores",
            "stop other work on the machine",
        ),
        Metric(
            "elapsed_s", "time since the last line", "seconds", "stable", "find the part that grew"
        ),
        Metric("unix_time", "time of day", "seconds", "", ""),
        Metric("total_steps", "steps of the stage, where they are known", "steps", "", ""),
    ),
)

STEP = Group(
    title="Step",
    about="Every line of both files has it.",
    metrics=(
        Metric(
            "step",
            "self-play batch, optimizer step of SFT, or PPO step; 0 is the validation before PPO",
            "count",
            "",
            "",
        ),
    ),
)

GROUPS = (STEP, EPISODES, WORLD_MODEL, SEARCH, EXAMPLES, SFT, ROLLOUT, ACTOR, CRITIC, TIMINGS)
