"""Rules that diagnose why the reward does not rise. All functions are pure.

Two commands share the rules: `spa doctor RUN` reads the metrics of a run, and `spa diagnose` reads
rollouts. Both provide rows with the keys of `metrics.jsonl`. A rule returns a finding, or None.

The limits follow the healthy ranges in the metrics reference. The limits for updates are about a
factor of 4 outside the values of 29 recorded healthy runs. In these runs, the mean absolute
`actor/ppo_kl` is 0.00006 to 0.006, its peak is at most 0.058, and the mean clipped share is at most
0.005.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from spa.run.files import UNMEASURED

Row = Mapping[str, float]
Settings = Mapping[str, Any]

# Limits of the rules. FORMAT, KEPT, ENTROPY, ENTROPY_NARROWED, ENTROPY_LEFT, KL_HELD, KL_LOW and
# SMALL_SCORE are lower limits of healthy values. The other limits are upper limits.
ERRORS = 0.5  # share of episodes that failed with an error
CUT_OFF = 0.1  # share of responses that hit the length limit
FORMAT = 0.9  # share of well-formed responses
ZERO_VARIANCE = 0.75  # share of groups in which all episodes have the same score
KEPT = 0.2  # share of the groups with reward variance that the filter keeps
SOLVED = 0.9  # success rate at which equal scores in a group and low entropy are no fault
ENTROPY = 0.02  # nats per token; responses that copy states have little more than this
ENTROPY_NARROWED = 0.1  # the same, with a sampling setting that narrows the policy
ENTROPY_LEFT = 0.25  # share of the first entropy
ENTROPY_GROWTH = 2.0  # multiple of the first entropy
TERM_SHARE = 0.5  # share of the loss that is due to an entropy bonus or a KL penalty
TERM_SIZE = 0.05  # size below which such a term does not outweigh normalized advantages
KL_WEIGHT = 1.0  # coefficient of a KL penalty in the loss; usual values are 0.001 to 0.1
KL_HELD = 0.01  # nats per token; a policy that learns moves further from the reference
ALL_ACTIONS = 0.99  # share of the allowed actions that episodes use on average
MOST_ACTIONS = 0.85  # the same, if the optimal policy is known
SOLVABLE = 0.1  # share of puzzles that more actions would make solvable
KL_HIGH = 0.25  # nats per token within one step, at any step
KL_OFTEN = 0.05  # nats per token, median of the last steps
KL_LOW = 1.5e-5  # nats per token, mean absolute value
CLIPPED = 0.03  # share of tokens whose ratio is clipped
GRADIENT_GROWTH = 20.0  # multiple of the median of the first steps
LARGE_SCORE = 10.0  # standard deviation of scores within groups
SMALL_SCORE = 0.01
MISMATCH = 0.01  # nats per token, unless trainer.kl_warn is lower
FLAT_LOSS = 0.9  # share of the first SFT loss
# Minimum number of last steps to use, and the number of first steps for the gradient norm.
LEAST_RECENT = 3

LR = "actor_rollout_ref.actor.optim.lr"
FEW_ACTIONS = "Too few actions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause of a low reward.

    `change` is the setting to change and its new value, or "" if the settings are unknown. `rank`
    orders findings: a cause has a lower rank than its effects. So faults that are visible at the
    first step, before any update, have lower ranks than faults of the updates.
    """

    rank: float
    title: str
    metric: str
    value: str
    limit: str
    effect: str
    change: str = ""

    @property
    def fact(self) -> str:
        """The measurement and its effect, without a final period."""
        return f"{self.metric} is {self.value} (limit: {self.limit}), so {self.effect}"

    @property
    def text(self) -> str:
        """The finding in up to three sentences."""
        change = f" Set {self.change}." if self.change else ""
        return f"{self.title}: {self.fact}.{change}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule. `needs` is the metric that the rule requires, and `missing` the advice on logging
    that metric."""

    title: str
    rule: Callable[[Sequence[Row], Settings], Finding | None]
    needs: str
    missing: str


def pooled(row: Row, name: str) -> float | None:
    """The mean of `train/TAG/<name>` over the environment tags, weighted by episodes. None if no
    tag has it."""
    tags = [
        key.removesuffix("/episodes")
        for key in row
        if key.startswith("train/") and key.endswith("/episodes")
    ]
    known = [tag for tag in tags if f"{tag}/{name}" in row]
    total = sum(row[f"{tag}/episodes"] for tag in known)
    weighted = sum(row[f"{tag}/{name}"] * row[f"{tag}/episodes"] for tag in known)
    return weighted / total if total else None


def column(rows: Sequence[Row], key: str) -> list[float]:
    """The values of a metric, from all rows that have it. A key that begins with `*/` is averaged
    over tags by `pooled`."""
    values = [pooled(row, key[2:]) if key.startswith("*/") else row.get(key) for row in rows]
    return [value for value in values if value is not None]


def recent(values: Sequence[float]) -> list[float]:
    """The last quarter of the values, or the last `LEAST_RECENT` if that is more."""
    return list(values[-max(LEAST_RECENT, len(values) // 4) :])


def now(rows: Sequence[Row], key: str) -> float | None:
    """The median of a metric over the last steps, or None if no row has it."""
    values = recent(column(rows, key))
    return median(values) if values else None


def first(rows: Sequence[Row], key: str) -> float | None:
    """The first value of a metric, or None if there is none."""
    return next(iter(column(rows, key)), None)


def to(settings: Settings, key: str, value: object) -> str:
    """Format a change of a setting as `KEY=VALUE (now OLD)`. Empty if the settings are unknown."""
    if not settings:
        return ""
    old = settings.get(key)
    return f"{key}={_short(value)}" + (f" (now {_short(old)})" if old is not None else "")


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.1 else f"{100 * share:.2g} %"


def _outweighs(rows: Sequence[Row], metric: str, weight: float) -> tuple[float, float] | None:
    """Return the median sizes of a loss term and of `actor/loss` over the last steps if the term is
    most of the loss, else None."""
    terms = [weight * abs(value) for value in recent(column(rows, metric))]
    losses = [abs(value) for value in recent(column(rows, "actor/loss"))]
    if not terms or not losses:
        return None
    term, loss = median(terms), median(losses)
    return (term, loss) if term > max(TERM_SIZE, TERM_SHARE * loss) else None


def _lower_rate(settings: Settings) -> str:
    rate = settings.get(LR)
    return to(settings, LR, rate / 10 if isinstance(rate, float) else 1e-6)


def errors(rows: Sequence[Row], settings: Settings) -> Finding | None:
    """Detect episodes that fail with an error."""
    sums = [(_sum(row, "episodes"), _sum(row, "errors")) for row in rows]
    shares = recent([failed / (failed + played) for played, failed in sums if failed + played])
    if not shares or median(shares) < ERRORS:
        return None
    return Finding(
        rank=0,
        title="Failing episodes",
        metric="train/TAG/errors",
        value=f"{_percent(median(shares))} of the episodes",
        limit=_percent(ERRORS),
        effect="most of the sampled episodes update nothing. Read the reasons in log.txt",
        change=to(settings, "es_manager.env_timeout_s", 600),
    )


def _sum(row: Row, name: str) -> float:
    return sum(
        value for key, value in row.items() if key.startswith("train/") and key.endswith(f"/{name}")
    )


def rate_too_high(rows: Sequence[Row], settings: Settings) -> Finding | None:
    """Detect updates that move the policy so far that it loses its abilities."""
    kl = [abs(value) for value in column(rows, "actor/ppo_kl")]
    bad = sum(column(rows, "actor/nonfinite_steps"))
    norms = column(rows, "actor/grad_norm")
    start = median(norms[:LEAST_RECENT]) if norms else 0.0
    well_formed = column(rows, "*/format_rate")
    lost = max(well_formed, default=0.0) - min(recent(well_formed), default=0.0)
    measured = [
        (bad > 0, "actor/nonfinite_steps", f"{bad:g}", "0"),
        (
            bool(kl) and max(kl) > KL_HIGH,
            "actor/ppo_kl",
            f"up to {max(kl, default=0):.2g} nats per token",
            f"{KL_HIGH:g}",
        ),
        (
            bool(kl) and median(recent(kl)) > KL_OFTEN,
            "actor/ppo_kl",
            f"{median(recent(kl) or [0]):.2g} nats per token",
            f"{KL_OFTEN:g}",
        ),
        (
            len(norms) > LEAST_RECENT and start > 0 and max(norms) > GRADIENT_GROWTH * start,
            "actor/grad_norm",
            f"up to {max(norms, default=0):.3g}, from {start:.2g}",
            f"{GRADIENT_GROWTH:g} times the first steps",
        ),
        # With one mini-batch per step, the KL of the update is always 0, so also compare the format
        # rate.
        (
            lost > 0.5 and median(recent(well_formed)) < 0.5,
            "train/TAG/format_rate",
            f"{_percent(min(recent(well_formed), default=0))}, after "
            f"{_percent(max(well_formed, default=0))}",
            "a fall by 50 points",
        ),
    ]
    for reached, metric, value, limit in measured:
        if reached:
            return Finding(
                rank=1,
                title="Learning rate too high",
                metric=metric,
                value=value,
                limit=limit,
                effect="one step changes the policy more than its samples can justify",
                change=_lower_rate(settings),
            )
    return None


def mismatch(rows: Sequence[Row], settings: Settings) -> Finding | None:
    """Detect a sampler whose log-probs differ from the trainer's."""
    kl = column(rows, "rollout/mismatch_kl")
    limit = min(settings.get("trainer.kl_warn", MISMATCH), MISMATCH)
    if not kl or median(kl) <= limit:
        return None
    engine = settings.get("actor_rollout_ref.rollout.name", "auto")
    dtype = settings.get("actor_rollout_ref.rollout.dtype", "auto")
    trained = settings.get("actor_rollout_ref.model.dtype", "auto")
    if engine not in ("auto", "local", "vllm"):
        change = to(settings, "actor_rollout_ref.rollout.name", "local")
    elif dtype != trained:
        change = to(settings, "actor_rollout_ref.rollout.dtype", trained)
    else:
        change = to(settings, "algorithm.rollout_correction.level", "token")
    return Finding(
        rank=0.6 if kl[0] > limit else 2,
        title="Mismatch of sampler and trainer",
        metric="rollout/mismatch_kl",
        value=f"{median(kl):.2g} nats per token",
        limit=f"{limit:g}",
        effect="the gradient belongs to another policy than the one that sampled",
        change=change,
    )


