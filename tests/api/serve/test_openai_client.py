"""OpenAI's own client against the server."""

from __future__ import annotations

import json

import openai
import pytest

MODEL, PROMPT = "small-llama", "And it came to pass"
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 12}
MESSAGES = [{"role": "user", "content": "Who was the father of Isaac?"}]


def test_a_completion_has_the_text_of_the_model(client, worker):
    answer = client.completions.create(prompt=PROMPT, **GREEDY)
    (choice,) = answer.choices
    assert choice.text
    ids = worker.model.encode(PROMPT)
    assert answer.usage.prompt_tokens == len(ids)
    assert answer.usage.completion_tokens == 12
    assert (choice.finish_reason, answer.model) == ("length", MODEL)
    again = client.completions.create(prompt=ids, **GREEDY)
    assert again.choices[0].text == choice.text


def test_a_stream_is_the_whole_text_in_parts(client):
    whole = client.completions.create(prompt=PROMPT, **GREEDY).choices[0].text
    stream = client.completions.create(
        prompt=PROMPT, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    *parts, counts = list(stream)
    assert "".join(part.choices[0].text for part in parts) == whole
    assert all("usage" in part.model_fields_set and part.usage is None for part in parts)
    assert [part.choices[0].finish_reason for part in parts][-1] == "length"
    assert (counts.choices, counts.usage.completion_tokens) == ([], 12)
    timings = counts.timings
    cached = counts.usage.prompt_tokens_details.cached_tokens
    assert (timings["prompt_n"], timings["cache_n"]) == (
        counts.usage.prompt_tokens - cached,
        cached,
    )
    assert timings["predicted_n"] == 12
    assert timings["prompt_ms"] > 0
    assert timings["predicted_ms"] >= 0


@pytest.mark.parametrize("logprobs", [None, 0])  # in passes with other texts, and alone
def test_the_usage_says_how_much_of_a_prompt_was_cached(client, worker, logprobs):
    ids = worker.model.encode(f"{PROMPT}, and it was told Zedekiah {logprobs} times")
    asked = {**GREEDY, "logprobs": logprobs}
    first, second = (client.completions.create(prompt=ids, **asked).usage for _ in range(2))
    assert first.prompt_tokens == second.prompt_tokens == len(ids)
    assert first.prompt_tokens_details.cached_tokens < len(ids) - 5
    assert second.prompt_tokens_details.cached_tokens == len(ids) - 1  # the last one must run


def test_several_prompts_are_answered_in_their_order(client):
    prompts = [PROMPT, "In the beginning", "And God said"]
    together = client.completions.create(prompt=prompts, **GREEDY)
    alone = [client.completions.create(prompt=prompt, **GREEDY) for prompt in prompts]
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    assert [choice.text for choice in together.choices] == [
        answer.choices[0].text for answer in alone
    ]


def test_a_seed_gives_the_same_texts_and_each_copy_its_own(client):
    wanted = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "seed": 5, "n": 3}
    first, second = (client.completions.create(**wanted) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert texts == [choice.text for choice in second.choices]
    assert len(set(texts)) > 1


def test_a_stop_string_ends_the_text_before_it(client):
    whole = client.completions.create(prompt=PROMPT, **GREEDY).choices[0].text
    stop = whole.split()[2]
    answer = client.completions.create(prompt=PROMPT, stop=stop, **GREEDY).choices[0]
    assert answer.text == whole[: whole.index(stop)]
    assert answer.finish_reason == "stop"


def test_an_echo_comes_before_the_text(client):
    plain = client.completions.create(prompt=PROMPT, **GREEDY).choices[0].text
    assert client.completions.create(prompt=PROMPT, echo=True, **GREEDY).choices[0].text == (
        PROMPT + plain
    )


def test_an_echo_has_the_log_probabilities_of_the_prompt(client, worker):
    """What lm-evaluation-harness asks for: ids, one new token, and the prompt's probabilities."""
    ids = worker.model.encode(PROMPT)
    asked = {"prompt": ids, "echo": True, "logprobs": 1, **GREEDY | {"max_tokens": 1}}
    choice = client.completions.create(**asked).choices[0]
    assert len(choice.logprobs.token_logprobs) == len(ids) + 1
    assert choice.logprobs.token_logprobs[0] is None
    (likely,) = client.completions.create(prompt=ids[:-1], logprobs=1, **GREEDY).choices
    best = max(choice.logprobs.top_logprobs[-2].values())
    assert best == pytest.approx(likely.logprobs.token_logprobs[0], abs=2e-3)
    only = client.completions.create(**asked | {"max_tokens": 0}).choices[0]
    assert only.text == worker.model.decode(ids)
    assert only.logprobs.token_logprobs == choice.logprobs.token_logprobs[:-1]
    *parts, end = client.completions.create(**asked, stream=True)
    streamed = [
        value for part in (*parts, end) for value in part.choices[0].logprobs.token_logprobs
    ]
    assert streamed == choice.logprobs.token_logprobs


def test_the_tokens_of_a_character_have_their_bytes(client, worker):
    """Together they are the character; a replacement character would be the same for each."""
    text = "a 日😀"
    ids = worker.model.encode(text)
    asked = {"prompt": text, "echo": True, "logprobs": 20, **GREEDY | {"max_tokens": 1}}
    recorded = client.completions.create(**asked).choices[0].logprobs
    parts = recorded.tokens[: len(ids)]
    raw = [bytes.fromhex(part[6:].replace("\\x", "")) for part in parts if part[:6] == "bytes:"]
    assert b"".join(raw).decode() == "日😀"
    assert all(len(top) >= 20 for top in recorded.top_logprobs[1:])
    bias = {str(token): 100 for token in ids[-4:-3]}
    said = client.chat.completions.create(
        messages=MESSAGES, logprobs=True, logit_bias=bias, **GREEDY | {"max_tokens": 1}
    )
    (token,) = said.choices[0].logprobs.content
    assert bytes(token.bytes) == "😀".encode()[:1]


def test_a_probability_of_0_leaves_the_most_probable_token(client):
    expected = client.completions.create(prompt=PROMPT, **GREEDY).choices[0].text
    sampled = GREEDY | {"temperature": 1.5, "top_p": 0, "seed": 5}
    assert client.completions.create(prompt=PROMPT, **sampled).choices[0].text == expected


def test_a_chat_is_answered_whole_and_streamed(client):
    whole = client.chat.completions.create(messages=MESSAGES, **GREEDY)
    assert whole.choices[0].message.role == "assistant"
    parts = client.chat.completions.create(messages=MESSAGES, stream=True, **GREEDY)
    deltas = [part.choices[0].delta for part in parts]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content


def test_messages_in_parts_are_the_text_of_the_parts(client):
    parts = [{"role": "user", "content": [{"type": "text", "text": MESSAGES[0]["content"]}]}]
    plain, split = (
        client.chat.completions.create(messages=messages, **GREEDY).choices[0].message.content
        for messages in (MESSAGES, parts)
    )
    assert split == plain


def test_log_probabilities_come_with_each_token(client):
    answer = client.chat.completions.create(
        messages=MESSAGES, logprobs=True, top_logprobs=3, **GREEDY
    )
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 12
    for token in tokens:
        assert token.logprob == max(best.logprob for best in token.top_logprobs)
        assert len(token.top_logprobs) == 3
    completed = client.completions.create(prompt=PROMPT, logprobs=2, **GREEDY).choices[0]
    assert "".join(completed.logprobs.tokens) == completed.text


def test_a_schema_holds_for_the_answer(client):
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["Abraham", "Moses"]}},
        "required": ["name"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        messages=MESSAGES,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        **GREEDY | {"max_tokens": 40},
    )
    assert json.loads(answer.choices[0].message.content)["name"] in ("Abraham", "Moses")


