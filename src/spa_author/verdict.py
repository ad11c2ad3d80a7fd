"""The verdict of `spa env measure --model`: three sentences that follow from the measurements by
fixed thresholds."""

from dataclasses import dataclass, field

EASY = 0.6
"""If random play or the greedy walk has a higher success rate than this, success does not show
knowledge of the game."""
STILL = 0.95
"""If at least this share of moves leaves the state unchanged, there is no world model to learn."""
ABOVE_COPY = 0.05
"""Predictions count as learned if their accuracy exceeds the copy baseline by more than this."""
ACCURATE = 0.9
"""Smallest share of correct predictions at which plans of several moves count as reliable."""
LEAD = 0.1
"""Smallest difference in success rate that counts as an improvement."""


@dataclass(slots=True, kw_only=True)
class Measured:
    """Measurements of a game with a model. Shares are between 0 and 1, or None if not available or
    not yet measured."""

    game: str
    model: str
    minutes: float  # time limit
    max_actions: int
    # success rates of the reference policies on `reference_puzzles` puzzles
    reference_puzzles: int = 0
    random: float | None = None
    walk: float | None = None
    look_ahead: float | None = None
    optimum: float | None = None
    examples: int = 0  # number of SFT examples
    sft_steps: int = 0
    held_out: int = 0  # number of moves on which predictions are measured
    # kind of response part -> share of correct parts, given the true text before them
    accuracy: dict[str, float] = field(default_factory=dict)
    right: float | None = None  # share of correctly predicted next states
    right_if_changed: float | None = None  # the same for moves that change the state
    copy: float | None = None  # share of moves that do not change the state
    # success rates of breadth-first search and of one-step look-ahead with the model's predictions,
    # on `puzzles` puzzles
    puzzles: int = 0
    search: float | None = None
    search_ahead: float | None = None
    full_states: bool = False  # True: the model predicts whole states, not single moves
    no_planning: str = ""  # why planning is not available
    seconds: float = 0.0

    @property
    def without_model(self) -> tuple[float, str]:
        """The higher of the success rates of random play and the greedy walk, and the name of that
        policy."""
        return max((self.random or 0.0, "random play"), (self.walk or 0.0, "the walk"))

    @property
    def planned(self) -> float | None:
        """The higher of the success rates of the two planners that use the model's predictions, or
        None if neither was measured."""
        return max(
            (each for each in (self.search, self.search_ahead) if each is not None), default=None
        )


def percent(share: float | None) -> str:
    """Format a share as a percentage. None gives "not available"."""
    return "not available" if share is None else f"{100 * share:.1f} %"


def verdict(found: Measured) -> tuple[str, str, str]:
    """Return three sentences: on the model's knowledge, on the bottleneck, and on what to train
    next."""
    best, policy = found.without_model
    if best > EASY:
        return (
            f"{policy.capitalize()} wins {percent(best)} without a model, so success measures no knowledge here.",
            "The board is the bottleneck: no method can show that knowledge helps.",
            f"Train nothing yet: make the puzzles harder, until random play and the walk win at most {percent(EASY)}.",
        )
    if found.optimum is not None and found.optimum < best + LEAD:
        return (
            f"The best possible policy wins {percent(found.optimum)}, and without a model {policy} {percent(best)}.",
            "The limit of actions, or chance, is the bottleneck: knowledge can add little.",
            "Train nothing yet: raise max_actions_per_traj and the turns, or take easier puzzles.",
        )
    right, copy, planned = found.right, found.copy, found.planned
    if right is None or copy is None:
        return (
            f"The best policy without a model, {policy}, wins {percent(best)}.",
            "The bottleneck is not known, because the predictions of the model were not measured.",
            "Train nothing yet: run this command to its end.",
        )
    if copy >= STILL:
        return (
            f"{percent(copy)} of random moves do not change the state, so there is no world model to learn.",
            "The choice of actions is the bottleneck.",
            "Train PPO without world-model SFT: the method vanilla of spa compare.",
        )
    knowledge = f"The model predicts {percent(right)} of held-out moves right (copy baseline {percent(copy)})"
    if right <= copy + ABOVE_COPY:
        return (
            f"{knowledge}, so it has not learned the moves.",
            "World-model accuracy is the bottleneck: "
            f"{found.sft_steps} SFT steps are too few, or state_text lacks facts.",
            "Train nothing yet: raise --minutes, and if accuracy does not rise, complete state_text.",
        )
    if planned is not None and planned >= best + LEAD:
        far = found.optimum is not None and planned < found.optimum - LEAD
        return (
            f"{knowledge}, and planning with them wins {percent(planned)} ({policy} {percent(best)}).",
            f"Wrong predictions are the bottleneck up to the optimum of {percent(found.optimum)}."
            if far
            else "The model's own play is the bottleneck: its knowledge is enough for a search.",
            "Train written search over the model's own predictions: the method search_model of spa compare.",
        )
    if right < ACCURATE:
        return (
            f"{knowledge}.",
            f"World-model accuracy is the bottleneck: plans of several moves need {percent(ACCURATE)}.",
            "Train the world model longer: raise --minutes, then the episodes and steps of SFT.",
        )
    if planned is None:
        return (
            f"{knowledge}, but whether this helps to win is not measured.",
            f"The bottleneck is not known: without a model, {policy} wins {percent(best)}.",
            "Train the methods spa and vanilla with spa compare, or make planning available and measure again.",
        )
    return (
        f"{knowledge}, but planning with them wins only {percent(planned)} ({policy} {percent(best)}).",
        "The search or the distance to the goal is the bottleneck, not knowledge.",
        "Train nothing yet: define a better goal_distance, or allow more actions, and measure again.",
    )