def cut_off(rows: Sequence[Row], settings: Settings) -> Finding | None:
    """Detect responses that end at the length limit."""
    share = now(rows, "*/completions/clipped_ratio")
    if share is None or share <= CUT_OFF:
        return None
    malformed = 1 - (now(rows, "*/format_rate") or 0.0)
    loops = now(rows, "*/repetition") or 0.0
    length = settings.get("actor_rollout_ref.rollout.response_length")
    # A cut-off response is also malformed. If the model mostly breaks the format in other ways, or
    # repeats itself up to any limit, fix that fault first.
    at_once = (first(rows, "*/completions/clipped_ratio") or 0.0) > CUT_OFF
    return Finding(
        rank=5.5
        if not share >= malformed / 2 > loops
        else 0.84
        if at_once and near_limit(rows, settings)
        else 3,
        title="Length limit",
        metric="train/TAG/completions/clipped_ratio",
        value=f"{_percent(share)} of the responses",
        limit=_percent(CUT_OFF),
        effect="these responses lose their answer",
        change=to(
            settings,
            "actor_rollout_ref.rollout.response_length",
            # A cut-off response does not show its full length. So the more are cut off, the larger
            # the increase.
            (4 if share > 0.5 else 2) * length if isinstance(length, int) else 400,
        ),
    )


