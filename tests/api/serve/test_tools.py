"""Tools and reasoning, for a model that writes what a test gives it."""

from __future__ import annotations

import json
from contextlib import contextmanager

import openai
import pytest
from rdrr.serve.response_requests import ResponsesRequest
from rdrr.serve.tools import Tools
from rdrr_format.errors import UsageError
from rdrr_runtime.text.answer_formats import PLAIN, recognise
from support.serving import TOOLS_TEMPLATE, scripted

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
OTHER = {"type": "function", "function": {"name": "time"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ASKED = {
    "model": "small-llama",
    "messages": [{"role": "user", "content": "Rain in Paris?"}],
    "max_tokens": 64,
}


@contextmanager
def chatting(worker, tmp_path, *texts, template=TOOLS_TEMPLATE):
    file = tmp_path / f"template-{len(template)}.jinja"
    file.write_text(template, encoding="utf-8")
    with (
        scripted(worker.model, *texts, template=file) as (url, script),
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client, script


def test_reasoning_content_and_calls_come_apart_whole_and_streamed(worker, tmp_path):
    text = f"<think>\nLet me see.\n</think>\n\nI look it up.\n{CALL}\n{CALL}"
    with chatting(worker, tmp_path, text, text) as (client, script):
        whole = client.chat.completions.create(**ASKED, tools=[TOOL]).choices[0]
        chunks = [*client.chat.completions.create(**ASKED, tools=[TOOL], stream=True)]
    assert '"weather"' in script.prompt
    assert (whole.message.content, whole.message.reasoning_content) == (
        "I look it up.",
        "Let me see.",
    )
    first, second = whole.message.tool_calls
    assert (first.function.name, json.loads(first.function.arguments)) == (
        "weather",
        {"city": "Paris"},
    )
    assert first.id != second.id
    assert whole.finish_reason == "tool_calls"
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == "I look it up."
    thoughts = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert thoughts == "Let me see."
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    assert [(call.index, call.function.name) for call in calls] == [(0, "weather"), (1, "weather")]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_reasoning_that_the_prompt_begins_is_reasoning(worker, tmp_path):
    with chatting(worker, tmp_path, "Hm.\n</think>\nYes.", "Hm.") as (client, _):
        body = {"chat_template_kwargs": {"thinks": True}}
        thought = client.chat.completions.create(**ASKED, extra_body=body).choices[0].message
        plain = client.chat.completions.create(**ASKED).choices[0].message
    assert (thought.reasoning_content, thought.content) == ("Hm.", "Yes.")
    assert plain.content == "Hm."
    assert not hasattr(plain, "reasoning_content")


def test_without_tools_what_looks_like_a_call_is_content(worker, tmp_path):
    with chatting(worker, tmp_path, CALL, CALL) as (client, _):
        for options in ({}, {"tools": [TOOL], "tool_choice": "none"}):
            choice = client.chat.completions.create(**ASKED, **options).choices[0]
            assert choice.message.content == CALL
            assert choice.finish_reason == "stop"


def test_calls_and_results_of_before_are_in_the_prompt(worker, tmp_path):
    call = {"name": "weather", "arguments": '{"city": "Paris"}'}
    said = [
        *ASKED["messages"],
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "rain"}]},
    ]
    asked = ASKED | {"messages": said, "tools": [TOOL]}
    with chatting(worker, tmp_path, "Rain.") as (client, script):
        client.chat.completions.create(**asked)
        assert '"arguments": {"city": "Paris"}}</tool_call>' in script.prompt
        assert "rain" in script.prompt
    told = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    with chatting(worker, tmp_path, CALL, template=told) as (client, script):
        choice = client.chat.completions.create(**asked).choices[0]
        assert choice.message.tool_calls[0].function.name == "weather"
        assert "user: <tool_response>rain</tool_response>" in script.prompt
        assert script.prompt.startswith("system: You may call tools")


