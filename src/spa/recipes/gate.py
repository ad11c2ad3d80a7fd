"""The world-model gate between fine-tuning and PPO: test the model, find the first requirement that
it fails, and advise what to change."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from spa.config.schema import Config
from spa.distributed.world import current_world
from spa.errors import TrainingError
from spa.evaluation.text import on_puzzles
from spa.examples.source import source_of
from spa.recipes.builtin_games import unknown_game, unknown_game_warning
from spa.run.files import METRICS, read_lines, write_atomic
from spa.types import Metrics

log = logging.getLogger(__name__)

GATE_FILE = "gate.json"

Diagnosis = Literal[
    "other_data", "not_measured", "bad_format", "bad_observation", "does_not_predict", "predicts"
]
"""`other_data`: the examples do not come from a game of the configuration, so there is no gate. The
others are checked in order: a model that cannot write the format has no states to score, and one
that cannot read the current state has nothing to predict from."""

# If at least this share of the responses is cut off, the advice on a bad format names the length
# limit as a cause.
MANY_CUT_OFF = 0.1
RISE = 1.05  # the validation loss counts as risen above this multiple of its minimum


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Verdict of the world-model gate. Shares lie between 0 and 1."""

    passed: bool
    diagnosis: Diagnosis
    prediction_exact: float
    observation_exact: float
    format_rate: float
    copy_exact: float  # score of the copy baseline, which predicts that nothing changes
    changed_f1: float  # F1 of the changed cells; the copy baseline scores 0
    entropy: float  # nats per token
    puzzles: int
    puzzles_seen: int | None  # number of these puzzles that were in training; None if unknown
    text: str


def evaluate_gate(cfg: Config, directory: Path) -> Gate:
    """Judge the last world-model measurement in the stage folder `directory` by the gate's
    limits."""
    lines = current_world().broadcast(lambda: measurements(directory / "metrics.jsonl"))
    return judge(cfg, lines)


def no_gate() -> Gate:
    """Return the verdict for a model that was fine-tuned on data from outside spa's games: passed,
    without measurements."""
    return Gate(
        passed=True,
        diagnosis="other_data",
        prediction_exact=0.0,
        observation_exact=0.0,
        format_rate=0.0,
        copy_exact=0.0,
        changed_f1=0.0,
        entropy=0.0,
        puzzles=0,
        puzzles_seen=None,
        text="World-model gate: skipped, because the examples are from no game of the configuration.",
    )


def judge(cfg: Config, lines: list[Metrics]) -> Gate:
    """Judge the last measurement in `lines`, which are ordered by step. Earlier measurements show
    the trend, and reveal overfitting."""
    limits = cfg.gate
    last = lines[-1] if lines else {}
    diagnosis = diagnose(cfg, last)
    entropy = float(last.get("val/sampled_nll", 0.0))
    # PPO learns from differences between samples, which an almost deterministic policy lacks.
    narrow = bool(last) and entropy < limits.entropy_min
    passed = diagnosis == "predicts" and not narrow
    verdict = f"World-model gate: {'passed' if passed else 'failed'}{measured_text(last)}."
    text = f"{verdict} {advice(cfg, diagnosis, lines)}".strip()
    if overfits(lines):
        text += (
            " The model overfits: validation loss rises while training loss falls "
            f"({_losses(lines[_best(lines)])}; {_losses(last)}). Use more examples "
            "(generate.num_batches)."
        )
    if narrow and diagnosis == "predicts":
        text += (
            f" The policy's entropy is below gate.entropy_min={limits.entropy_min}: use fewer "
            "SFT steps or more varied data."
        )
    return Gate(
        passed=passed,
        diagnosis=diagnosis,
        prediction_exact=float(last.get("val/wm/prediction_em", 0.0)),
        observation_exact=float(last.get("val/wm/obs_exact", 0.0)),
        format_rate=float(last.get("val/wm/format_rate", 0.0)),
        copy_exact=float(last.get("val/wm/copy_exact", 0.0)),
        changed_f1=float(last.get("val/wm/changed_f1", 0.0)),
        entropy=entropy,
        puzzles=int(last.get("val/puzzles", 0)),
        puzzles_seen=int(last["val/puzzles_seen"]) if "val/puzzles_seen" in last else None,
        text=text,
    )


