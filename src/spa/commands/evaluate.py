"""`spa eval`: measure success on unseen puzzles, the accuracy of a world model, or the perplexity
of states."""

import argparse
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spa.commands.arguments import names, positive_number, result_file, say
from spa.errors import ConfigError
from spa.evaluation.text import interval_text, percent
from spa.plugins import load_plugin
from spa.run.console import write_out
from spa.tables import Table

if TYPE_CHECKING:
    from spa.api.evaluation import Evaluation


# The options of each measurement, by the name of its flag. Success on puzzles ("") has no flag.
MEASUREMENTS = {
    "": ("samples", "puzzles", "plan", "k", "prices", "eval_set"),
    "world_model": ("transitions", "rollout_steps", "greedy"),
    "state_perplexity": ("tags", "states"),
}


def evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa eval` to `parser`."""
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="one or several models to evaluate: a run or checkpoint folder, a Hub name, builtin:tiny, a "
        "model behind an API, random, expert, or q_learning (tabular Q-learning). Name an API model "
        "by its key in model_info, or write api for the model that model_config.model_name names",
    )
    parser.add_argument(
        "--config",
        metavar="CONFIG",
        help="configuration with the puzzles: a shipped name or a YAML file (default: the configuration "
        "of the checkpoint)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="JSON file for the result (default: a file in the folder eval/ of the run)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check the configuration and exit without evaluating"
    )
    play = parser.add_argument_group("success on puzzles")
    play.add_argument("--samples", type=int, metavar="K", help="number of attempts per puzzle")
    play.add_argument("--puzzles", "--groups", type=int, metavar="N", help="number of puzzles")
    play.add_argument(
        "--eval-set",
        metavar="NAME",
        help="play an evaluation set: 256 fixed puzzles that no training sees, sampled twice at temperature "
        "1, and greedily",
    )
    play.add_argument(
        "--plan",
        metavar="best-of-N|beam-N|search-N",
        help="plan with the learned model (sets imagine.*). best-of-N samples N responses per turn and "
        "plays the response whose predicted state has the highest value. beam-N continues from the "
        "predicted states of N responses until a predicted state shows the goal. search-N predicts "
        "the result of every action, up to N actions ahead",
    )
    play.add_argument(
        "--k",
        metavar="K,K,...",
        help="values of k for Pass@k, separated by commas (default: powers of 2 up to the number of "
        "samples, at most 64)",
    )
    play.add_argument(
        "--prices",
        metavar="IN,OUT",
        help="prices per million input and output tokens of an API, such as 0.15,0.60; spa then computes "
        "the cost",
    )
    world = parser.add_argument_group("world model")
    world.add_argument(
        "--world-model",
        action="store_true",
        help="measure the accuracy of observations and predictions on held-out states, next to the copy "
        "baseline",
    )
    world.add_argument(
        "--transitions",
        type=positive_number,
        metavar="N",
        help="number of states per environment (default: 1000)",
    )
    world.add_argument(
        "--rollout-steps",
        type=positive_number,
        metavar="K",
        help="number of steps in the open-loop rollout (default: 3)",
    )
    world.add_argument(
        "--greedy",
        action="store_true",
        help="use the most likely response instead of a sampled response",
    )
    states = parser.add_argument_group("state perplexity")
    states.add_argument(
        "--state-perplexity",
        action="store_true",
        help="measure the perplexity of states as a grid, as coordinates, and as grid and coordinates",
    )
    states.add_argument(
        "--tags",
        type=names,
        metavar="A,B",
        help="environments, separated by commas (default: SimpleSokoban,FrozenLake,Sudoku)",
    )
    states.add_argument(
        "--states",
        type=positive_number,
        metavar="N",
        help="number of states per environment (default: 100)",
    )


def evaluate(options: argparse.Namespace) -> int:
    """Evaluate every model, write one result file for each, and print a table of the results.
    Raises SpaError for errors that the user can fix."""
    if options.world_model and options.state_perplexity:
        raise ConfigError(
            "--world-model and --state-perplexity are two separate measurements; give only one of these "
            "options"
        )
    _refuse_others(options)
    if options.eval_set and (options.samples or options.puzzles or options.output):
        raise ConfigError(
            "--eval-set fixes the puzzles, the samples and the names of the results; remove --samples, "
            "--puzzles and --output"
        )
    if options.output and len(options.models) > 1:
        raise ConfigError(
            "--output names the file of one result; evaluate one model at a time, or remove --output"
        )
    if options.world_model or options.state_perplexity:
        name = "world_model" if options.world_model else "state_perplexity"
        for model in options.models:
            load_plugin("measurements", name)(model, options)
        return 0
    measured: list[Evaluation] = []
    try:
        for model in options.models:
            for greedy in (False, True) if options.eval_set else (None,):
                known = {one.path: one.result["model"] for one in measured}
                if (one := _evaluate(model, options, known, greedy=greedy)) is not None:
                    measured.append(one)
    finally:  # if a model fails, print the results of the earlier models
        if measured:
            print_results([dict(one.result) for one in measured])
            for one in measured:
                write_out(f"result: {one.path}\n")
                write_out(
                    f"to view the episodes, run: spa view {shlex.quote(str(one.path.with_suffix('')))}\n"
                )
    return 0


def _refuse_others(options: argparse.Namespace) -> None:
    """Raise ConfigError for an option that belongs to another measurement."""
    chosen = next((name for name in MEASUREMENTS if name and getattr(options, name)), "")
    for measurement, own in MEASUREMENTS.items():
        given = [name for name in own if getattr(options, name) not in (None, False)]
        if given and measurement != chosen:
            flag, its, mine = (
                "--" + name.replace("_", "-") for name in (given[0], measurement, chosen)
            )
            cure = f"remove {flag} or {mine}" if chosen else f"add {its}"
            if flag == "--greedy":
                cure += " or, for success on puzzles, set actor_rollout_ref.rollout.val_kwargs.do_sample=false"
            raise ConfigError(f"{flag} belongs to another measurement; {cure}")


def _evaluate(
    model: str, options: argparse.Namespace, known: Mapping[Path, str], *, greedy: bool | None
) -> "Evaluation | None":
    """Evaluate a model and write its result file; return None after a dry run.

    With an evaluation set, `greedy` selects greedy decoding; it is None without one. `known` maps
    the result files written so far to their models. Raises ConfigError if this result would
    overwrite one of them.
    """
    import spa.api.evaluation as api
    from spa.envs.eval_sets import eval_set
    from spa.recipes.evaluate_files import kept_responses
    from spa.recipes.openings import record_opening

    chosen = eval_set(options.eval_set) if options.eval_set else None
    overrides = [*(_plan(options.plan) if options.plan else ()), *options.overrides]
    if chosen is not None:
        overrides += api.eval_set_overrides(chosen, greedy=bool(greedy))
    target, cfg, output = api.plan_evaluation(
        model,
        options.config,
        samples=options.samples,
        puzzles=options.puzzles,
        overrides=overrides,
        output=options.output,
        suffix=f"-{chosen.name}-{'greedy' if greedy else 'sampled'}" if chosen else "",
    )
    if chosen is not None:
        api.check_eval_set(chosen, cfg)
    if output in known:
        raise ConfigError(
            f"the results of {known[output]} and {model} have one name, {output}; evaluate the second one "
            "alone, with --output FILE"
        )
    # Check the options before playing, which may take hours.
    ks = _ks(options.k)
    prices = _prices(options.prices)
    # With several models, --prices may be meant for another one.
    if prices and target.api is None and len(options.models) == 1:
        raise ConfigError(
            f"--prices computes the cost of a model behind an API, which {model} is not; remove --prices"
        )
    if options.dry_run:
        val = cfg.es_manager.val
        write_out(
            f"The command would play {_counted(val.env_groups, 'puzzle')} with "
            f"{_counted(val.group_size, 'attempt')} each and write {output}.\n"
        )
        return None
    if target.api is not None:
        # API requests cost money, so the number of episodes is printed before the first request.
        val = cfg.es_manager.val
        say(
            [
                f"{model} plays {_counted(val.env_groups, 'puzzle')} of "
                f"{', '.join(val.env_configs.tags)}, {_counted(val.group_size, 'attempt')} each. "
                "To change that, use --puzzles, --samples or "
                "es_manager.val.env_configs={tags: [TAG], n_groups: null}."
            ]
        )
    result_file(output)
    earlier = kept_responses(output)
    one = api.run_evaluation(target, cfg, output, ks=ks, prices=prices, eval_set=chosen)
    if chosen is not None:
        record_opening(chosen, one.result, greedy=bool(greedy))
    if used := one.result.get("usage"):
        # The number of requests sent now is printed but not written, because a repeated evaluation
        # must write the same file.
        used = {**used, "sent_now": kept_responses(output) - earlier}
        one = replace(one, result={**one.result, "usage": used})
    return one


def _plan(text: str) -> list[str]:
    # `best-of-8` -> ("best-of", "8"); rpartition, because the name `best-of` contains a dash.
    kind, _, number = text.rpartition("-")
    if kind not in ("best-of", "beam", "search") or not number.isdecimal() or int(number) < 1:
        raise ConfigError(
            f"--plan is {text!r}; write best-of-N, beam-N or search-N, such as best-of-8"
        )
    # `keep` follows a planned path over several turns. A search of depth 1 plans a single action.
    if kind == "search":
        return [
            "imagine.proposals=exhaustive",
            f"imagine.depth={number}",
            f"imagine.keep={str(int(number) > 1).lower()}",
        ]
    # A beam may plan ahead to the end of the episode. best-of-N plans one turn ahead.
    return [
        f"imagine.n={number}",
        f"imagine.depth={'${agent_proxy.max_turn}' if kind == 'beam' else 1}",
    ]


def _ks(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(
            f"--k is {text!r}; write whole numbers of at least 1, separated by commas, such as 1,8,64"
        )
    return tuple(dict.fromkeys(int(part) for part in parts))


def _prices(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        read, written = map(float, text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"--prices is {text!r}; write the prices of input and output tokens, such as 0.15,0.60"
        ) from error
    return read, written


def print_results(results: list[dict[str, Any]]) -> None:
    """Print one table with a column for each model and environment tag, followed by the remarks on
    the results."""
    # Results on an eval set may be greedy or sampled, so the label names the decoding.
    policies = [
        f"{result['policy']}{_decoding(result) if 'eval_set' in result else ''}"
        for result in results
    ]
    one = len(results) == 1
    columns = [
        tag if one else f"{policy}\n{tag}"
        for policy, result in zip(policies, results, strict=True)
        for tag in result["tags"]
    ]
    metrics = [numbers for result in results for numbers in result["tags"].values()]
    rows = [(label, *cells) for label, cells in _rows(metrics)]
    Table(("", *columns), rows, right=range(1, len(columns) + 1)).print(
        f"{policies[0]} on unseen puzzles" if one else "Unseen puzzles"
    )
    # A remark on all models is printed once, without names.
    for line, of in _shared(zip(policies, map(remarks, results), strict=True)).items():
        say([line if len(of) == len(results) else f"{', '.join(of)}: {line}"])


def _decoding(result: Mapping[str, Any]) -> str:
    return ", greedy" if result["settings"]["temperature"] == 0 else ", sampled"


def _shared(remarks: Iterable[tuple[str, list[str]]]) -> dict[str, list[str]]:
    """Group equal remarks: return remark -> the models to which it applies."""
    shared: dict[str, list[str]] = {}
    for policy, lines in remarks:
        for line in lines:
            shared.setdefault(line, []).append(policy)
    return shared


def _rows(metrics: list[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    rows = [("puzzles", [str(tag["puzzles"]) for tag in metrics])]
    # Results may have Pass@k for different k, so the table has a row for each k of any result.
    ks = dict.fromkeys(
        name for tag in metrics for name in tag if name.startswith("pass@") and name != "pass@any"
    )
    rows += [
        (name.replace("pass", "Pass"), [interval_text(tag.get(name)) for tag in metrics])
        for name in ks
    ]
    rows.append(
        ("percent of optimum", [_number(tag.get("percent_of_optimum"), 1) for tag in metrics])
    )
    rows += [
        (label, [percent(tag[name]) if tag.get(name) is not None else none for tag in metrics])
        for label, name, none in (
            ("optimum", "optimum", "not known"),
            ("random policy", "random_success", "not available"),
            ("greedy walk", "walk_success", "not available"),
            ("one-step look-ahead", "look_ahead_success", "not available"),
        )
    ]
    for value in sorted(
        {part["difficulty"] for tag in metrics for part in tag.get("by_difficulty", ())}
    ):
        cells = []
        for tag in metrics:
            part = next((p for p in tag.get("by_difficulty", ()) if p["difficulty"] == value), {})
            cells.append(
                f"{percent(part['pass@1']['mean'])} of {part['pass@1']['n']}" if part else "–"
            )
        # The label names the unit, because difficulty counts actions in some games and clues in
        # others.
        kinds = " or ".join(dict.fromkeys(tag["difficulty_is"] for tag in metrics))
        rows.append((f"Pass@1, {kinds} {value}", cells))
    rows += [
        (label, [_number(tag.get(name), digits) for tag in metrics])
        for label, name, digits in (
            ("actions per episode", "actions_per_episode", 2),
            ("turns per episode", "turns_per_episode", 2),
            ("tokens per episode", "tokens_per_episode", 0),
        )
    ]
    rows += [
        (label, [percent(tag.get(name)) for tag in metrics])
        for label, name in (
            ("well-formed responses", "format_rate"),
            ("invalid per action", "invalid_per_action"),
            ("ineffective per action", "ineffective_per_action"),
            ("observations exact", "observation_exact"),
            ("predictions exact", "prediction_exact"),
            ("copies of the state exact", "copy_exact"),
        )
    ]
    # Rows without a number in any column, such as predictions in the base format, are left out.
    return [row for row in rows if any(cell != "–" for cell in row[1])]


def remarks(result: dict[str, Any]) -> list[str]:
    """Return the remarks that readers need to interpret a result."""
    lines = ["Brackets show the 95 % CI over puzzles. Shares are in percent."]
    missing = result["not_computed"]
    if missing:
        names = ", ".join(name.replace("pass", "Pass") for name in missing)
        most = max(int(name.partition("@")[2]) for name in missing)
        samples = result["settings"]["samples"]
        lines.append(
            f"{names} cannot be computed from {samples} sample{'' if samples == 1 else 's'} per "
            f"puzzle; use --samples {most}."
        )
    if any("percent_of_optimum" in metrics for metrics in result["tags"].values()):
        lines.append(
            "Percent of optimum is Pass@1 as a percentage of the success of the best possible policy."
        )
    seen = result["puzzles"]["seen_in_training"]
    if seen:
        lines.append(
            f"{seen} puzzle{' was' if seen == 1 else 's were'} left out, because the model was trained on "
            f"the same puzzle{'' if seen == 1 else 's'}."
        )
    if trained := result["puzzles"].get("trained_on", 0):
        lines.append(
            f"{trained} puzzle{' is' if trained == 1 else 's are'} from training, because the game has few "
            "puzzles."
        )
    # None means that not all training puzzles are recorded. Policies and models behind an API, for
    # which `model` is None, get no remark.
    if result["puzzles"]["training_puzzles_known"] is None and result["model"]:
        lines.append(
            "The training puzzles of this model are unknown, so the evaluation may include training "
            "puzzles."
        )
    if imagined := result.get("imagination"):
        text = (
            f"{_asked(imagined)}. Of all predicted states, {percent(imagined['right'])} % were correct; "
            f"of the chosen states, {percent(imagined['chosen_right'])} %. {_changed(imagined)} in "
            f"{percent(imagined['changed'])} % of the turns{_kept(imagined)}."
        )
        if (tokens := imagined["tokens_per_episode"]) is not None:
            text += (
                " All responses together, prefilled text included, had "
                f"{tokens:,.0f} tokens per episode."
            )
        lines.append(text)
    used = result.get("usage")
    if used:
        cost = (
            f", cost {used['cost']:.4f}"
            if "cost" in used
            else " (give --prices to compute the cost)"
        )
        tokens = (
            f"{_counted(used['prompt_tokens'], 'input token')} and "
            f"{_counted(used['completion_tokens'], 'output token')}"
        )
        counts = [
            _counted(used[name], *words)
            for name, *words in (
                ("retries", "retry", "retries"),
                ("empty_responses", "empty response"),
            )
            if used.get(name)
        ]
        lines.append(f"{_sent(used)}{', '.join([*counts, tokens])}{cost}.")
    for tag, metrics in result["tags"].items():
        if metrics["errors"]:
            lines.append(
                f"{tag}: spa does not count {_counted(metrics['errors'], 'failed episode')}. Run the "
                "same command again to replay the failed episodes. If there is a file *.lost.jsonl next to the result, "
                "delete it first."
            )
        if metrics.get("format_rate") == 0:
            lines.append(
                f"{tag}: no response follows the format; use an instruct model or a larger "
                "actor_rollout_ref.rollout.response_length."
            )
    return lines


def _counted(count: float, word: str, words: str = "") -> str:
    """Format a count with its noun: `1 puzzle`, `2 puzzles`. `words` is the plural if it is
    irregular."""
    return f"{count:,} {word if count == 1 else words or f'{word}s'}"


def _sent(used: Mapping[str, Any]) -> str:
    """Return the beginning of the remark on API usage: the number of requests that this command
    sent, and the number of stored responses of earlier commands."""
    now = used.get("sent_now", used["requests"])
    sent = f"{_counted(now, 'request') if now else 'No request'} sent now"
    earlier = used["requests"] - now
    if not earlier:
        return f"{sent}: "
    return f"{sent}, {_counted(earlier, 'response')} from earlier. In all: "


def _kept(imagined: dict[str, Any]) -> str:
    share = imagined.get("kept")
    return (
        ""
        if share is None
        else f" with a new search; {percent(share)} % of all turns followed the path of an earlier search"
    )


def _asked(imagined: dict[str, Any]) -> str:
    if _searched(imagined):
        return (
            f"Search over every action, up to {imagined['depth']} actions ahead, with "
            f"imagine.dynamics={imagined['dynamics']}"
        )
    ahead = "" if imagined["depth"] == 1 else f", up to {imagined['depth']} turns ahead"
    return (
        f"Best of {imagined['n']} responses per turn{ahead}, with "
        f"imagine.dynamics={imagined['dynamics']}"
    )


def _changed(imagined: dict[str, Any]) -> str:
    return (
        "The predictions showed a path to the goal"
        if _searched(imagined)
        else "The planner did not choose the first response"
    )


def _searched(imagined: dict[str, Any]) -> bool:
    return imagined.get("proposals") == "exhaustive"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