def test_an_answer_goes_on_where_the_last_message_ends(worker, tmp_path):
    messages = [*ASKED["messages"], {"role": "assistant", "content": "Yes, and<|im_end|>"}]
    with chatting(worker, tmp_path, " how.") as (client, script):
        answer = client.chat.completions.create(**ASKED | {"messages": messages})
    assert answer.choices[0].message.content == " how."
    assert script.prompt.endswith("assistant\nYes, and<|im_end|>")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "time"}}])
def test_a_forced_call_begins_in_the_prompt_and_has_its_form(worker, tmp_path, choice):
    name = "weather" if choice == "required" else "time"
    text = json.dumps({"name": name, "arguments": {"city": "Rome"}})
    options = {"tools": [TOOL, OTHER], "tool_choice": choice}
    options["response_format"] = {"type": "json_object"}  # which is that of a message
    with chatting(worker, tmp_path, text) as (client, script):
        body = {"chat_template_kwargs": {"thinks": True}}
        answer = client.chat.completions.create(**ASKED, **options, extra_body=body)
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (name, {"city": "Rome"})
    assert script.prompt.endswith("<think>\n</think>\n\n<tool_call>\n")
    schema = script.asked[0].response_format["json_schema"]["schema"]
    allowed = [each["properties"]["name"]["const"] for each in schema.get("anyOf", [schema])]
    assert allowed == (["weather", "time"] if choice == "required" else ["time"])


def test_a_forced_call_of_the_bundled_model_satisfies_its_schema(client):
    answer = client.chat.completions.create(
        **ASKED | {"temperature": 0}, tools=[TOOL], tool_choice="required"
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    assert answer.choices[0].message.content is None


def test_definitions_of_a_schema_stay_at_its_root():
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    wanted, name = Tools.of(tools, "required").call_format(PLAIN)
    assert name == ""
    assert wanted["json_schema"]["schema"]["$defs"] == {"A": {}}
    assert "$defs" not in wanted["json_schema"]["schema"]["properties"]["arguments"]
    harmony = recognise("<|channel|><|message|>")
    assert Tools.of(tools, "required").call_format(harmony)[1] == "f"


def allowed(mode: str, *names: str) -> dict:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("choice", "names", "forced"),
    [
        (allowed("auto", "time"), ["time"], None),
        (allowed("required", "time"), ["time"], "time"),
        (allowed("required", "weather", "time"), ["weather", "time"], ""),
        ("auto", ["weather", "time"], None),
    ],
)
def test_only_the_tools_that_are_allowed_are_stated(choice, names, forced):
    tools = Tools.of([TOOL, OTHER], choice)
    assert [tool["function"]["name"] for tool in tools.stated] == names
    assert ([*tools.schemas], tools.forced) == (names, forced)


def test_responses_state_allowed_tools_beside_the_type():
    tools = [{"type": "function", "name": "weather"}, {"type": "function", "name": "time"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": tools[1:]}
    asked = ResponsesRequest(model="a", input="a", tools=tools, tool_choice=choice).as_chat([])
    assert Tools.of(asked.tools, asked.tool_choice).forced == "time"


@pytest.mark.parametrize(
    ("tools", "choice", "words"),
    [
        ([], "required", "no tools"),
        ([TOOL], {"type": "function", "function": {"name": "rain"}}, "not among"),
        ([TOOL], "sometimes", "tool_choice"),
        ([TOOL], allowed("auto", "rain"), "not among"),
        ([TOOL], allowed("auto"), "tool_choice"),
        ([TOOL], allowed("sometimes", "weather"), "tool_choice"),
        ([{"type": "web_search"}], None, "functions"),
        ([{"type": "function", "function": {}}], None, "functions"),
        ([TOOL] * 129, None, "128"),
    ],
    ids=["no tools", "unknown", "choice", "allowed", "none", "mode", "kind", "no name", "many"],
)
def test_wrong_tools_are_refused(tools, choice, words):
    with pytest.raises(UsageError) as caught:
        Tools.of(tools, choice)
    assert words in str(caught.value)
    assert Tools.of([TOOL], "auto").forced is None
