"""Chat templates that would exhaust time or memory: each is stopped soon by one RdrrError."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from jinja2.filters import FILTERS as JINJAS
from jinja2.sandbox import ImmutableSandboxedEnvironment
from rdrr_format.errors import GenerationError, ManifestError, RdrrError, UsageError
from rdrr_runtime.text import template_budget
from rdrr_runtime.text.chat_template import ChatTemplate
from rdrr_runtime.text.template_budget import MAX_DEPTH, MAX_TEXT, TemplateBudget
from rdrr_runtime.text.template_costs import FILTERS
from rdrr_runtime.text.template_sandbox import MAX_SOURCE
from support.commands import environment

TURNS = [{"role": "user", "content": "Hello, {you}"}, {"role": "assistant", "content": "Hi."}]
SECONDS = 60
"""Limit of CPU time for a template, of its thread only; most take milliseconds."""


def rendered(source: str) -> str:
    return ChatTemplate(source, {}, where="test").render(TURNS)


@contextmanager
def bounded_time(seconds: float = SECONDS) -> Iterator[None]:
    start = time.thread_time()
    yield
    assert time.thread_time() - start < seconds


@pytest.fixture
def tenth_of_the_budget(monkeypatch):
    """The limits that let a rendering last, divided by 10; it must then end 10 times as soon."""
    for limit in ("MAX_STEPS", "MAX_WRITTEN"):
        monkeypatch.setattr(template_budget, limit, getattr(template_budget, limit) // 10)


def doubling(start: str, change: str, times: int = 99) -> str:
    return (
        f"{{% set n = namespace(x={start}) %}}{{% for i in range({times}) %}}"
        f"{{% set n.x = {change} %}}{{% endfor %}}{{{{ n.x is defined }}}}"
    )


LARGE = "'a' * 1000000"
MANY = "{% for a in range(99999) %}{% for b in range(99999) %}"
END = "{% endfor %}{% endfor %}"
HALVES = "{% set n = 'a' * 600 ~ 'b' ~ 'a' * 600 %}{% set t = 'a' * 2499 %}"
"""A text and what it almost contains at each position, so that a search compares 700,000 times."""
SEARCHES = [
    *("n in t", "n not in t", "n is in t", "t.find(n)", "t.rfind(n)", "t.index(n)", "t.rindex(n)"),
    *("t.count(n)", "t.split(n)", "t.rsplit(n)", "t.partition(n)", "t.rpartition(n)"),
    *("t.replace(n, '')", "t | replace(n, '')", "t | trim(n)", "t.strip(n)", "t.lstrip(n)"),
    *("t.rstrip(n)", "[n] | select('in', t) | list"),
]

ENDLESS = {
    "nested ranges": (MANY + END, "steps"),
    "nested ranges of a long body": (MANY + "{{ 1 }}{{ a }}" * 500 + END, "steps"),
    "conditions without an operation": (
        MANY + "{% if not a and not b %}{% endif %}" + END,
        "steps",
    ),
    "a macro that calls itself twice": (
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "steps",
    ),
    "a recursive loop over ranges": (
        "{% for a in range(99999) recursive %}{% if loop.depth < 60 %}"
        "{{ loop(range(99999)) }}{% endif %}{% endfor %}",
        "steps",
    ),
    "repeated searching": (
        f"{{% set x = {LARGE} %}}" + MANY + "{% if 'b' in x %}{% endif %}" + END,
        "steps",
    ),
    "repeated comparing": (
        f"{{% set x = {LARGE} %}}{{% set y = {LARGE} %}}" + MANY + "{{ x == y }}" + END,
        "steps",
    ),
    "repeated splitting": (
        f"{{% set x = {LARGE} %}}" + MANY + "{% set y = x.split('a') %}" + END,
        "steps",
    ),
    "searches that almost succeed": (
        HALVES + MANY + "{% if n in t %}{% endif %}" + END,
        "steps",
    ),
    **{
        f"one long search by {search}": (
            f"{{% set t = 'a' * 8000000 %}}{{% set n = 'a' * 4000000 %}}{{{{ {search} }}}}",
            "steps",
        )
        for search in SEARCHES
    },
    "a text that is looked for among numbers": (
        MANY + "{% if 'a' in range(99999) %}{% endif %}" + END,
        "steps",
    ),
    "keys that are looked for in a view": (
        "{% set k = messages[0].keys() %}" + MANY + "{% if k == k %}{% endif %}" + END,
        "steps",
    ),
    "lists that may have the same hash": (
        "{% set n = namespace(x=[]) %}{% for a in range(1000) %}{% set n.x = n.x + [(a, a)] %}"
        "{% endfor %}" + MANY + "{% set x = n.x | unique | list %}" + END,
        "steps",
    ),
    "many arguments": (
        "{% macro f() %}{{ varargs | length }}{% endmacro %}{% set x = range(99999) | list %}"
        + MANY
        + "{{ f(*x) }}"
        + END,
        "steps",
    ),
    "repeated sorting": (MANY + "{% set x = range(99999) | sort %}" + END, "steps"),
    "text of the template in a loop": (MANY + "x" * 100_000 + END, "writes too much"),
    "the same in a block that is set": (
        "{% set x %}" + MANY + "x" * 100_000 + END + "{% endset %}",
        "writes too much",
    ),
    "the same in a filter block": (
        "{% filter upper %}" + MANY + "x" * 100_000 + END + "{% endfilter %}",
        "writes too much",
    ),
    "doubling by ~": (doubling("'a'", "n.x ~ n.x"), "too large"),
    "doubling by +": (doubling("'a'", "n.x + n.x"), "too large"),
    "doubling a list by +": (doubling("[1]", "n.x + n.x"), "too large"),
    "doubling a list by nesting": (doubling("[1]", "[n.x, n.x]"), "too large"),
    "doubling a dictionary by nesting": (doubling("{}", "{'a': n.x, 'b': n.x}"), "too large"),
    "doubling dict() by nesting": (
        doubling("1", "dict(a=n.x, b=n.x)") + "{{ n.x | tojson }}",
        "too large",
    ),
    "a list in a list": (doubling("[]", "[n.x]", 9999), "nested too deeply"),
    "squaring": (doubling("3", "n.x * n.x"), "number that is too large"),
    "a power": ("{{ 9 ** (9 ** 9) }}", "number that is too large"),
    "a number in another base": ("{{ ('f' * 5000000) | int(base=16) }}", "number"),
    "a macro that calls itself": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "deeply"),
    "a block that calls itself": ("{% block a %}{{ self.a() }}{% endblock %}", "deeply"),
    "a loop that calls itself": (
        "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "deeply",
    ),
    "filler of a batch": ("{{ [1] | batch(10 ** 9, 'x') | list }}", "too large"),
    "slices": ("{{ [1] | slice(10 ** 9) | list }}", "steps"),
    "one long default, many times": (
        f"{{{{ ([0] * 1000) | map('default', {LARGE}, true) | join }}}}",
        "writes too much|too large",
    ),
}

LASTING = [
    name
    for name, (_, words) in ENDLESS.items()
    if words in ("steps", "writes too much") and not name.startswith("one long")
]
"""Templates of many small operations; the others end at a large one."""

LONG_OPERATIONS = [
    "'a' * 10 ** 9",
    "[1] * 10 ** 9",
    "[] * 10 ** 9",
    "10 ** 9 * 'a'",
    "'x' | center(10 ** 9)",
    "'x' | center(width=10 ** 9)",
    "'x'.center(10 ** 9)",
    "'x'.ljust(10 ** 9)",
    "'x'.rjust(10 ** 9)",
    "'x'.zfill(10 ** 9)",
    "'%1000000000d' % 1",
    "'%.1000000000f' % 1",
    "'%(a)1000000000d' % {'a': 1}",
    "'%1000000000d' | format(1)",
    "'{:1000000000}'.format(1)",
    f"('%(a)s' * 100000) % {{'a': {LARGE}}}",
    f"('{{0}}' * 100000).format({LARGE})",
    "('\\n' * 1000000) | indent(10 ** 6)",
    "('\\n' * 1000000) | indent('a' * 10000)",
    f"({LARGE}) | replace('a', 'b' * 1000000)",
    f"({LARGE}).replace('', 'b' * 1000000)",
    f"range(99999) | join({LARGE})",
    f"({LARGE}).join('a' * 10000)",
    "range(9999) | list | tojson | length ~ ('a' * 8388608)",
    "('<' * 8000000) | escape | length",
    "('\\x01' * 8000000) | tojson | length",
]

REFUSED = [
    "'{:{}}'.format(1, 10 ** 9)",
    "'%*d' % (10 ** 9, 1)",
    "'{a}'.format_map({'a': 1})",
    "5 | round(10 ** 9)",
    "5 | round(-(10 ** 9))",
    "[1] | tojson(indent=10 ** 6)",
    "[1] | tojson(separators=('a' * 1000, ':'))",
    "strftime_now('%c' * 1000000)",
    "'{0.items}'.format({})",
    "'{0[items]}'.format({})",
    "{messages[0].keys() | first: 1}[range]",
    "dict(a=1).keys() - dict(a=1).keys()",
    "range(10 ** 9) | list",
    "lipsum(n=10 ** 9)",
    "namespace()",
    "''.__class__.__mro__",
    "messages.append(1)",
    "raise_exception('a' * 8000000)",
    "raise_exception([1] * 100000)",
]

NO_TEMPLATES = {
    "25 loops": "{% for a in b %}" * 25 + "{% endfor %}" * 25,
    "200 conditions": "{% if a %}" * 200 + "{% endif %}" * 200,
    "a number of 5,000 digits": "{{ " + "9" * 5000 + " }}",
    "brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "lists": "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    "a long sum": "{{ " + "1+" * 5000 + "1 }}",
    "not not": "{{ " + "not " * 20_000 + "1 }}",
    "filters": "{{ a" + "|e" * 5000 + " }}",
    "attributes": "{{ a" + ".a" * 5000 + " }}",
    "numbers that have the same hash": "{{ {" + f"{2**61 - 1}: 1, {2**64}: 2" + "} }}",
    "a list as a key": "{{ {(1, 2): 3} }}",
    "a chain of comparisons with `in`": "{{ 1 < 2 in [2] }}",
    "an escape": "{{ '\\x' }}",
    "escaping": "{% autoescape true %}{{ 1 }}{% endautoescape %}",
    "an unknown filter": "{{ 'a' | urlize }}",
    "a block that does not end": "{% raw %}" * 10_000,
    "a comment that does not end": "{#" * 60_000,
}
LONGEST = {
    "10,000 alternatives": "{% if a %}" + "{% elif a %}" * 10_000 + "{% endif %}",
    "a sum of 20,000 terms": "{{ " + "1+" * 20_000 + "1 }}",
    "60,000 filters": "{{ a" + "|e" * 60_000 + " }}",
    "60,000 attributes": "{{ a" + ".a" * 60_000 + " }}",
}
"""The same as others, almost as long as a template may be."""


@pytest.mark.usefixtures("tenth_of_the_budget")
@pytest.mark.parametrize("name", LASTING)
def test_a_template_that_would_not_end_is_stopped(name):
    source, words = ENDLESS[name]
    with bounded_time(SECONDS / 10), pytest.raises(GenerationError, match=words):
        rendered(source)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("nested ranges", marks=pytest.mark.thorough),
        *("text of the template in a loop", *sorted(ENDLESS.keys() - LASTING)),
    ],
)
def test_a_template_is_stopped_by_the_whole_budget(name):
    source, words = ENDLESS[name]
    with bounded_time(), pytest.raises(GenerationError, match=words):
        rendered(source)


@pytest.mark.parametrize("expression", LONG_OPERATIONS)
def test_a_single_long_operation_is_refused_before_it_runs(expression):
    with bounded_time(), pytest.raises(GenerationError, match=r"too large|writes too much"):
        rendered(f"{{{{ {expression} }}}}")
    small = expression
    for digits in ("10 ** 9", "1000000000", "10 ** 6", "1000000", "8000000", "8388608", "99999"):
        small = small.replace(digits, "3")
    assert rendered(f"{{{{ {small} }}}}")  # the control: the same operation on small values


@pytest.mark.parametrize("expression", REFUSED)
def test_expressions_that_templates_do_not_need_are_refused(expression):
    with bounded_time(), pytest.raises(GenerationError) as raised:
        rendered(f"{{{{ {expression} }}}}")
    assert len(str(raised.value)) < 2000


OPAQUE = [
    "range",
    "namespace(a=1)",
    "messages[0].items",
    "messages.count",
    "'a'.upper",
    "messages | map(attribute='role')",
    "range(3)",
    "messages[0].keys()",
    "f",
    "self",
    "cycler('a')",
    "joiner()",
    "raise_exception",
]
"""Values that Python writes with names of classes or with addresses."""

WRITERS = [
    "{{ X }}",
    "{{ '' ~ X }}",
    "{{ [X] }}",
    "{{ [1, {'a': (X, 2)}] }}",
    "{{ {'a': X} | items | list }}",
    "{{ '%s' % X }}",
    "{{ '%s' % (X,) }}",
    "{{ '{}'.format(X) }}",
    "{{ '{a!r}'.format(a=[X]) }}",
    "{{ [X] | string }}",
    "{{ [X] | join }}",
    "{{ [[X]] | map('string') | join }}",
    "{{ [X] | upper }}",
    "{{ [X] | safe }}",
    "{{ [X] | e }}",
    "{{ 'a' | replace('a', [X] | first) }}",
    "{% filter upper %}{{ X }}{% endfilter %}",
    "{% set x %}{{ X }}{% endset %}{{ x }}",
    "{{ {'a': X}.get('a') }}",
]
MESSAGES = [
    "{{ raise_exception([X] | first) }}",
    "{{ {}[[X] | first].b }}",
    "{{ ([X] | first).b.c }}",
    "{{ ([X] | first).__class__.b }}",
    "{{ ([X] | first)(1, 2, 3, 4, 5).a }}",
]
PYTHONS = re.compile(r"<\w|0[xX][\da-fA-F]|Namespace|NAMESPACE|builtin|jinja|dict_|[rR]ange\(")


@pytest.mark.parametrize("writer", WRITERS + MESSAGES)
def test_no_template_writes_a_class_or_an_address(writer):
    for value in OPAQUE:
        source = "{% macro f() %}{% endmacro %}" + writer.replace("X", value)
        try:
            written = rendered(source)
        except GenerationError as error:
            written = str(error)
            assert "refuses the messages" in written
        assert not PYTHONS.search(written), (source, written)
    if writer in WRITERS:  # the control; the others are errors for each value
        assert "text" in rendered(writer.replace("X", "'text'")).lower()


def test_values_that_templates_print_are_written_as_transformers_writes_them():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    for value in (
        "messages", "messages[0]", "[1, 2.5, none, true]", "(1, 'a')", "none", "missing",
        "[missing]", "{'a': [1]}", "'<b>' | e", "'a' | safe ~ 1", "messages | groupby('role')",
        "messages[0].keys() | list", "range(3) | list", "namespace(a=[1]).a", "1 in [1]",
        "'a' not in 'bc'", "'é' * 2", "'%d %s' % (1, [2])", "'{:>4}{a}'.format(1, a=none)",
        "messages | map(attribute='role') | join(', ')", "5 // 2 ** 2", "'a b'.split()",
    ):  # fmt: skip
        source = f"{{{{ {value} }}}}"
        assert rendered(source) == environment.from_string(source).render(messages=TURNS), value


def test_a_function_that_is_only_tested_or_passed_on_is_no_fault():
    assert rendered("{% if range is defined and range is callable %}yes{% endif %}") == "yes"
    assert rendered("{% set n = [namespace(a='x')] %}{{ (n | first).a }}{{ n | length }}") == "x1"
    assert rendered("{% set n = [namespace(a='x')] %}{{ n | map(attribute='a') | join }}") == "x"
    assert rendered("{% macro f(g) %}{{ g(2) | list }}{% endmacro %}{{ f(range) }}") == "[0, 1]"


@pytest.mark.parametrize("other", ["include X", "import X as a", "from X import a", "extends X"])
def test_a_template_cannot_name_another_file(other):
    for name in ("'/etc/hostname'", "'chat_template.jinja'", "messages[0].role"):
        with pytest.raises((GenerationError, ManifestError)):
            rendered(f"{{% {other.replace('X', name)} %}}")
    assert rendered("{% set x = messages[0].role %}{{ x }}") == "user"  # the control


@pytest.mark.parametrize(
    "source",
    [
        *(pytest.param(source, id=name) for name, source in NO_TEMPLATES.items()),
        *(
            pytest.param(source, id=name, marks=pytest.mark.thorough)
            for name, source in LONGEST.items()
        ),
    ],
)
def test_a_template_that_cannot_be_compiled_raises_an_rdrr_error(source):
    with bounded_time(), pytest.raises(ManifestError, match="cannot be read as a chat template"):
        rendered(source)


def test_a_template_has_a_bounded_length():
    assert rendered("x" * MAX_SOURCE) == "x" * MAX_SOURCE
    with pytest.raises(ManifestError, match="too long"):
        rendered("x" * (MAX_SOURCE + 1))


def test_a_value_has_a_bounded_size_and_depth():
    assert len(rendered(f"{{{{ 'a' * {MAX_TEXT} }}}}")) == MAX_TEXT
    with pytest.raises(GenerationError, match="too large"):
        rendered(f"{{{{ 'a' * {MAX_TEXT + 1} }}}}")
    assert rendered(doubling("[]", "[n.x]", MAX_DEPTH - 1))
    with pytest.raises(GenerationError, match="nested too deeply"):
        rendered(doubling("[]", "[n.x]", MAX_DEPTH))


def test_messages_have_a_bounded_length():
    template = ChatTemplate("{{ messages | length }}", {}, where="test")
    message = {"role": "user", "content": "a" * (MAX_TEXT - 1000)}
    assert template.render([message]) == "1"
    with pytest.raises(UsageError, match="too long"):
        template.render([message, message])


def test_circular_or_too_deeply_nested_messages_are_refused():
    template = ChatTemplate("{{ messages | length }}", {}, where="test")
    circle: dict = {"role": "user"}
    circle["content"] = circle
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    for wrong in (circle, {"role": "user", "content": deep}):
        with pytest.raises(UsageError, match="JSON"):
            template.render([wrong])
    for wrong in (5, None):
        with pytest.raises(UsageError, match="JSON"):
            template.render(wrong)


def test_a_long_conversation_is_rendered_within_the_budget():
    turns = [{"role": role, "content": "word " * 200} for role in ("user", "assistant")] * 1000
    source = (
        "{% for m in messages %}{% if m.role == 'user' and 'x' not in m.content %}"
        "{{ '<u>' + m.content | trim }}{% elif loop.last or not m['content'].startswith('x') %}"
        "{% set parts = m.content.split('</think>') %}{{ parts[-1].strip('\\n') ~ '</a>' }}"
        "{% endif %}{{ messages | length }}{% endfor %}"
    )
    with bounded_time():
        text = ChatTemplate(source, {}, where="test").render(turns)
    assert len(text) > 2_000_000


def test_each_rendering_has_a_budget_of_its_own(monkeypatch):
    monkeypatch.setattr(template_budget, "MAX_STEPS", 2000)
    template, longer = (
        ChatTemplate(f"{{% for a in range({count}) %}}{{{{ a }}}}{{% endfor %}}", {}, where="test")
        for count in (90, 9000)
    )
    assert len({template.render(TURNS) for _ in range(30)}) == 1
    with pytest.raises(GenerationError, match="2000 steps"):
        longer.render(TURNS)


def test_every_filter_of_jinja_is_offered_except_the_six_listed_here():
    missing = {"pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr"}
    assert set(JINJAS) - set(FILTERS) == missing


def test_an_error_of_the_budget_is_an_rdrr_error():
    with pytest.raises(RdrrError):
        TemplateBudget("test").check_size(MAX_TEXT + 1)


@pytest.mark.parametrize("name", ["doubling by ~", "doubling a list by nesting"])
def test_little_memory_is_used_before_a_template_is_refused(name):
    code = (
        "import resource, sys\n"
        "from rdrr_format.errors import RdrrError\n"
        "from rdrr_runtime.text.chat_template import ChatTemplate\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({1 << 30}, {1 << 30}))\n"
        f"try:\n    ChatTemplate({ENDLESS[name][0]!r}, {{}}, where='t').render([])\n"
        "except RdrrError as error:\n    sys.exit(str(error))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 1
    assert ENDLESS[name][1] in done.stderr
