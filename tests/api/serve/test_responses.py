"""`/v1/responses`, by OpenAI's own client."""

from __future__ import annotations

import json
from contextlib import contextmanager

import openai
import pytest
from rdrr.serve import responses
from support.serving import scripted

MODEL = "small-llama"
TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "P"}}</tool_call>'
SAID = f"<think>Hm.</think>I look.{CALL}"


@contextmanager
def responding(model, *texts, template=None):
    with (
        scripted(model, *texts, template=template) as (url, script),
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client, script


def test_a_response_is_the_chat_s_answer(client):
    options = {"model": MODEL, "temperature": 0}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    chat = client.chat.completions.create(messages=messages, max_tokens=6, **options)
    answer = client.responses.create(
        instructions="Be brief.", input="Hello", max_output_tokens=6, **options
    )
    assert answer.output_text == chat.choices[0].message.content
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.usage.output_tokens == 6
    assert answer.usage.input_tokens_details.cached_tokens == answer.usage.input_tokens - 1


def test_the_tokens_of_a_prompt_are_counted_as_its_response_counts_them(client):
    asked = {"model": MODEL, "instructions": "Be brief.", "input": "Hello"}
    answer = client.responses.create(max_output_tokens=2, **asked)
    assert client.responses.input_tokens.count(**asked).input_tokens == answer.usage.input_tokens
    further = {"model": MODEL, "input": "And?", "previous_response_id": answer.id}
    counted = client.responses.input_tokens.count(**further).input_tokens
    assert counted == client.responses.create(max_output_tokens=1, **further).usage.input_tokens
    with pytest.raises(openai.NotFoundError, match="resp_none"):
        client.responses.input_tokens.count(
            model=MODEL, input="x", previous_response_id="resp_none"
        )


def test_a_response_that_has_ended_cannot_be_cancelled(client):
    answer = client.responses.create(model=MODEL, input="Hello", max_output_tokens=1)
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_none")


def test_thoughts_are_counted(worker, tools_template):
    with responding(
        worker.model, "<think>Let me see.</think>Yes.", "Yes.", template=tools_template
    ) as (client, _):
        counts = [
            client.responses.create(model=MODEL, input="Rain?").usage.output_tokens_details
            for _ in range(2)
        ]
    assert [count.reasoning_tokens > 0 for count in counts] == [True, False]


def test_items_come_whole_and_as_events_that_build_the_same(worker, tools_template):
    asked = {"model": MODEL, "input": "Rain?", "tools": [TOOL]}
    with responding(worker.model, SAID, SAID, template=tools_template) as (client, _):
        whole = client.responses.create(**asked)
        with client.responses.stream(**asked) as stream:
            events = [*stream]
            streamed = stream.get_final_response()
    for answer in (whole, streamed):
        thought, message, call = answer.output
        assert (thought.content[0].text, message.content[0].text) == ("Hm.", "I look.")
        assert (call.name, call.arguments) == ("weather", '{"city": "P"}')
        assert answer.status == "completed"
    numbers = [event.sequence_number for event in events]
    assert numbers == list(range(len(events)))
    added = [event.item.id for event in events if event.type == "response.output_item.added"]
    assert added == [item.id for item in streamed.output]


def test_a_stored_response_is_gone_on_with(worker):
    with responding(worker.model, "Abraham.", "Sarah.", "Isaac.") as (client, script):
        first = client.responses.create(model=MODEL, input="Who was the father?")
        second = client.responses.create(
            model=MODEL, input="And the mother?", previous_response_id=first.id
        )
        prompt = script.prompt
        assert prompt.index("father?") < prompt.index("Abraham.") < prompt.index("mother?")
        assert client.responses.retrieve(second.id).output_text == "Sarah."
        (item,) = client.responses.input_items.list(second.id).data
        assert item.content == "And the mother?"
        client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError, match="no response"):
            client.responses.retrieve(first.id)
        unstored = client.responses.create(model=MODEL, input="And?", store=False)
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model=MODEL, input="And?", previous_response_id=unstored.id)


def test_an_item_of_an_answer_is_gone_on_with_by_its_id(worker):
    with responding(worker.model, "Abraham.", "Sarah.") as (client, script):
        (item,) = client.responses.create(model=MODEL, input="Who was the father?").output
        reference = {"type": "item_reference", "id": item.id}
        said = [{"role": "user", "content": text} for text in ("The father?", "And the mother?")]
        second = client.responses.create(model=MODEL, input=[said[0], reference, said[1]])
        prompt = script.prompt
        assert prompt.index("father?") < prompt.index("Abraham.") < prompt.index("mother?")
        assert client.responses.input_items.list(second.id).data[1].id == item.id
        with pytest.raises(openai.BadRequestError, match="no such item"):
            client.responses.create(model=MODEL, input=[{**reference, "id": "msg_other"}])


@pytest.mark.parametrize(
    ("path", "fields", "replica"),
    [
        ("/v1/responses/resp_a1_0f/input_items", {}, "a1"),
        ("/v1/responses", {"input": "Hello", "previous_response_id": "resp_a1_0f"}, "a1"),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": "msg_a1_0f"}]}, "a1"),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": 5}]}, ""),
        ("/v1/responses", {"input": "item_reference"}, ""),
        ("/v1/responses", {"input": "Hello", "previous_response_id": "resp_0f"}, ""),
        ("/v1/responses", ["previous_response_id"], ""),
    ],
)
def test_a_request_goes_to_the_replica_that_keeps_what_it_goes_on_with(path, fields, replica):
    assert responses.keeper_of(path, json.dumps(fields).encode()) == replica


def test_the_oldest_responses_are_forgotten(worker, monkeypatch):
    monkeypatch.setattr(responses, "MOST_STORED", 2)
    with responding(worker.model, "a", "b", "c") as (client, _):
        made = [client.responses.create(model=MODEL, input="Hello").id for _ in range(3)]
        assert client.responses.retrieve(made[1]).id == made[1]
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(made[0])


def test_calls_and_their_results_are_items_of_the_input(worker, tools_template):
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Rain?"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": []},
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": '{"city": "R"}'},
        {"type": "function_call_output", "call_id": "a", "output": "rain"},
    ]
    with responding(worker.model, "Yes.", template=tools_template) as (client, script):
        client.responses.create(model=MODEL, input=items, tools=[TOOL])
    assert '"arguments": {"city": "R"}}</tool_call>' in script.prompt
    assert "tool\nrain" in script.prompt


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"input": [{"type": "computer_call"}]}, "not served"),
        ({"input": []}, "input"),
        ({"tools": [{"type": "web_search"}]}, "functions"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
    ],
    ids=["item", "empty", "tool", "background", "conversation"],
)
def test_what_is_not_served_is_refused_by_name(client, wanted, words):
    with pytest.raises(openai.BadRequestError, match=words):
        client.responses.create(**{"model": MODEL, "input": "Hello", **wanted})