def test_a_grammar_holds_for_the_answer(client):
    form = {"type": "grammar", "grammar": 'root ::= "Abraham" | "Moses"'}
    answer = client.chat.completions.create(
        messages=MESSAGES, extra_body={"response_format": form}, **GREEDY
    )
    assert answer.choices[0].message.content in ("Abraham", "Moses")


def test_the_models_are_listed_with_their_aliases(client):
    assert [model.id for model in client.models.list()] == [MODEL, "alias"]
    assert client.models.retrieve("alias").id == "alias"
    assert client.completions.create(prompt=PROMPT, **GREEDY | {"model": "alias"}).choices


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"prompt": [5] * 400}, "context"),
        ({"prompt": ""}, "no tokens"),
        ({"prompt": [10**6]}, "outside the vocabulary"),
        ({"n": 17}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"logit_bias": {"x": 1}}, "no token id"),
        ({"logprobs": 21}, "logprobs"),
        ({"suffix": "end"}, "fills no gaps"),
        ({"prompt": [5], "suffix": "end"}, "suffix"),
        ({"extra_body": {"response_format": {"type": "poem"}}}, "response_format"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_request_is_refused_with_its_reason(client, wanted, words):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**GREEDY | {"prompt": PROMPT} | wanted)
    assert words in str(caught.value)
    assert caught.value.code == ("context_length_exceeded" if words == "context" else None)


