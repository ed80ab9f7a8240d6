"""Chat templates: sources composed of pieces of Jinja, well-formed and not."""

from __future__ import annotations

from hypothesis import strategies as st

SOUND = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m.content | trim }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "{% set ns = namespace(system='') %}{%- for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.system = m.content %}{% continue %}{% elif m.role == 'user' %}[INST] "
    "{{ ns.system ~ m.content }} [/INST]{% else %}{% generation %}{{ m.content }}{{ eos_token }}"
    "{% endgeneration %}{% endif %}{% endfor %}",
    "{%- macro show(value) -%}<{{ value | tojson(indent=2) }}>{%- endmacro -%}"
    "{% if tools %}{% for one in tools %}{{ show(one.function) }}{% endfor %}{% endif %}"
    "{% for m in messages if m.content is string %}{{ loop.index0 }}{{ m.content[::-1] | upper }}"
    "{% endfor %}{{ strftime_now('%Y') }}{{ messages | map(attribute='role') | join(',') }}",
    "{% if messages[0].role != 'system' %}{{ raise_exception('begin with the system') }}{% endif %}"
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
)

_NAMES = st.sampled_from(
    ["messages", "messages[0]", "messages[-1].content", "m.role", "m", "tools", "bos_token",
     "loop.index", "loop.previtem", "ns.x", "undefined", "self", "range", "cycler", "joiner",
     "namespace", "lipsum", "dict", "caller", "varargs", "''.__class__", "messages.append", "none",
     "strftime_now", "raise_exception"]
)  # fmt: skip
_LITERALS = st.one_of(
    st.sampled_from(
        ["0", "1", "-1", "3", "1e308", "1e999", "9" * 30, "9" * 5000, "0x1f", "1_0", "true", "none",
         "''", "'a'", "'%s'", "'{0}'", "'{0.__class__}'", "[]", "{}", "()", "[1, 'a', none]",
         "{'a': 1, 'b': [2]}", "'\\ud800'", "'\\x1b[2J'", "'\\n'"]
    ),
    st.integers(-20, 20).map(str),
    st.text(alphabet="ab '\"\\\n{}%é\x1b", max_size=6).map(repr),
)  # fmt: skip
_FILTERS = st.sampled_from(
    ["abs", "attr('__class__')", "batch(2)", "capitalize", "center(20)", "count", "d('x')",
     "dictsort", "escape", "filesizeformat", "first", "float", "forceescape", "format(1)",
     "groupby('role')", "indent(4)", "int", "int(0, 99)", "items", "join", "join(',')", "last",
     "length", "list", "lower", "map('upper')", "map(attribute='role')", "max", "min", "pprint",
     "random", "reject", "rejectattr('role')", "replace('a', 'bb')", "replace('', 'x')", "reverse",
     "round", "round(2, 'ceil')", "safe", "select('string')", "selectattr('role')", "slice(3)",
     "sort", "sort(attribute='role')", "string", "striptags", "sum", "title", "tojson",
     "tojson(indent=2)", "tojson(indent='x')", "trim", "truncate(5)", "unique", "upper",
     "urlencode", "urlize", "wordcount", "wordwrap(3)", "xmlattr", "nonsense"]
)  # fmt: skip
_TESTS = st.sampled_from(
    ["defined", "string", "mapping", "none", "number", "iterable", "odd", "divisibleby(0)",
     "in messages", "sameas(1)", "lower", "nonsense", "callable", "eq(1)", "boolean"]
)  # fmt: skip
_OPERATORS = st.sampled_from(
    ["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", ">=", "and", "or", "in", "not in", "."]
)
_CALLS = st.sampled_from(["range", "namespace", "dict", "cycler", "joiner", "strftime_now",
                          "raise_exception", "lipsum", "m.get", "''.join", "'a'.split",
                          "'a'.format", "'%d'.__mod__", "messages.index", "show", "loop",
                          "super"])  # fmt: skip


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({} {} {})".format, inner, _OPERATORS, inner),
        st.builds("{} | {}".format, inner, _FILTERS),
        st.builds("({} is {})".format, inner, _TESTS),
        st.builds("{}({})".format, _CALLS, inner),
        st.builds("{}[{}]".format, inner, inner),
        st.builds("{}[{}:{}]".format, inner, inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("{{'k': {}}}".format, inner),
        st.builds("not {}".format, inner),
    )


EXPRESSIONS = st.recursive(_NAMES | _LITERALS, _grown, max_leaves=5)


def _blocks(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    some = EXPRESSIONS
    return st.one_of(
        st.builds("{{% for m in {} %}}{}{{% endfor %}}".format, some, inner),
        st.builds("{{% for m in {} recursive %}}{}{{% else %}}x{{% endfor %}}".format, some, inner),
        st.builds("{{% if {} %}}{}{{% else %}}{}{{% endif %}}".format, some, inner, inner),
        st.builds("{{% set x = {} %}}{}".format, some, inner),
        st.builds("{{% set ns.x = {} %}}{}".format, some, inner),
        st.builds("{{% set x %}}{}{{% endset %}}{}".format, inner, inner),
        st.builds(
            "{{% macro show(a, b={}) %}}{}{{% endmacro %}}{{{{ show(1) }}}}".format, some, inner
        ),
        st.builds("{{% call show({}) %}}{}{{% endcall %}}".format, some, inner),
        st.builds("{{% filter {} %}}{}{{% endfilter %}}".format, _FILTERS, inner),
        st.builds("{{% with x = {} %}}{}{{% endwith %}}".format, some, inner),
        st.builds("{{% generation %}}{}{{% endgeneration %}}".format, inner),
        st.builds("{{% block b %}}{}{{% endblock %}}".format, inner),
        st.builds("{}{}".format, inner, inner),
    )


_LEAVES = st.one_of(
    EXPRESSIONS.map("{{{{- {} }}}}".format),
    EXPRESSIONS.map("{{{{ {} }}}}".format),
    st.sampled_from(
        ["{% break %}", "{% continue %}", "{# x #}", "{% raw %}{{{% endraw %}", "{% include 'x' %}",
         "{% extends 'x' %}", "{% import 'x' as y %}", "{% do x %}", "{{", "%}", "{% if %}",
         "{% endfor %}", "{% nonsense %}", "\x1b[2J", "\u202e"]
    ),
    st.text(max_size=8),
)  # fmt: skip

TEMPLATES = st.recursive(_LEAVES, _blocks, max_leaves=6)


@st.composite
def _with_insertions(draw: st.DrawFn) -> str:
    """Draw a sound template with pieces inserted between its tags."""
    source = draw(st.sampled_from(SOUND))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.sampled_from([0, *(i + 2 for i in range(len(source)) if source[i] == "}")]))
        source = source[:at] + draw(TEMPLATES) + source[at:]
    return source


SOURCES = TEMPLATES | _with_insertions()
"""A strategy for the source texts of templates."""
