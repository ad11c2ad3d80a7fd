"""What is trained is what will be served: a template of every family, replayed, classified, and pinned where it must."""

from datetime import datetime
from itertools import product
from pathlib import Path

import pytest
from helpers.families import CHATML, tokenizer
from helpers.template_families import STYLES, styled_template, styled_tokenizer, with_table
from jinja2 import TemplateError
from transformers import AutoTokenizer

from spa.errors import ModelError
from spa.prompts import sandbox, template_parts
from spa.prompts.template import ChatTemplate
from spa.prompts.template_check import CONVERSATIONS, DROPS, EXACT, REWRITES, SYSTEM_TURN, alternate
from spa.prompts.template_parts import renderer
from spa.prompts.token_check import appended, check_tokens, joined_borders, opener_of, served_ids

DATED = "changes with the date, which is fixed to 2024-07-26"
DEFAULT, OPENS, ENDLESS = (
    "writes a system turn of its own where there is none",
    "opens replies in its own way",
    "does not end replies",
)
FOUND = {
    "qwen2": (EXACT, (DEFAULT,), False),
    "smollm2": (EXACT, (DEFAULT,), False),
    "zephyr": (EXACT, (), False),
    "phi3": (EXACT, (), False),
    "glm4": (EXACT, (), False),
    "strict": (EXACT, ("needs a system turn",), False),
    "dated": (EXACT, (DATED,), True),
    "qwen3": (DROPS, (), True),
    "smollm3": (EXACT, (DATED, DEFAULT), True),
    "llama3": (DROPS, (DATED,), True),
    "gemma1": (DROPS, ("forbids a system turn",), True),
    "gemma3": (DROPS, (), True),
    "llama2": (DROPS, (OPENS,), True),
    "mistral_v03": (REWRITES, (OPENS,), True),
    "deepseek_r1": (DROPS, (OPENS,), True),
    "deepseek_v31": (REWRITES, (OPENS,), True),
    "gpt_oss": (EXACT, (DATED, OPENS), True),
    "chatglm2": (REWRITES, (ENDLESS,), True),
    "falcon": (DROPS, (OPENS, ENDLESS), True),
    "window": (DROPS, (), True),
}
USED = list(FOUND)
PINNED = [name for name, (_, _, pinned) in FOUND.items() if pinned]


@pytest.mark.parametrize("name", USED)
def test_every_family_has_its_class(name):
    report = styled_template(name).report
    assert (report.kind, report.traits, report.pinned) == FOUND[name]
    assert bool(report.difference) == (report.kind != EXACT)
    assert report.date == ("2024-07-26" if DATED in report.traits else "")


def test_a_template_that_loses_replies_is_refused_with_the_reason():
    with pytest.raises(ModelError, match="drops or reorders messages"):
        styled_template("forgetful")
    assert set(STYLES) == {*FOUND, "forgetful"}


def test_the_table_of_the_docs_is_what_is_found():
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    assert with_table(page) == page, "run in tests/: python -m helpers.template_families ../docs/models.md"


@pytest.mark.parametrize("name", USED)
def test_a_saved_tokenizer_alone_reads_what_was_trained(name, tmp_path):
    made = styled_template(name)
    made.save_pretrained(tmp_path)
    plain = AutoTokenizer.from_pretrained(tmp_path)
    for users, replies in CONVERSATIONS:
        messages = [SYSTEM_TURN, *alternate(users, replies)]
        text = plain.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        served = plain(text + opener_of(messages), add_special_tokens=False)["input_ids"]
        ours, borders = appended(made, messages)
        assert plain.decode(served) == plain.decode(ours)
        joined_borders(ours, served, borders)


@pytest.mark.parametrize("name", USED)
def test_a_checkpoints_template_is_exact_and_changes_no_prompt(name, tmp_path):
    made = styled_template(name)
    made.save_pretrained(tmp_path)
    again = ChatTemplate(AutoTokenizer.from_pretrained(tmp_path), stop_ids=made.stop_ids)
    check_tokens(again)
    assert again.report.kind == EXACT
    assert (again.stop_ids, again.end_ids) == (made.stop_ids, made.end_ids)
    for users, replies in CONVERSATIONS:
        messages = [SYSTEM_TURN, *alternate(users, replies)]
        assert appended(again, messages) == appended(made, messages)


@pytest.mark.parametrize("name", PINNED)
def test_a_reply_that_was_begun_is_continued_by_a_plain_server(name):
    made = styled_template(name)
    messages = [SYSTEM_TURN, {"role": "user", "content": "Rules."}, {"role": "assistant", "content": "<think>"}]
    text = made.tokenizer.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    assert made.encode(text) == made.start(tuple(messages[:2]), "<think>")


