"""Teacher-forced accuracy: the parts of a response, and which of them count as right."""

from typing import cast

import numpy as np

from spa.formats.registry import format_of
from spa.prompts.template import ChatTemplate
from spa.recipes.sft_updates import teacher_forced_accuracy
from spa.worldmodel.sequences import TrainingSequence

SEARCH = """31: Left30 Down31 seen ; 30 32
30 Left: Up10 goal
Left Up</think><answer>Left || Up</answer>"""


class OneTokenPerCharacter:
    """Every character is a token."""

    def decode_response(self, ids):
        return "".join(map(chr, ids))

    def token_text(self, token):
        return chr(token)


def kinds(text: str, form: str) -> list[tuple[str, str]]:
    return [(kind, text[begin:end]) for kind, begin, end in format_of(form).parts(text)]


def test_words_of_a_search_by_hand():
    wanted = [
        ("next", "31"), ("move", "Left30"), ("move", "Down31"), ("status", "seen"), ("open", "30"), ("open", "32"),
        ("next", "30"), ("path", "Left"), ("move", "Up10"), ("status", "goal"),
        ("path", "Left"), ("path", "Up"), ("answer", "Left || Up"),
    ]  # fmt: skip
    assert kinds(SEARCH, "search") == wanted
    assert kinds("<think>" + SEARCH, "search") == wanted


def test_blocks_of_a_response_with_states():
    text = "<observation>a</observation>go<prediction>b</prediction></think><answer>Up</answer>"
    assert kinds(text, "plan_first") == [
        ("observation", "a"),
        ("prediction", "b"),
        ("answer", "Up"),
    ]


def test_a_part_is_right_if_all_its_tokens_are():
    prompt, text = "ask", SEARCH + "\0"
    ids = np.array([*map(ord, prompt + text)], np.int32)
    mask = np.arange(len(ids)) >= len(prompt)
    sequence = TrainingSequence(
        token_ids=ids,
        mask=mask,
        examples=1,
        responses=((len(prompt), len(ids)),),
        prefill="<think>",
    )
    is_right = np.ones((1, len(ids) - 1), bool)
    template = cast(ChatTemplate, OneTokenPerCharacter())
    exact = teacher_forced_accuracy(is_right, [sequence], format_of("search"), template)
    names = ("next", "move", "status", "open", "path", "answer")
    assert exact == {f"val/teacher_forced/{name}": 1.0 for name in names}
    # The last digit of `Left30` is token 9 of the response; entry t is about token t + 1.
    is_right[0, len(prompt) + SEARCH.index("30") + 1 - 1] = False
    # A blank between words belongs to no part.
    is_right[0, len(prompt) + SEARCH.index(" ") - 1] = False
    wrong = teacher_forced_accuracy(is_right, [sequence], format_of("search"), template)
    assert wrong == exact | {"val/teacher_forced/move": 2 / 3}