def near_limit(rows: Sequence[Row], settings: Settings) -> bool | None:
    """Return whether the responses of the first step used more than half of the allowed tokens on
    average, or None if unknown.

    If they did not, the cut-off responses are runaway generations, and a higher limit would not
    help.
    """
    tokens = first(rows, "*/response_length")
    turns = first(rows, "*/num_turns")
    length = settings.get("actor_rollout_ref.rollout.response_length")
    if not (tokens and turns and length):
        return None
    return tokens / turns > length / 2


def _kl_loss(settings: Settings) -> str:
    """Format the changes that turn the KL loss on. If it is on, format a larger coefficient."""
    actor = "actor_rollout_ref.actor."
    coef = settings.get(f"{actor}kl_loss_coef") or 0.0
    if settings.get(f"{actor}use_kl_loss") and coef:
        return to(settings, f"{actor}kl_loss_coef", 10 * coef)
    wanted = {"use_kl_loss": "true", "kl_loss_coef": coef or 0.001, "kl_loss_type": "low_var_kl"}
    changes = (to(settings, f"{actor}{name}", value) for name, value in wanted.items())
    return ", ".join(filter(None, changes))


def malformed(rows: Sequence[Row], settings: Settings) -> Finding | None:
    """Detect responses that do not follow the format."""
    share = now(rows, "*/format_rate")
    if share is None or share >= FORMAT:
        return None
    temperature = settings.get("actor_rollout_ref.rollout.temperature", 1.0)
    start = first(rows, "*/format_rate") or 0.0
    cut = first(rows, "*/completions/clipped_ratio") or 0.0
    by_limit = cut >= (1 - start) / 2 and near_limit(rows, settings) is not False
    if temperature > 1:
        change = to(settings, "actor_rollout_ref.rollout.temperature", 1.0)
    elif start >= FORMAT:  # PPO unlearned it
        change = _kl_loss(settings)
    elif settings.get("ctx_manager.mode") == "base":
        change = to(settings, "ctx_manager.mode", "add_worldmodel")
    else:
        steps = settings.get("sft.trainer.total_training_steps")
        change = to(
            settings,
            "sft.trainer.total_training_steps",
            2 * steps if isinstance(steps, int) else 200,
        )
    return Finding(
        # Responses that are sampled at a high temperature break the format, and then also hit the
        # length limit. So this finding precedes the one about the length limit.
        rank=0.8 if temperature > 1 else 0.85 if start < FORMAT and not by_limit else 5,
        title="Malformed responses",
        metric="train/TAG/format_rate",
        value=_percent(share),
        limit=_percent(FORMAT),
        effect="the other turns cost a penalty whatever they play",
        change=change,
    )


