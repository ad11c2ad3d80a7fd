"""Refuse private words and long sentences in docs, messages and docstrings: `python tools/words.py [FILE ...]`.

Without files it reads README.md, docs/*.md and src/**/*.py. It prints `file:line: problem` for each refused word and
for each sentence of more than 35 words. The exit status is 1 if a finished page (`DONE`), a source file or a named file
has a problem; of other pages it prints only the number. It skips code blocks, inline code, tables, comments and
generated pages. Of a source file it reads docstrings, which must not begin with a question word, and the texts of
raised errors, log calls, help and settings.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Pages that were rewritten by these rules. The tuple grows until it has all.
DONE = (
    "README.md",
    "add-an-environment.md",
    "architecture.md",
    "bridges.md",
    "coming-from.md",
    "concepts.md",
    "environments.md",
    "evaluation.md",
    "extending.md",
    "failures.md",
    "formats.md",
    "index.md",
    "leaderboard.md",
    "methods.md",
    "models.md",
    "parity.md",
    "planning.md",
    "recipe.md",
    "results-smollm2.md",
    "results.md",
    "scaling.md",
    "seeing.md",
)
LIMIT = 35
REFUSED = {
    "anew": "from scratch, again",
    "beside": "alongside, next to",
    r"stands(?! for)": "is",
    "goes on": "resumes, continues",
    "whoever": "you, the user",
    "is said": "name who says it",
    "is told": "name who tells it",
    "what binds": "the bottleneck is",
    "nobody": "no one, or name who",
    "by itself": "alone, or name the actor",
    "spoilt": "corrupted",
    r"hears?": "reads, receives",
    "in one breath": "together",
}
WORDS = {re.compile(rf"\b{word}\b", re.I): advice for word, advice in REFUSED.items()}


def prose(text: str) -> Iterator[list[tuple[int, str]]]:
    """Paragraphs, headings and list items of a page, each as (line number, text) pairs."""
    text = re.sub(r"<!--.*?-->", lambda match: "\n" * match[0].count("\n"), text, flags=re.S)
    fenced = False
    block: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            line = ""
        skipped = fenced or line.startswith(("|", "    ")) or not line.strip()
        if block and (skipped or re.match(r"\s*([*#-]|\d+\.) ?", line)):
            yield block
            block = []
        if not skipped:
            block.append((number, line))
    if block:
        yield block


def plain(line: str) -> str:
    """A line without inline code (one word each), link targets and marks."""
    line = re.sub(r"`[^`]*`", "CODE", line)
    line = re.sub(r"\]\([^)]*\)", "", line)
    return re.sub(r"^\s*([*#>-]+|\d+\.) |[*\[\]!]{1,3}(?=\S)|(?<=\S)\*+", "", line)


def problems(text: str) -> Iterator[tuple[int, str]]:
    """(line number, problem) of each refused word and long sentence."""
    for block in prose(text):
        sentence: list[str] = []
        start = block[0][0]
        for number, line in block:
            for word, advice in WORDS.items():
                for refused in word.findall(plain(line)):
                    yield number, f"refused word {refused!r}: write {advice}"
            for word in plain(line).split():
                start = start if sentence else number
                sentence.append(word)
                if re.search(r"[.?!][\"')]*$", word) and not re.search(
                    r"\b(e\.g|i\.e|vs|etc)\.$", word
                ):
                    yield from long(start, sentence)
                    sentence = []
        yield from long(start, sentence)


def long(start: int, sentence: list[str]) -> Iterator[tuple[int, str]]:
    """The problem of a sentence that is too long, if it is."""
    count = sum(bool(re.search(r"\w", word)) for word in sentence)
    if count > LIMIT:
        yield start, f"sentence of {count} words: {' '.join(sentence[:6])} …"


SPEAKING = ("info", "warning", "error", "debug", "say", "print", "message", "write_out", "Key")
"""Functions whose texts a person reads, besides the errors of `raise` and `help=`."""


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line number, text) of docstrings and messages of a module. A value in a text is `CODE`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield from texts(node.value)  # a docstring of a module, class, function or constant
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                yield from texts(argument)
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            spoken = node.args if name in SPEAKING else []
            helps = [
                word.value
                for word in node.keywords
                if word.arg in ("help", "epilog", "description")
            ]
            for argument in [*spoken, *helps]:
                yield from texts(argument)


def texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The texts in an expression, each whole: the parts of an f-string are one text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    elif isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "CODE" for part in node.values]
        yield node.lineno, "".join(map(str, parts))
    else:
        for child in ast.iter_child_nodes(node):
            yield from texts(child)


QUESTION = re.compile(r"\s*(What|Who|Whose|How|Where|When|Why|Which|Whether)\b")


def source_problems(text: str) -> Iterator[tuple[int, str]]:
    """(line number, problem) of a Python file."""
    tree = ast.parse(text)
    for start, message in messages(tree):
        for line, problem in problems(inspect.cleandoc(message)):
            yield start + line - 1, problem
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            word = QUESTION.match(str(node.value.value))
            if word:
                yield (
                    node.lineno,
                    f"a docstring begins with {word[1]!r}: use an imperative or a noun",
                )


def main(names: list[str]) -> int:
    """Print the problems of files; 1 if a finished page, a source file or a named file has any."""
    pages = [Path(name).resolve() for name in names] or [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "src").rglob("*.py")),
    ]
    status = 0
    for page in pages:
        read = source_problems if page.suffix == ".py" else problems
        listed = list(read(page.read_text(encoding="utf-8")))
        place = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
        if names or page.name in DONE or page.suffix == ".py":
            for line, problem in listed:
                print(f"{place}:{line}: {problem}")
            status |= bool(listed)
        elif listed:
            print(f"{place}: {len(listed)} problems, not finished yet")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
