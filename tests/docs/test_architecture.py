"""The source keeps to docs/architecture.md: directions of imports, sizes, and what it never does."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

READS_ENVIRONMENT = {"spa_engines.api", "spa.cli", "spa.api"}
"""Modules that use the environment's variables: API keys, how much is logged (SPA_LOG), how OpenMP threads wait."""
NUMPY_RANDOM = {"Generator", "PCG64", "SeedSequence", "BitGenerator"}
TORCH_SAMPLES = {"rand", "randn", "randint", "randperm", "multinomial", "bernoulli", "normal"}
FORBIDDEN_IMPORTS = {"random", "pickle", "shelve", "marshal", "dill", "cloudpickle"}
HOLDS_GLOBAL_RANDOMNESS = "spa_integrations.games.randomness"
"""Gives other people's games their own global generators, and puts everybody else's back."""
FORBIDDEN_CALLS = {"print", "eval", "exec", "breakpoint"}
SIBLINGS = tuple(
    re.findall(
        r"^\| `(spa_\w+)` \|", PAGE.partition("<!-- siblings -->")[2].partition("\n\n")[0], re.M
    )
)
"""Packages beside the core, in the order in which they may import each other."""


@cache
def modules(top: str = "spa") -> dict[str, ast.Module]:
    """Every module of a package, the core unless another is named, by its dotted name."""
    found = {}
    for path in sorted((SOURCE / top).rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(
            path.read_text(encoding="utf-8")
        )
    return found


def imports(tree: ast.Module, module: str) -> Iterator[str]:
    """Everything that a module imports, wherever the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{module}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (
                name if node.module == "spa" or name in modules() else node.module for name in names
            )


def all_modules() -> dict[str, ast.Module]:
    """The modules of the core and of its siblings."""
    return {name: tree for top in ("spa", *SIBLINGS) for name, tree in modules(top).items()}


def package(module: str) -> str:
    """spa.algo.losses -> algo; spa.types -> types; spa -> ''. A module that has a layer of its own is named with its
    package: run.signals."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2]) if ".".join(parts[:2]) in levels() else (*parts, "")[0]


def block(mark: str) -> list[str]:
    """The lines of the fenced block or table that follows a comment of the page."""
    match = re.search(rf"<!-- {re.escape(mark)} -->\n(.*?)\n\n", PAGE, re.S)
    assert match, f"docs/architecture.md: no <!-- {mark} -->"
    return [line for line in match[1].splitlines() if not re.match(r"```|\|\s*-|\| module", line)]


@cache
def levels() -> dict[str, int]:
    """Package -> its height, from the page."""
    lines = block("layers")
    return {name: height for height, line in enumerate(reversed(lines)) for name in line.split()}


def exceptions() -> set[tuple[str, str]]:
    """(module, package) that the page allows."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block("exceptions")]
    return {(row[0].strip("`"), name.strip()) for row in rows for name in row[1].split(",")}


def upward() -> set[tuple[str, str]]:
    """(module, package) of every import from beside or above."""
    height, found = levels(), set()
    for module, tree in modules().items():
        own = package(module)
        if not own:
            continue  # `spa` itself offers the public API
        for name in imports(tree, module):
            other = package(name)
            if not name.startswith("spa.") or other in (own, "__version__"):
                continue
            assert other in height and own in height, (
                f"{module} or {name} is not in the list of layers"
            )
            if height[other] >= height[own]:
                found.add((module, other))
    return found


def test_every_package_has_its_layer():
    assert {package(module) for module in modules()} - {""} == set(levels())


def test_imports_point_down_and_every_exception_is_listed_and_used():
    assert upward() == exceptions()


def test_no_package_imports_a_sibling():
    assert {path.parent.name for path in SOURCE.glob("spa_*/__init__.py")} == {
        *SIBLINGS,
        "spa_verifiers",
    }
    for top in ("spa", *SIBLINGS):
        earlier = SIBLINGS[: SIBLINGS.index(top)] if top in SIBLINGS else ()
        others = {*SIBLINGS, "spa_verifiers"} - {top, *earlier}
        found = {
            (module, name)
            for module, tree in modules(top).items()
            for name in imports(tree, module)
            if name.partition(".")[0] in others
        }
        assert found == set()
        if top == "spa":  # nor by a name in a text
            for path in (SOURCE / top).rglob("*.py"):
                assert not re.search(
                    rf"({'|'.join(SIBLINGS)})\.", path.read_text(encoding="utf-8")
                ), path


def test_nothing_that_samples_tokens_sees_an_environment():
    for module, tree in all_modules().items():
        if package(module) == "engines" or module.startswith("spa_engines"):
            assert not any(name.startswith("spa.envs") for name in imports(tree, module)), module
            assert not any(
                isinstance(n, ast.Attribute) and n.attr == "context" for n in ast.walk(tree)
            ), module


def reached_from(module: str) -> set[str]:
    """The modules of the core that a module imports, directly or through others."""
    found, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name in modules() and name not in found:
            found.add(name)
            waiting += imports(modules()[name], name)
    return found


def test_the_loop_of_ppo_needs_nothing_of_what_it_is_put_together_from():
    reached = reached_from("spa.recipes.ppo")
    assert {"spa.run.stage", "spa.training.update"} <= reached
    assert {package(name) for name in reached} & {
        "envs",
        "prompts",
        "rollout",
        "worldmodel",
        "evaluation",
        "methods",
        "api",
    } == set()
    loaders = {"spa.engines.factory", "spa.models.load", "spa.models.hub", "spa.run.trackers"}
    assert not reached & loaders


def test_below_the_recipes_only_listed_modules_read_the_configuration():
    height = levels()
    readers = {
        module
        for module, tree in modules().items()
        if height.get(package(module), height["api"]) < height["recipes"]
        and package(module) != "config"
        if any(name.startswith("spa.config") for name in imports(tree, module))
    }
    listed = set(
        re.findall(
            r"`(spa\.[\w.]+)`", "\n".join(line for line in block("readers of the configuration"))
        )
    )
    whole = [name for name in listed if (SOURCE / name.replace(".", "/")).is_dir()]
    assert listed == {
        next((name for name in whole if module.startswith(f"{name}.")), module)
        for module in readers
    }


def test_few_packages_use_the_life_cycle_of_a_stage():
    users = {
        package(module)
        for module, tree in modules().items()
        if any(package(name) == "run" for name in imports(tree, module))
    }
    assert users <= {"run", "recipes", "recipes.setup", "launch", "commands", "cli", "api"}


def test_nothing_heavy_or_unsafe_is_imported():
    found = {
        (module, name)
        for module, tree in all_modules().items()
        for name in imports(tree, module)
        if name.split(".")[0] in FORBIDDEN_IMPORTS
    }
    assert found == {(HOLDS_GLOBAL_RANDOMNESS, "random")}


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """(dotted name, call) of every call of a plain or dotted name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and re.fullmatch(r"[\w.]+", name := ast.unparse(node.func)):
            yield name, node


def test_no_call_prints_evaluates_or_draws_from_global_state():
    found = set()
    for module, tree in all_modules().items():
        for name, call in calls(tree):
            keywords = {keyword.arg for keyword in call.keywords}
            head, _, last = name.rpartition(".")
            if (
                name in FORBIDDEN_CALLS
                or (
                    head in ("np.random", "numpy.random")
                    and last not in NUMPY_RANDOM
                    and module != HOLDS_GLOBAL_RANDOMNESS
                )
                or (head == "torch" and last in TORCH_SAMPLES and "generator" not in keywords)
                or (name == "torch.load" and "weights_only" not in keywords)
            ):
                found.add((module, name))
    assert found == set()


def test_global_seeds_are_set_only_inside_a_fork():
    """Weights of new models are drawn by torch from its global state; it is put back afterwards."""
    for module, tree in all_modules().items():
        seeding = [
            call.lineno
            for name, call in calls(tree)
            if name.endswith("manual_seed") and name.startswith("torch.")
        ]
        forks = [
            range(node.lineno, (node.end_lineno or node.lineno) + 1)
            for node in ast.walk(tree)
            if isinstance(node, ast.With)
            and any("fork_rng" in ast.unparse(item) for item in node.items)
        ]
        assert all(any(line in fork for fork in forks) for line in seeding), module


def test_only_keys_of_apis_and_the_log_level_come_from_environment_variables():
    found = {
        module
        for module, tree in all_modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "putenv")
    }
    assert found <= READS_ENVIRONMENT


def test_the_page_names_files_that_exist():
    named = re.findall(r"`((?:src|tests)/[\w./*]+?)`", PAGE)
    assert named
    assert [name for name in named if not list(ROOT.glob(name))] == []