def entropy(rows: Sequence[Row], settings: Settings) -> Finding | None:
    """Detect a policy with hardly any variation, or one that the entropy bonus drives towards
    noise."""
    values = column(rows, "actor/entropy")
    if not values:
        return None
    start = values[0]
    last = median(recent(values))
    bonus = settings.get("actor_rollout_ref.actor.entropy_coeff", 0.0)
    solved = (now(rows, "*/success") or 0.0) >= SOLVED
    if large := _outweighs(rows, "actor/entropy", bonus):
        return Finding(
            rank=0.5,
            title="Entropy bonus",
            metric="actor/entropy times entropy_coeff",
            value=f"{large[0]:.2g}, at a loss of size {large[1]:.2g}",
            limit=f"{_percent(TERM_SHARE)} of the loss",
            effect="the entropy bonus outweighs the reward",
            change=to(settings, "actor_rollout_ref.actor.entropy_coeff", min(bonus / 10, 0.001)),
        )
    if bonus > 0.01 and max(values) > ENTROPY_GROWTH * start:
        return Finding(
            rank=0.5,
            title="Entropy grows",
            metric="actor/entropy",
            value=f"{max(values):.2g} nats per token, from {start:.2g}",
            limit=f"{ENTROPY_GROWTH:g} times the first value",
            effect="the entropy bonus outweighs the reward",
            change=to(settings, "actor_rollout_ref.actor.entropy_coeff", bonus / 10),
        )
    wider = _wider_sampling(settings)
    least = ENTROPY_NARROWED if wider else ENTROPY
    fell = len(values) > LEAST_RECENT and last < min(ENTROPY_LEFT * start, ENTROPY_NARROWED)
    if solved or not (last < least or fell):
        return None
    return Finding(
        # A narrow sampler also causes large ratios, whatever the learning rate. So its finding
        # precedes those about updates.
        rank=0.8 if wider else 6,
        title="Entropy collapse",
        metric="actor/entropy",
        value=f"{last:.2g} nats per token" + ("" if last < least else f", from {start:.2g}"),
        limit=f"{least:g}" if last < least else f"{_percent(ENTROPY_LEFT)} of the first value",
        effect="samples of a group hardly differ and nothing new is tried",
        change=wider
        or to(settings, "actor_rollout_ref.actor.entropy_coeff", 10 * max(bonus, 0.001)),
    )


def _wider_sampling(settings: Settings) -> str:
    """Return the change that resets the sampling setting which narrows the policy. Empty if none
    does."""
    rollout = "actor_rollout_ref.rollout."
    if settings.get(f"{rollout}do_sample") is False:
        return to(settings, f"{rollout}do_sample", "true")
    if settings.get(f"{rollout}temperature", 1.0) < 1:
        return to(settings, f"{rollout}temperature", 1.0)
    if 0 < settings.get(f"{rollout}top_k", -1) < 20:
        return to(settings, f"{rollout}top_k", -1)
    if settings.get(f"{rollout}top_p", 1.0) < 0.9:
        return to(settings, f"{rollout}top_p", 1.0)
    return ""


def kl_penalty(rows: Sequence[Row], settings: Settings) -> Finding | None:
    """Detect a KL penalty, in the loss or in the rewards, that outweighs the reward."""
    weight = settings.get("actor_rollout_ref.actor.kl_loss_coef", 0.0)
    if large := _outweighs(rows, "actor/kl_loss", weight):
        return Finding(
            rank=0.55,
            title="KL penalty",
            metric="actor/kl_loss times kl_loss_coef",
            value=f"{large[0]:.2g}, at a loss of size {large[1]:.2g}",
            limit=f"{_percent(TERM_SHARE)} of the loss",
            effect="updates keep the policy at the reference instead of following the reward",
            change=to(settings, "actor_rollout_ref.actor.kl_loss_coef", min(weight / 100, 0.001)),
        )
    distance = now(rows, "actor/kl_loss")
    if distance is not None and weight > KL_WEIGHT and abs(distance) < KL_HELD:
        return Finding(
            rank=0.55,
            title="KL penalty",
            metric="actor/kl_loss",
            value=f"{distance:.2g} nats per token, at kl_loss_coef {weight:g}",
            limit=f"{KL_HELD:g} at coefficients above {KL_WEIGHT:g}",
            effect="updates keep the policy at the reference instead of following the reward",
            change=to(settings, "actor_rollout_ref.actor.kl_loss_coef", min(weight / 100, 0.001)),
        )
    coef, spread = now(rows, "actor/reward_kl_coef"), now(rows, "rollout/in_group_std")
    mean, tokens = now(rows, "actor/reward_kl_penalty"), now(rows, "*/response_length")
    if not (coef and mean and tokens and spread) or coef * abs(mean) * tokens <= spread:
        return None
    return Finding(
        rank=0.55,
        title="KL penalty",
        metric="actor/reward_kl_penalty times its coefficient",
        value=f"{coef * abs(mean) * tokens:.2g} per episode",
        limit=f"{spread:.2g}, the standard deviation of scores within groups",
        effect="the penalty in rewards outweighs the reward",
        change=to(settings, "algorithm.kl_ctrl.kl_coef", min(coef / 10, 0.001)),
    )