def diagnose(cfg: Config, measured: Metrics) -> Diagnosis:
    """Return the first requirement that the model fails, in the order of `Diagnosis`, or `predicts`
    if it meets all of them."""
    limits = cfg.gate
    if "val/wm/prediction_em" not in measured:
        return "not_measured"
    if measured["val/wm/format_rate"] < limits.format_min:
        return "bad_format"
    if measured["val/wm/obs_exact"] < limits.observation_exact_min:
        return "bad_observation"
    return (
        "predicts"
        if accurate(cfg, measured) and measured["val/wm/changed_f1"] >= limits.changed_f1_min
        else "does_not_predict"
    )


def accurate(cfg: Config, measured: Metrics) -> bool:
    """Return whether the share of exactly correct predictions reaches `gate.prediction_exact_min`
    and exceeds the copy baseline."""
    exact = measured["val/wm/prediction_em"]
    least = cfg.gate.prediction_exact_min
    # A limit of 0 turns off both the limit and the comparison with the copy baseline.
    return least == 0 or (exact >= least and exact > measured["val/wm/copy_exact"])


def measured_text(measured: Metrics) -> str:
    """Describe the number of puzzles and, in parentheses, the measured values; return "" if nothing
    was measured."""
    if "val/wm/prediction_em" not in measured:
        return ""
    puzzles = on_puzzles(measured.get("val/puzzles", 0), measured.get("val/puzzles_seen"))
    entropy = f"entropy {measured['val/sampled_nll']:.2f} nats per token"
    # Malformed responses count as wrong in every share. If all are malformed, the shares are 0 and
    # carry no information.
    if measured["val/wm/format_rate"] == 0:
        return f"{puzzles} (no response is well-formed; {entropy})"
    shares = {name: f"{100 * measured[f'val/wm/{name}']:.0f} %" for name in _SHARES}
    return (
        f"{puzzles} (prediction {shares['prediction_em']}, copy baseline {shares['copy_exact']}; observation "
        f"{shares['obs_exact']}, format {shares['format_rate']}, F1 of changed cells "
        f"{measured['val/wm/changed_f1']:.2f}; {entropy})"
    )


_SHARES = ("prediction_em", "copy_exact", "obs_exact", "format_rate")


def overfits(lines: list[Metrics]) -> bool:
    """Return whether the validation loss has risen since its minimum, by more than noise (the
    factor `RISE`), while the training loss fell."""
    if not lines or not all("val/loss" in line for line in lines):
        return False
    best = lines[_best(lines)]
    last = lines[-1]
    return last["val/loss"] > RISE * best["val/loss"] and last["train/loss"] < best["train/loss"]


def _best(lines: list[Metrics]) -> int:
    return min(range(len(lines)), key=lambda index: lines[index]["val/loss"])


def _losses(line: Metrics) -> str:
    return (
        f"validation loss {line['val/loss']:.2f} and training loss {line['train/loss']:.2f} at "
        f"step {int(line['step'])}"
    )


def advice(cfg: Config, diagnosis: Diagnosis, lines: list[Metrics]) -> str:
    """Explain the diagnosis and advise how to improve the model; "" if it predicts well enough."""
    if diagnosis == "predicts":
        return ""
    if diagnosis == "not_measured":
        if source_of(cfg).mode == "base":
            return "Examples in base format have no states to measure: set gate.enable=false."
        if episodes := cfg.sft.trainer.eval_episodes:
            return (
                f"No line of sft/{METRICS} has an accuracy, though sft.trainer.eval_episodes is {episodes}: the file "
                "is damaged, or no puzzle could be played. To measure again, remove the folder sft and repeat the "
                "command."
            )
        return "The world model was not measured: set sft.trainer.eval_episodes above 0."
    stranger = unknown_game(cfg)
    if stranger:
        more = f"{unknown_game_warning(stranger)}."
    elif overfits(lines):
        more = ""
    elif diagnosis == "bad_format":
        more = "Use more SFT steps (sft.trainer.total_training_steps)."
    elif diagnosis == "bad_observation":
        more = "Use more SFT steps, or a shorter state rendering (state_text)."
    else:
        more = "Use more SFT steps or examples, or fewer actions per turn (agent_proxy.max_actions_per_turn)."
    if diagnosis == "bad_format":
        cut = lines[-1].get("val/completions/clipped_ratio", 0.0)
        if cut >= MANY_CUT_OFF:
            length = cfg.generate.sampling.response_length
            limit = f"generate.sampling.response_length={length}"
            more = f"{100 * cut:.0f} % of the model's responses are cut off at {limit}. {more}"
        return f"The model does not follow the response format. {more}".rstrip()
    if diagnosis == "bad_observation":
        return (
            "The model follows the response format, but does not describe the current state "
            f"correctly{_trend(lines, 'obs_exact')}. {more}"
        ).rstrip()
    limit = (
        f"its accuracy is below {100 * cfg.gate.prediction_exact_min:.0f} % or not above the "
        "copy baseline"
    )
    if accurate(cfg, lines[-1]):
        limit = f"its F1 of changed cells is below {cfg.gate.changed_f1_min:g}"
    return (
        "The model describes the current state, but does not predict the next state: "
        f"{limit}{_trend(lines, 'prediction_em')}. {more}"
    ).rstrip()


