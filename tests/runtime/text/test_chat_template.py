"""Chat templates, compared with the rendering of transformers."""

from __future__ import annotations

import re

import pytest
from rdrr_format.errors import GenerationError, ManifestError, UsageError
from rdrr_runtime.text.chat_template import ChatTemplate

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TURNS = [
    {"role": "system", "content": "Be brief; <b>be</b> & 'kind'."},
    {"role": "user", "content": "Grüße, 你好\n  "},
    {"role": "assistant", "content": " Hello.\n"},
    {"role": "user", "content": "And?"},
]
TOOLS = [{"type": "function", "function": {"name": "tëst", "parameters": {"b": [1, 2], "a": None}}}]
TEMPLATES = {
    "chatml": """{% for m in messages %}
    {{- '<|im_start|>' + m['role'] + '\\n' + m.content | trim + '<|im_end|>\\n' }}
{% endfor %}
  {% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}""",
    "instruct": """{{ bos_token }}{% set ns = namespace(system='') %}
{%- for m in messages %}{% if m.role == 'system' %}{% set ns.system = m.content %}{% continue %}
{%- elif m.role == 'user' %}[INST] {{ ns.system ~ '\\n' if ns.system else '' }}
{{- m.content }} [/INST]
{%- set ns.system = '' %}{% else %}{% generation %}{{ m['content'] }}{{ eos_token }}
{% endgeneration %}{% endif %}{% endfor %}""",
    "tools": """{%- macro show(value) -%}<{{ value | tojson }}>{%- endmacro -%}
{% if tools %}{{ tools | tojson(indent=2) }}
    {% for one in tools %}{{ show(one.function) }}{% endfor %}
{% endif %}
{% for m in messages if m.content is string %}{% if loop.index > 3 %}{% break %}{% endif %}
{{ loop.index0 }}{{ m.content[::-1] | upper }}{% endfor %}
{{ mask_token is defined }}{{ flag | default('no') }}
{{ strftime_now('%Y') }}{{ messages | map(attribute='role') | join(',') }}""",
}


@pytest.fixture(scope="module")
def oracle():
    from transformers.utils.chat_template_utils import render_jinja_template

    def render(source, messages, **variables):
        return render_jinja_template([messages], chat_template=source, **TOKENS, **variables)[0][0]

    return render


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("prompt", [True, False])
def test_the_rendered_text_equals_that_of_transformers(oracle, name, tools, prompt):
    template = ChatTemplate(TEMPLATES[name], TOKENS, where="test")
    text = template.render(
        TURNS, tools=tools, add_generation_prompt=prompt, variables={"flag": "yes"}
    )
    expected = oracle(TEMPLATES[name], TURNS, tools=tools, add_generation_prompt=prompt, flag="yes")
    assert text == expected
    assert len(text) > 50


def test_the_text_after_an_answer_is_found():
    chatml = ChatTemplate(TEMPLATES["chatml"], TOKENS, where="test")
    assert chatml.after_answer().strip() == "<|im_end|>"
    refusing = ChatTemplate("{{ raise_exception('no') }}", TOKENS, where="test")
    assert refusing.after_answer() == ""


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].nothing.more }}",
        "{{ 1 + 'a' }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
    ],
)
def test_a_template_that_refuses_or_leaves_the_sandbox_raises_a_generation_error(source):
    with pytest.raises(GenerationError, match="refuses"):
        ChatTemplate(source, {}, where="test").render(TURNS)


def test_an_invalid_template_and_invalid_messages_are_refused():
    with pytest.raises(ManifestError, match="chat template"):
        ChatTemplate("{% for %}", {}, where="test")
    template = ChatTemplate("{{ messages | length }}", {}, where="test")
    assert template.render(TURNS) == "4"
    with pytest.raises(UsageError, match="JSON"):
        template.render([{"role": "user", "content": object()}])


@pytest.mark.parametrize("wrong", ["hello", ["hello"], {"role": "user"}, [{"rol": "hello"}]])
def test_messages_that_are_no_objects_with_a_role_are_refused_with_an_example(wrong):
    with pytest.raises(
        UsageError, match=r'expected \[\{"role": "user".*found ' + re.escape(repr(wrong))
    ):
        ChatTemplate("{{ messages | length }}", {}, where="test").render(wrong)