def too_few_actions(
    rows: Sequence[Row], settings: Settings, *, without: Collection[str] = ()
) -> Finding | None:
    """Detect episodes that end at the action limit while most groups have no reward variance.
    Returns the finding about the first such tag that is not in `without`."""
    shares = _shares_without_variance(rows, settings)
    if not shares or median(recent(shares)) < 0.5:
        return None
    for tag in settings.get("es_manager.train.env_configs.tags") or ():
        key = f"custom_envs.{tag}.max_actions_per_traj"
        allowed = min(settings.get(key, math.inf), _by_turns(settings, tag))
        used = now(rows, f"train/{tag}/num_actions")
        success = now(rows, f"train/{tag}/success")
        if tag in without or used is None or success is None:
            continue
        if success >= 0.5 or used < ALL_ACTIONS * allowed:
            continue
        return _few_actions(
            settings,
            tag,
            allowed,
            metric=f"train/{tag}/num_actions",
            value=f"{used:.3g} of {allowed:g} allowed actions, at a success of {_percent(success)}",
            limit=f"{_percent(ALL_ACTIONS)} of the allowed actions",
            times_turns=2,
        )
    return None


def solvable_puzzles(
    rows: Sequence[Row], settings: Settings, tag: str, allowed: int, within: float, ample: float
) -> Finding | None:
    """Detect an action limit that keeps even the optimal policy from solving puzzles, in episodes
    that use most of the allowed actions.

    `within` and `ample` are the success rates of the optimal policy within `allowed` actions and
    within four times that number.
    """
    used = now(rows, f"train/{tag}/num_actions")
    if used is None or used < MOST_ACTIONS * allowed or ample - within <= SOLVABLE:
        return None
    return _few_actions(
        settings,
        tag,
        allowed,
        metric=f"success of the optimal policy within {allowed} actions",
        value=f"{_percent(within)}, and {_percent(ample)} within {4 * allowed}",
        limit=f"a difference of {_percent(SOLVABLE)}",
        times_turns=4,
    )


def _few_actions(
    settings: Settings,
    tag: str,
    allowed: float,
    *,
    metric: str,
    value: str,
    limit: str,
    times_turns: int,
) -> Finding:
    """Create the finding that a tag allows too few actions. If turns limit the actions, the
    suggested change multiplies `max_turn` by `times_turns`. Otherwise it multiplies the tag's own
    limit by four."""
    key = f"custom_envs.{tag}.max_actions_per_traj"
    turns_key, turns = _turns(settings, tag)
    return Finding(
        rank=0.65,
        title=FEW_ACTIONS,
        metric=metric,
        value=value,
        limit=limit,
        effect="episodes end before they can reach the goal",
        change=to(settings, turns_key, times_turns * turns)
        if allowed == _by_turns(settings, tag)
        else to(settings, key, 4 * int(allowed)),
    )


def _turns(settings: Settings, tag: str) -> tuple[str, int]:
    """Return the key that limits the turns of a tag, and its value."""
    own = f"custom_envs.{tag}.max_turn"
    key = "agent_proxy.max_turn" if settings.get(own) is None else own
    return key, settings.get(key, 5)


def _by_turns(settings: Settings, tag: str) -> float:
    """Return the number of actions that fit into the turns of a tag."""
    return _turns(settings, tag)[1] * settings.get("agent_proxy.max_actions_per_turn", math.inf)


def groups_of(row: Row, settings: Settings) -> float | None:
    """The number of groups sampled in a step, or None if unknown."""
    if "rollout/groups" in row:
        return row["rollout/groups"]
    if row.get("rollout/kept_ratio", 0) > 0:
        return row["rollout/kept_count"] / row["rollout/kept_ratio"]
    return settings.get("es_manager.train.env_groups")


def _shares_without_variance(rows: Sequence[Row], settings: Settings) -> list[float]:
    """The share of groups whose episodes all have the same score, for each step that logs it."""
    return [
        row["rollout/groups_zero_std"] / groups
        for row in rows
        if "rollout/groups_zero_std" in row and (groups := groups_of(row, settings))
    ]