def test_prompts_do_not_change_with_the_date(monkeypatch):
    assert "26 Jul 2024" in (text := served_text("llama3"))
    assert served_text("dated").startswith("<|im_start|>system\nIt is Friday, 26 Jul 2024. You play")

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2031, 11, 5)

    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Later)
    assert "05 Nov 2031" in styled_tokenizer("llama3").apply_chat_template([SYSTEM_TURN], tokenize=False)
    assert served_text("llama3") == text


def served_text(name: str) -> str:
    made = styled_template(name)
    return made.tokenizer.decode(served_ids(made, [SYSTEM_TURN, *alternate(["Rules."], [])]))


def test_a_thinking_model_is_not_told_to_stop_thinking():
    assert "Reasoning Mode: /think\n" in served_text("smollm3")


def test_white_space_of_the_users_text_is_what_the_template_makes_of_it():
    messages = (SYSTEM_TURN, {"role": "user", "content": "  a \n"})
    for name, kept in (("qwen2", "  a \n"), ("llama3", "a")):
        made = styled_template(name)
        for ids in (made.start(messages, "<think>"), made.follow("  a \n", "<think>")):
            text = made.tokenizer.decode(ids)
            place = text.rindex("user") + len("user")
            assert text[place:].startswith(("\n" if name == "qwen2" else "<|end_header_id|>\n\n") + kept + "<|")


@pytest.mark.parametrize("name", ["llama2", "qwen2", "chatglm2", "zephyr"])
def test_an_end_marker_of_any_length_is_never_doubled(name):
    made = styled_template(name)
    whole = made.follow("on", "<think>")
    count = len(made.end_ids)
    assert whole[:count] == made.end_ids and made.end_id in made.stop_ids
    reply = made.reply_ids("<think>x</think>", "<think>")
    for sampled in range(count + 1):  # a reply that was cut off inside the marker gets the rest
        assert made.follow("on", "<think>", reply=reply[: len(reply) - count + sampled]) == whole[sampled:]
    assert made.follow("on", "<think>", reply=[*reply[:-count], made.end_id]) == whole[count:]
    assert len(styled_template("llama2").end_ids) == 2


@pytest.mark.parametrize("name", ["llama2", "mistral_v03", "zephyr"])
@pytest.mark.parametrize("reply", ["x", " x", "\nx y", "", "é\n"])
def test_replies_are_encoded_and_decoded_in_context(name, reply):
    made = styled_template(name)
    ids = made.reply_ids("<think>" + reply, "<think>")
    assert made.decode_reply(ids) == reply
    prompt = made.start(({"role": "user", "content": "go"},), "<think>")
    read = made.tokenizer.decode([*prompt, *ids[: -len(made.end_ids)]])
    assert read.endswith("<think>" + reply)
    assert made.encode(read.rpartition("<think>")[2]) != ids or not reply  # alone it would be read otherwise


@pytest.mark.parametrize("name", USED)
def test_control_tokens_in_a_text_are_text(name):
    made = styled_template(name)
    control = [*STYLES[name].specials, "<pad>"]
    hostile = "".join(f"a{text}{text}" for text in control) + " \ufdd0<think>"
    plain = (SYSTEM_TURN, {"role": "user", "content": "go"})
    ids = made.start((SYSTEM_TURN, {"role": "user", "content": f"go{hostile}"}), "<think>")
    special = set(made.tokenizer.convert_tokens_to_ids(control))
    expected = [i for i in made.start(plain, "<think>") if i in special]
    assert [i for i in ids if i in special] == expected
    assert hostile in made.tokenizer.decode(ids)
    later, quiet = made.follow(f"go{hostile}", "<think>"), made.follow("go", "<think>")
    assert [i for i in later if i in special] == [i for i in quiet if i in special]
    assert hostile in made.tokenizer.decode(later)
    reply = made.reply_ids("<think>" + hostile, "<think>")
    assert not special & set(reply[: -len(made.end_ids)])
    assert made.decode_reply(reply) == hostile


def test_stop_ids_are_those_of_tokenizer_template_and_generation_config():
    names = {name: set(styled_template(name).tokenizer.convert_ids_to_tokens(sorted(stops(name)))) for name in USED}
    assert names["phi3"] == {"<|end|>", "<|endoftext|>", "<|assistant|>"}
    assert names["glm4"] == {"<|endoftext|>", "<|user|>", "<|observation|>"}
    assert names["qwen2"] == {"<|im_end|>", "<|endoftext|>"}
    assert names["gemma1"] == {"<eos>", "<end_of_turn>"}
    assert names["chatglm2"] == {"</s>"}