def test_a_misspelt_field_is_refused_and_an_unknown_one_is_named(client):
    with pytest.raises(openai.BadRequestError, match="did you mean max_tokens"):
        client.completions.create(prompt=PROMPT, model=MODEL, extra_body={"max_token": 3})
    raw = client.completions.with_raw_response
    body = {"top_a": 0.2, "min_tokens": 1, "x\ny": 1}
    answer = raw.create(prompt=PROMPT, user="me", extra_body=body, **GREEDY)
    assert answer.headers["x-ignored-fields"] == "top_a, min_tokens"
    assert "x-ignored-fields" not in raw.create(prompt=PROMPT, user="me", **GREEDY).headers


@pytest.mark.parametrize("logprobs", [None, 1], ids=["shared", "alone"])
def test_a_request_that_takes_too_long_ends_with_an_error(client, worker, logprobs):
    asked = {"prompt": PROMPT, "logprobs": logprobs, **GREEDY | {"max_tokens": 250}}
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(**asked, extra_body={"timeout": 0.05})
    assert (caught.value.status_code, caught.value.code) == (408, "deadline_exceeded")
    assert worker.jobs == 0
    assert client.completions.create(prompt=PROMPT, **GREEDY).choices[0].text


def test_the_context_shifts_only_where_a_request_asks_for_it(client, worker):
    context = worker.model.info.context
    ids = (worker.model.encode(PROMPT) * context)[: context - 2]
    asked = {"prompt": ids, **GREEDY}
    cut = client.completions.create(**asked)
    shifted = client.completions.create(**asked, extra_body={"context_shift": 4})
    assert (cut.usage.completion_tokens, shifted.usage.completion_tokens) == (3, 12)
    expected = worker.model.encode(PROMPT)
    assert shifted.usage.prompt_tokens == context - 2 > len(expected)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("data:image/png;base64,AAAA", "the model does not see images"),
        ("https://host/a.png", "only data URLs are taken as {}s"),
        ("/etc/passwd", "only data URLs are taken as {}s"),
        (None, "only data URLs are taken as {}s"),
    ],
)
@pytest.mark.parametrize("kind", ["image", "video"])
def test_a_picture_or_video_is_refused_and_not_left_out(client, kind, url, message):
    message = message.format(kind)
    picture = {"type": f"{kind}_url", f"{kind}_url": {"url": url}}
    with pytest.raises(openai.BadRequestError, match=message):
        client.chat.completions.create(messages=[{"role": "user", "content": [picture]}], **GREEDY)


def test_another_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError, match="small-llama"):
        client.completions.create(prompt=PROMPT, **GREEDY | {"model": "gpt-4"})
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")