def no_variance(rows: Sequence[Row], settings: Settings) -> Finding | None:
    """Detect groups whose episodes all have the same score."""
    shares = _shares_without_variance(rows, settings)
    success = now(rows, "*/success")
    easy = (first(rows, "*/success") or 0.0) >= SOLVED
    # Equal scores are no fault once the policy has learned its task.
    if not shares or (success is not None and success >= SOLVED and not easy):
        return None
    share = median(recent(shares))
    never = max(column(rows, "*/success"), default=1.0) == 0.0
    if share < ZERO_VARIANCE and not never:
        return None
    # Greedy sampling gives equal episodes, whatever the entropy of the policy.
    greedy = (
        settings.get("actor_rollout_ref.rollout.do_sample") is False
        or settings.get("actor_rollout_ref.rollout.temperature") == 0
    )
    size = settings.get("es_manager.train.group_size", 8)
    if size < 4:
        change = to(settings, "es_manager.train.group_size", 8)
    elif wider := _wider_sampling(settings):
        change = wider
    elif settings.get("agent_proxy.max_turn", 5) < 3:
        change = to(settings, "agent_proxy.max_turn", 5)
    elif easy:
        change = to(settings, "es_manager.train.env_configs.tags", "[a harder environment]")
    elif (success or 0.0) < 0.5:
        change = to(settings, "es_manager.train.env_configs.tags", "[an easier environment]")
    else:
        change = to(settings, "es_manager.train.group_size", 2 * size)
    if share < ZERO_VARIANCE:
        return Finding(
            rank=7,
            title="No reward variance",
            metric="train/TAG/success",
            value="0 at every step",
            limit="above 0",
            effect="scores differ only by penalties and never by success",
            change=change,
        )
    return Finding(
        rank=0.7 if greedy or size < 2 else 7,
        title="No reward variance",
        metric="rollout/groups_zero_std",
        value=f"{_percent(share)} of the groups",
        limit=_percent(ZERO_VARIANCE),
        effect="these groups give no gradient",
        change=change,
    )