def stops(name: str) -> frozenset[int]:
    return styled_template(name).stop_ids


NESTED = (
    "{%% for i in range(99999) %%}{%% for j in range(99999) %%}{{ %s if i > j else %s }}{%% endfor %%}{%% endfor %%}"
)

DOUBLED = (
    "{%% set ns = namespace(a=['x'], b=['x']) %%}{%% for i in range(40) %%}{%% set ns.a = [ns.a, ns.a] %%}"
    "{%% set ns.b = [ns.b, ns.b] %%}{%% endfor %%}%s"
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ raise_exception('not like this') }}", "cannot be used: not like this"),
        ("{% for message in %}", "cannot be used: Expected an expression"),
        ("{{ messages[7]['content'] }}", "cannot be used"),
        ("{{ messages.nothing() }}", "cannot be used"),
        ("{{ 1 / 0 }}", "cannot be used: division by zero"),
        ("{%- macro f() -%}{{ f() }}{%- endmacro -%}{{ f() }}", "cannot be used: maximum recursion depth"),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", "cannot be used"),
        ("{% for i in range(99999) %}{{ 'x' * 99 }}{% endfor %}", "writes more than"),
        (NESTED % ("'x'", "'x'"), "writes more than"),
        (NESTED % ("''", "''"), "works for more than"),
        ("{% for i in range(99999) %}{% for j in range(99999) if false %}x{% endfor %}{% endfor %}", "works for more"),
        (
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
            "works for more",
        ),
        (
            "{% set ns = namespace(s='xx') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
            "characters",
        ),
        ("{% set ns = namespace(s='xx') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "parts"),
        ("{% set ns = namespace(n=9) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}", "digits"),
        ("{{ 9 ** (9 ** 9) }}", "computes with a number of"),
        ("{{ ('x' * 10 ** 10)[:1] }}", "makes something of 10,000,000,000 parts"),
        ("{{ ([0] * 10 ** 10)[:1] }}", "makes something of 10,000,000,000 parts"),
        ("{{ range(-10 ** 9, 0) | list }}", "asks for 1,000,000,000 of something"),
        ("{{ 'x' | center(10 ** 10) }}", "asks for 10,000,000,000 of something"),
        ("{{ 'x'.ljust(10 ** 10) }}", "asks for 10,000,000,000 of something"),
        ("{{ '%9999999999d' % 1 }}", "a great width"),
        ("{{ '{:>9999999999}'.format(1) }}", "a great width"),
        ("{{ ('x' * 9999).replace('x', 'y' * 9999).replace('y', 'z' * 9999) }}", "makes something of"),
        ("{{ (['x' * 9999] * 9999) | join }}", "makes something of"),
        ("{{ ','.join(['x' * 9999] * 9999) }}", "makes something of"),
        (DOUBLED % "{{ ns.a }}", "makes something of"),
        (DOUBLED % "{{ ns.a == ns.b }}", "makes something of"),
        (
            "{% set ns = namespace(n=namespace()) %}{% for i in range(40) %}{% set ns.n = namespace(a=ns.n, b=ns.n) %}"
            "{% endfor %}{{ ns }}",
            "makes something of",
        ),
        ("{{ [2 ** 1500] * 9999 }}", "makes something of"),
        ("{{ ([[1]] * 3000) | tojson(indent=50000) }}", "writes more than"),
        ("{{ ([1] * 9999) | tojson(separators=('x' * 9999, ':')) }}", "writes more than"),
        ("{{ '{0:{1[0]}}'.format('x', [300000000]) }}", "a great width"),
        ("{{ ('{0:99999}' * 999).format(1) }}", "makes something of"),
        ("{{ ('{0}' * 9999).format('x' * 9999) }}", "makes something of"),
        ("{{ ('%(a)s' * 9999) % {'a': 'x' * 9999} }}", "makes something of"),
        ("{{ ('%(a)s' * 9999) | format(a='x' * 9999) }}", "makes something of"),
        ("{{ '%-*d' % (300000000, 1) }}", "a great width"),
        ("{{ range(99999) | join('x' * 9999) }}", "makes something of"),
        ("{{ range(9999) | map('center', 9999) | join }}", "makes something of"),
        ("{{ (range(99999) | map('center', 99999) | list)[:1] }}", "makes more than|works for more than"),
        ("{{ ('x ' * 9999) | wordwrap(1, wrapstring='x' * 9999) }}", "makes something of"),
        ("{{ ('x\n' * 9999) | indent('x' * 9999) }}", "makes something of"),
        ("{{ ('x' * 9999).translate({120: 'y' * 9999}) }}", "makes something of"),
        ("{% set t = 'x' * 9999 %}{{ t.replace('x', t) }}", "makes something of"),
        ("{{ 'x'.encode() }}", "makes bytes"),
        ("{{ ['x', 'y'] | random }}", "No filter named 'random'"),
        ("{{ lipsum() }}", "'lipsum' is undefined"),
        ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "begins with an underscore"),
        ("x" * (template_parts.MAX_TEMPLATE + 1), "at most 262,144 characters"),
    ],
)
def test_a_template_that_cannot_be_used_is_one_clean_error(text, words, monkeypatch):
    monkeypatch.setattr(sandbox, "SECONDS", 0.2)
    made = tokenizer("qwen2")
    monkeypatch.setattr(made, "chat_template", text)
    with pytest.raises(ModelError, match=words):
        ChatTemplate(made)