def _trend(lines: list[Metrics], name: str) -> str:
    if len(lines) < 2:
        return ""
    before, now = (lines[i][f"val/wm/{name}"] for i in (-2, -1))
    steps = (int(lines[i]["step"]) for i in (-2, -1))
    first, last = (
        f"{100 * share:.0f} % at step {step}"
        for share, step in zip((before, now), steps, strict=True)
    )
    return f" ({first}, {last})"


def measurements(path: Path) -> list[Metrics]:
    """Return the lines of a `metrics.jsonl` that contain world-model metrics."""
    return [line for _, line in read_lines(path) if "val/wm/prediction_em" in line]


def write_gate(directory: Path, gate: Gate) -> None:
    """Write the verdict to gate.json in `directory`, the folder of the SFT checkpoints."""
    content = {name: getattr(gate, name) for name in Gate.__slots__}
    write_atomic(directory / GATE_FILE, [json.dumps(content, indent=1)])


def stop_at_gate(cfg: Config, directory: Path) -> None:
    """Raise TrainingError if the model failed the gate. If `gate.on_failure` is warn or the gate is
    disabled, only log a warning that PPO starts with a weak world model."""
    gate: dict[str, Any] = current_world().broadcast(lambda: _read_gate(cfg, directory))
    if gate and not gate["passed"] and (not cfg.gate.enable or cfg.gate.on_failure == "warn"):
        why = "gate.on_failure is warn" if cfg.gate.enable else "gate.enable is false"
        if gate["diagnosis"] != "not_measured":
            log.warning(
                "PPO starts with a world model that failed the gate (%s), because %s",
                directory / GATE_FILE,
                why,
            )
        return
    if gate and not gate["passed"]:
        raise TrainingError(
            f"PPO did not start, because the world model failed the gate ({directory / GATE_FILE}). "
            f"{gate['text']}\nTo fine-tune for longer, start a run under another name (trainer.experiment_name). "
            "To train this model with PPO anyway, add gate.on_failure=warn to the command."
        )


def _read_gate(cfg: Config, directory: Path) -> dict[str, Any]:
    """Judge the last measurement by the current limits, and rewrite gate.json if the verdict
    changed.

    Return the recorded verdict unchanged if metrics.jsonl is missing, the gate is disabled, or the
    model was fine-tuned on other data.
    """
    told = _read_result(directory)
    if told and (not cfg.gate.enable or told["diagnosis"] == "other_data"):
        return told
    record = directory / "metrics.jsonl"
    if not record.is_file():
        return told
    gate = judge(cfg, measurements(record))
    if told and told["passed"] == gate.passed and told["text"].startswith(gate.text):
        return told
    why = (
        "spa evaluated the gate again with the current limits"
        if told
        else "spa evaluated the gate again, because the file is missing or damaged"
    )
    log.warning("%s: %s", directory / GATE_FILE, why)
    write_gate(directory, gate)
    return {"passed": gate.passed, "text": gate.text, "diagnosis": gate.diagnosis}


def _read_result(directory: Path) -> dict[str, Any]:
    """Read `passed`, `text` and `diagnosis` from gate.json; return {} if the file is missing or
    damaged."""
    try:
        content = json.loads((directory / GATE_FILE).read_text(encoding="utf-8"))
        return {
            name: kind(content[name])
            for name, kind in (("passed", bool), ("text", str), ("diagnosis", str))
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}
