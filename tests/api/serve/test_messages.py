"""Anthropic's own client against the server."""

from __future__ import annotations

import json

import anthropic
import pytest
from support.serving import scripted

ASKED = {"model": "small-llama", "max_tokens": 8}
GREEDY = {**ASKED, "extra_body": {"temperature": 0}}
MESSAGES = [{"role": "user", "content": "Who was the father of Isaac?"}]
TOOL = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
SAID = f"<think>Hm.</think>I look.\n{CALL}"


def opened(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


@pytest.fixture
def own(server):
    with opened(f"http://127.0.0.1:{server.port}") as client:
        yield client


def test_a_message_is_answered_as_openai_s_chat_is(client, own):
    said = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    expected = client.chat.completions.create(messages=said, temperature=0, **ASKED)
    options = {"system": "Be brief.", "messages": MESSAGES, **GREEDY}
    answer = own.messages.create(**options)
    with own.messages.stream(**options) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    counted = own.messages.count_tokens(model="small-llama", system="Be brief.", messages=MESSAGES)
    text = expected.choices[0].message.content
    assert (answer.content[0].text, streamed) == (text, text)
    assert (answer.stop_reason, final.stop_reason) == ("max_tokens", "max_tokens")
    assert expected.usage.prompt_tokens == counted.input_tokens
    for usage in (answer.usage, final.usage):  # the chat before has left all but the last token
        assert usage.cache_read_input_tokens == counted.input_tokens - 1
        assert usage.input_tokens == 1
    assert answer.usage.output_tokens == final.usage.output_tokens == 8


def test_a_schema_holds_for_the_answer_under_both_names(own):
    form = {"type": "json_schema", "schema": {"enum": ["Abraham", "Moses"]}}
    for fields in ({"output_config": {"format": form}}, {"output_format": form}):
        asked = {**GREEDY, "extra_body": {"temperature": 0, **fields}}
        answer = own.messages.create(messages=MESSAGES, **asked)
        assert json.loads(answer.content[0].text) in ("Abraham", "Moses")


def test_the_effort_is_a_variable_of_the_template(worker, tmp_path):
    template = tmp_path / "effort.jinja"
    template.write_text("{{ reasoning_effort }} effort", encoding="utf-8")
    with scripted(worker.model, "ok", template=template) as (url, script), opened(url) as client:
        client.messages.create(messages=MESSAGES, output_config={"effort": "low"}, **ASKED)
    assert script.prompt == "low effort"


def test_thoughts_text_and_calls_are_blocks_in_their_order(worker, tools_template):
    history = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "rain"},
                {"type": "text", "text": "And in Paris?"},
            ],
        },
    ]
    asked = {"messages": history, "tools": [TOOL], "tool_choice": {"type": "auto"}, **ASKED}
    with scripted(worker.model, SAID, SAID, SAID, template=tools_template) as (url, script):
        with opened(url) as client:
            answer = client.messages.create(**asked)
            with client.messages.stream(**asked) as stream:
                final = stream.get_final_message()
            events = [*client.messages.create(**asked, stream=True)]
        prompt = script.prompt
    deltas = [event.delta.type for event in events if event.type == "content_block_delta"]
    assert [*dict.fromkeys(deltas)] == [
        "thinking_delta",
        "signature_delta",
        "text_delta",
        "input_json_delta",
    ]
    for message in (answer, final):
        thought, text, call = message.content
        assert (thought.thinking, text.text) == ("Hm.", "I look.")
        assert (call.name, call.input) == ("weather", {"city": "Paris"})
        assert message.stop_reason == "tool_use"
    assert '"arguments": {"city": "Rome"}}</tool_call>' in prompt
    assert prompt.index("tool\nrain") < prompt.index("And in Paris?")


def test_a_stop_sequence_is_named(own):
    whole = own.messages.create(messages=MESSAGES, **GREEDY).content[0].text
    stop = whole[4:8]
    answer = own.messages.create(messages=MESSAGES, stop_sequences=[stop], **GREEDY)
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)


@pytest.mark.parametrize(
    ("wanted", "error", "kind"),
    [
        ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error"),
        ({"model": "claude"}, anthropic.NotFoundError, "not_found_error"),
        ({"messages": []}, anthropic.BadRequestError, "invalid_request_error"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            anthropic.BadRequestError,
            "invalid_request_error",
        ),
        ({"tools": [{"type": "bash"}]}, anthropic.BadRequestError, "invalid_request_error"),
    ],
    ids=["tokens", "model", "messages", "picture", "tool"],
)
def test_errors_have_the_form_of_this_api(own, wanted, error, kind):
    with pytest.raises(error) as caught:
        own.messages.create(**{"messages": MESSAGES, **ASKED, **wanted})
    body = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert json.dumps(body)


def test_the_models_are_listed(own):
    listed = own.models.list()
    assert [(model.id, model.type, model.display_name) for model in listed.data] == [
        (name, "model", name) for name in ("small-llama", "alias")
    ]
    assert (listed.first_id, listed.last_id, listed.has_more) == ("small-llama", "alias", False)
    assert own.models.retrieve("alias").created_at == listed.data[1].created_at