def test_a_template_that_hangs_on_what_is_said_ends_in_one_error(monkeypatch):
    made = tokenizer("qwen2")
    monkeypatch.setattr(sandbox, "SECONDS", 0.2)
    late = "{%- if 'hang' in messages[-1]['content'] -%}" + NESTED % ("''", "''") + "{%- endif -%}"
    monkeypatch.setattr(made, "chat_template", late + CHATML)
    working = ChatTemplate(made)
    assert working.report.kind == EXACT
    with pytest.raises(ModelError, match="works for more than"):
        working.start(({"role": "user", "content": "hang"},), "<think>")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("{{ '**%s** 100%% of %5.1f' % ('a', 2) }}", "**a** 100% of   2.0"),
        ('{{ \'{"a": {"b": "%s"}}\' | format(\'x\') }}', '{"a": {"b": "x"}}'),
        ("{{ '{{**}} {:>4}|{0:*^5}'.replace('{:', '{0:').format('x') }}", "{**}    x|**x**"),
        ("{{ [1, 'a', [2]] | join(', ') }} {{ ', '.join(['a', 'b']) }} {{ {'a': 1} | join }}", "1, a, [2] a, b a"),
        ("{{ [{'r': 'a'}, {'r': 'b'}] | join('-', attribute='r') }}", "a-b"),
        ("{{ {'b': [1, {}], 'a': 'ü'} | tojson }}", '{"b": [1, {}], "a": "ü"}'),
        ("{{ {'b': [1], 'a': none} | tojson(indent=2, sort_keys=true) }}", '{\n  "a": null,\n  "b": [\n    1\n  ]\n}'),
        ("{% set ns = namespace(a=(1, 'x')) %}{% set b, c = ns.a %}{{ ns }}{{ [b, c] }}{{ 1 in [b] }}", None),
        ("{{ ('x' * 9999).replace('x' * 9999, 'y') }}{{ ('x' * 9999) | replace('x' * 9999, 'y') }}", "yy"),
        ("{% for a, b in {'x': 1}.items() %}{{ a ~ b }}{% endfor %}{{ messages[0].items() | list }}", None),
    ],
)
def test_what_is_counted_is_written_as_ever(text, written, monkeypatch):
    made = tokenizer("qwen2")
    monkeypatch.setattr(made, "chat_template", text)
    messages = [{"role": "user", "content": "hello"}]
    shown = renderer(made, text)(messages)
    assert shown == made.apply_chat_template(messages, tokenize=False) and written in (None, shown)


@pytest.mark.parametrize("name", STYLES)
def test_the_sandbox_writes_what_transformers_writes(name):
    made = styled_tokenizer(name)
    render = renderer(made, made.chat_template)
    for (users, replies), lead, generation in product(CONVERSATIONS, ([SYSTEM_TURN], []), (True, False)):
        messages = [*lead, *alternate(users, replies)]
        try:
            expected = made.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation)
        except TemplateError:
            with pytest.raises(ModelError):
                render(messages, generation)
        else:
            assert render(messages, generation) == expected


def test_a_template_that_fails_late_is_replaced(monkeypatch):
    made = tokenizer("qwen2")
    late = "{%- if messages | length > 9 -%}{{- raise_exception('too long') -}}{%- endif -%}"
    monkeypatch.setattr(made, "chat_template", late + CHATML)
    report = ChatTemplate(made).report
    assert (report.kind, report.pinned) == (REWRITES, True) and "too long" in report.difference


def test_a_tokenizer_that_reads_wholes_otherwise_is_refused():
    with pytest.raises(ModelError, match="splits a whole conversation differently than turn by turn"):
        joined_borders([1, 2, 3, 4], [1, 9, 3, 4], [3])
    assert joined_borders([1, 2, 3, 4], [1, 2, 9, 4], [3]) == 1