def filtered(rows: Sequence[Row], settings: Settings) -> Finding | None:
    """Detect a filter that drops most of the groups with reward variance."""
    shares = [
        row["rollout/kept_count"] / varied
        for row in rows
        if {"rollout/kept_count", "rollout/groups_zero_std"} <= row.keys()
        and (varied := (groups_of(row, settings) or 0) - row["rollout/groups_zero_std"]) > 0
    ]
    if not shares or (share := median(recent(shares))) >= KEPT:
        return None
    rollout = "actor_rollout_ref.rollout."
    kind = settings.get(f"{rollout}rollout_filter_type", "std")
    ratio = settings.get(f"{rollout}rollout_filter_ratio", 0.25)
    if kind in ("std", "top_k"):
        change = to(settings, f"{rollout}rollout_filter_ratio", 0.5)
    elif ratio > 1:
        # Only top_k_abs reads the ratio as a number of groups. Other types refuse such a value.
        groups = groups_of(rows[-1], settings) or 2 * ratio
        change = to(settings, f"{rollout}rollout_filter_ratio", groups // 2)
    else:
        change = to(settings, f"{rollout}rollout_filter_type", "std")
    return Finding(
        rank=0.75,
        title="Filter",
        metric="rollout/kept_count",
        value=f"{_percent(share)} of the groups with reward variance",
        limit=_percent(KEPT),
        effect="most of the sampled episodes update nothing",
        change=change,
    )


def reward_scale(rows: Sequence[Row], settings: Settings) -> Finding | None:
    """Detect scores whose size is out of proportion to penalties and regularizers."""
    spreads = [value for value in column(rows, "rollout/in_group_std") if value > 0]
    if not spreads:
        return None
    spread = median(recent(spreads))
    penalty = settings.get("es_manager.format_penalty", 0.0)
    paid = [
        abs(reward - score)
        for row in rows
        if (reward := pooled(row, "reward")) is not None
        and (score := pooled(row, "score")) is not None
    ]
    best = max((abs(value) for value in column(rows, "rollout/in_group_max")), default=0.0)
    # A success must be worth more than one malformed turn costs.
    if penalty <= -1 and -penalty > 2 * best and paid and fmean(paid) > 0:
        return Finding(
            rank=4.5,
            title="Reward scale",
            metric="train/TAG/reward minus train/TAG/score",
            value=f"{fmean(paid):.2g} per episode, at {-penalty:g} per malformed turn",
            limit=f"{2 * best:.2g}, twice the best score of a group",
            effect="the format penalty outweighs every reward",
            change=to(settings, "es_manager.format_penalty", -0.1),
        )
    online = settings.get("agent_proxy.world_model_reward.prediction", 0.0) + settings.get(
        "agent_proxy.world_model_reward.observation", 0.0
    )
    # The scores in groups include the world-model rewards, but `train/TAG/score` does not.
    won = max(column(rows, "*/success"), default=0.0)
    game = max(column(rows, "*/score"), default=0.0) / won if won > 0 else 1.0
    extra = (now(rows, "rollout/in_group_mean") or 0.0) - (now(rows, "*/score") or 0.0)
    if online > 0 and extra > 2 * game > 0:
        return Finding(
            rank=4.5,
            title="Reward scale",
            metric="rollout/in_group_mean minus train/TAG/score",
            value=f"{extra:.2g} per episode, at a reward of {game:.2g} for success",
            limit=f"{2 * game:.2g}, twice that reward",
            effect="the rewards for the world model outweigh those of the game",
            change=to(
                settings,
                "agent_proxy.world_model_reward."
                + max(
                    ("prediction", "observation"),
                    key=lambda part: settings.get(f"agent_proxy.world_model_reward.{part}", 0.0),
                ),
                0.2,
            ),
        )
    chosen = [value for value in column(rows, "rollout/chosen_in_group_std") if value > 0]
    kept = median(recent(chosen or spreads))
    # True if successes and failures differ in score by less than one malformed turn costs.
    faint = -penalty > 2 * kept and max(column(rows, "*/success"), default=0.0) > 0
    if SMALL_SCORE <= spread <= LARGE_SCORE and online <= LARGE_SCORE and not faint:
        return None
    if online > 1:
        change = to(settings, "agent_proxy.world_model_reward.prediction", 0.2)
    elif own := next((key for key in settings if _is_reward(key, settings)), None):
        change = to(settings, own, 1.0)
    elif settings.get("agent_proxy.reward_normalization.method") != "mean_std":
        change = to(settings, "agent_proxy.reward_normalization.method", "mean_std")
    else:
        change = to(settings, "es_manager.format_penalty", float(f"{-spread / 5:.1g}"))
    return Finding(
        rank=7.5,
        title="Reward scale",
        metric="rollout/chosen_in_group_std" if faint else "rollout/in_group_std",
        value=f"{kept:.2g}" if faint else f"{spread:.3g}",
        limit=f"{-penalty / 2:g}, half of es_manager.format_penalty"
        if faint
        else f"{SMALL_SCORE:g} to {LARGE_SCORE:g}",
        effect="the format penalty, KL terms and the critic are out of proportion to the reward",
        change=change,
    )


def _is_reward(key: str, settings: Settings) -> bool:
    """Return whether a setting is a reward function of the trained environments."""
    tags = settings.get("es_manager.train.env_configs.tags") or ()
    return settings[key] is not None and any(
        key.startswith(f"custom_envs.{tag}.reward") for tag in tags
    )


def clipped(rows: Sequence[Row], settings: Settings) -> Finding | None:
    """Detect updates that clip the ratio of too many tokens."""
    shares = column(rows, "actor/pg_clipfrac")
    if not shares or max(fmean(recent(shares)), fmean(shares)) <= CLIPPED:
        return None
    actor = "actor_rollout_ref.actor."
    low = settings.get(f"{actor}clip_ratio_low", 0.2)
    epochs = settings.get(f"{actor}ppo_epochs", 1)
    minis = settings.get(f"{actor}ppo_num_mini_batches") or 1
    rank = 0.9
    if min(low, settings.get(f"{actor}clip_ratio_high", 0.28)) < 0.05:
        narrow = "clip_ratio_low" if low < 0.05 else "clip_ratio_high"
        change = to(settings, f"{actor}{narrow}", 0.2)
    elif epochs > 1:
        change = to(settings, f"{actor}ppo_epochs", 1)
    elif minis > 8:
        change = to(settings, f"{actor}ppo_num_mini_batches", 4)
    else:
        rank = 8
        change = _lower_rate(settings)
    return Finding(
        rank=rank,
        title="Clipped ratio",
        metric="actor/pg_clipfrac",
        value=f"{_percent(max(fmean(recent(shares)), fmean(shares)))} of the tokens",
        limit=_percent(CLIPPED),
        effect="these tokens give no gradient",
        change=change,
    )


def rate_too_low(rows: Sequence[Row], settings: Settings) -> Finding | None:
    """Detect updates that do not change the policy."""
    kl = [abs(value) for value in column(rows, "actor/ppo_kl")]
    shares = column(rows, "actor/pg_clipfrac")
    # A KL of exactly 0 at every step means one mini-batch per step, whose ratio is always 1.
    if not kl or max(kl) == 0 or fmean(kl) >= KL_LOW or max(shares, default=0.0) > 0.001:
        return None
    rate = settings.get(LR)
    used = now(rows, "actor/lr")
    warming = isinstance(rate, float) and used is not None and used < 0.05 * rate
    weight = settings.get("actor_rollout_ref.actor.kl_loss_coef", 0.0)
    if warming:
        change = to(settings, "actor_rollout_ref.actor.optim.lr_warmup_steps", 0)
    elif settings.get("actor_rollout_ref.actor.use_kl_loss") and weight > 1:
        change = to(settings, "actor_rollout_ref.actor.kl_loss_coef", 0.001)
    else:
        # The size of an update is proportional to the learning rate.
        factor = 10.0 ** max(1, min(4, round(-math.log10(fmean(kl) / 1e-3))))
        change = to(settings, LR, (rate or 1e-7) * factor)
    return Finding(
        rank=8.5,
        title="Learning rate too low",
        metric="actor/ppo_kl",
        value=f"{fmean(kl):.2g} nats per token"
        + (f" at actor/lr {used:g}" if used is not None else ""),
        limit=f"{KL_LOW:g}",
        effect="updates do not change the policy",
        change=change,
    )


def failed_gate(gate: Mapping[str, Any], sft: Sequence[Row], settings: Settings) -> Finding | None:
    """Detect a world model that failed the gate between SFT and PPO. `gate` is the content of
    gate.json."""
    if gate.get("passed", True) or gate.get("diagnosis") in UNMEASURED:
        return None
    diagnosis = gate.get("diagnosis")
    limits = {
        "bad_format": ("format_rate", "wm/format_rate", "format_min", 0.8),
        "bad_observation": ("observation_exact", "wm/obs_exact", "observation_exact_min", 0.8),
        "does_not_predict": (
            "prediction_exact",
            "wm/prediction_em",
            "prediction_exact_min",
            0.28,
        ),
        "predicts": ("entropy", "sampled_nll", "entropy_min", 0.2),
    }
    field, metric, key, default = limits.get(str(diagnosis), limits["does_not_predict"])
    value = float(gate.get(field, 0.0))
    limit = settings.get(f"gate.{key}", default)
    if field == "prediction_exact" and value >= limit and value > gate.get("copy_exact", 1.0):
        field, metric, key = "changed_f1", "wm/changed_f1", "changed_f1_min"
        value = float(gate.get(field, 0.0))
        limit = settings.get(f"gate.{key}", 0.1)
    steps = settings.get("sft.trainer.total_training_steps")
    losses = column(sft, "train/loss")
    rate = settings.get("sft.optim.lr")
    if losses and median(losses[-LEAST_RECENT:]) > FLAT_LOSS * losses[0] and rate:
        change = to(settings, "sft.optim.lr", 10 * rate)
    elif diagnosis == "predicts":
        change = to(settings, "sft.trainer.total_training_steps", max(1, (steps or 200) // 2))
    else:
        change = to(settings, "sft.trainer.total_training_steps", 2 * (steps or 100))
    return Finding(
        # If SFT did not teach the format, this is visible at the first PPO step.
        rank=0.845 if diagnosis == "bad_format" else 4,
        title="World-model gate failed",
        metric=f"val/{metric}",
        value=f"{value:.2g}",
        limit=f"gate.{key}={limit:g}, and above the copy baseline"
        if field == "prediction_exact"
        else f"gate.{key}={limit:g}",
        effect="PPO starts from a model that does not know the game",
        change=change,
    )


_UPDATED = "PPO logs it at the first step that updates the policy"
_PLAYED = "PPO logs it at every step; record the run with this version of spa"

CHECKS = (
    Check(title="failing episodes", rule=errors, needs="*/errors", missing=_PLAYED),
    Check(
        title="learning rate too high", rule=rate_too_high, needs="actor/ppo_kl", missing=_UPDATED
    ),
    Check(
        title="mismatch of sampler and trainer",
        rule=mismatch,
        needs="rollout/mismatch_kl",
        missing="PPO logs it at the first step that keeps a group",
    ),
    Check(title="length limit", rule=cut_off, needs="*/completions/clipped_ratio", missing=_PLAYED),
    Check(title="format", rule=malformed, needs="*/format_rate", missing=_PLAYED),
    Check(title="entropy", rule=entropy, needs="actor/entropy", missing=_UPDATED),
    Check(title="KL penalty", rule=kl_penalty, needs="actor/loss", missing=_UPDATED),
    Check(title="limit of actions", rule=too_few_actions, needs="*/num_actions", missing=_PLAYED),
    Check(
        title="reward variance",
        rule=no_variance,
        needs="rollout/groups_zero_std",
        missing=_PLAYED,
    ),
    Check(title="filter", rule=filtered, needs="rollout/kept_count", missing=_PLAYED),
    Check(title="reward scale", rule=reward_scale, needs="rollout/in_group_std", missing=_PLAYED),
    Check(title="clipped ratio", rule=clipped, needs="actor/pg_clipfrac", missing=_UPDATED),
    Check(title="learning rate too low", rule=rate_too_low, needs="actor/ppo_kl", missing=_UPDATED),
)
"""All rules for rows of metrics."""


def ranked(rows: Sequence[Row], settings: Settings) -> list[Finding]:
    """All findings for the rows, causes before effects."""
    found = [check.rule(rows, settings) for check in CHECKS]
    return sorted(filter(None, found), key=lambda finding: finding.rank)


def unchecked(rows: Sequence[Row]) -> list[str]:
    """One sentence for each required metric that no row has. It names the rules that cannot be
    checked, and how to log the metric. A last sentence follows if `actor/ppo_kl` is always 0."""
    titles: dict[tuple[str, str], list[str]] = {}
    for check in CHECKS:
        if not column(rows, check.needs):
            titles.setdefault((check.needs, check.missing), []).append(check.title)
    lines = [
        f"Not checked: {' and '.join(names)}, because no step has {key.replace('*', 'train/TAG')}: "
        f"{missing}."
        for (key, missing), names in titles.items()
    ]
    kl = column(rows, "actor/ppo_kl")
    if kl and max(map(abs, kl)) == 0:
        lines.append(
            "Not checked: learning rate too low, because actor/ppo_kl is always 0 with one "
            "mini-batch per step: set actor_rollout_ref.actor.ppo_num_mini_batches=2."
        )
    return lines
