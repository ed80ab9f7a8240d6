"""What a request says about sampling, under the names of OpenAI's API and of other programs."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from pydantic import ValidationError
from rdrr_format.errors import UsageError
from rdrr_runtime.sampling.params import SamplingParams

pytest.importorskip("starlette")
from rdrr.serve.anthropic import MessagesRequest
from rdrr.serve.ollama import OllamaGenerateRequest
from rdrr.serve.requests import ChatRequest, CompletionRequest
from rdrr.serve.response_requests import ResponsesRequest


def sampling(**fields: object) -> SamplingParams:
    request = CompletionRequest.model_validate({"prompt": "a", **fields})
    return request.sampling(vocab_size=10, copy=2)


def test_every_sampling_parameter_is_a_field_of_a_request():
    given = {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "repeat_penalty": 1.5}
    given |= {"frequency_penalty": 0.25, "presence_penalty": 0.75}
    assert sampling(**given) == SamplingParams(**given)
    assert sampling(seed=3, logit_bias={"4": 1}) == SamplingParams(
        temperature=1.0, seed=5, logit_bias={4: 1.0}
    )


@pytest.mark.parametrize(
    ("kind", "fields", "served"),
    [
        (ChatRequest, {"grammar": 'root ::= "a"'}, False),
        (ChatRequest, {"grammar": "", "json_schema": {}, "logprobs": True}, True),
        (CompletionRequest, {"logprobs": 2}, True),
        (CompletionRequest, {"structured_outputs": {"choice": ["a"]}}, False),
        (MessagesRequest, {"mcp_servers": [{"name": "a"}]}, False),
        (MessagesRequest, {"mcp_servers": [], "container": None}, True),
        (ResponsesRequest, {"prompt": {"id": "a"}}, False),
        (ResponsesRequest, {"background": False, "top_logprobs": 0}, True),
        (OllamaGenerateRequest, {"logprobs": True}, False),
        (OllamaGenerateRequest, {"template": "{{ .Prompt }}"}, False),
        (OllamaGenerateRequest, {"context": [1, 2]}, False),
        (OllamaGenerateRequest, {"template": "", "context": []}, True),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_a_field_that_changes_the_answer_is_served_or_refused(kind, fields, served):
    asked = {"model": "a", "messages": [{}], "max_tokens": 1, "input": "a", "prompt": "a"}
    known = {name: value for name, value in asked.items() if name in kind.model_fields}
    refusal = nullcontext() if served else pytest.raises(ValidationError, match="is not served")
    with refusal:
        kind.model_validate({**known, **fields})


def test_parameters_have_their_other_names_and_null_is_the_default():
    assert sampling(temp=0.5, repetition_penalty=1.5) == SamplingParams(
        temperature=0.5, repeat_penalty=1.5
    )
    assert sampling(temperature=None, top_k=None) == SamplingParams(temperature=1.0)


def test_values_that_other_servers_document_have_their_meaning():
    assert sampling(top_k=-1) == sampling(top_k=0)
    assert 0 < sampling(top_p=0).top_p < 1e-3
    assert sampling(top_k=3, top_p=0.5) == SamplingParams(temperature=1.0, top_k=3, top_p=0.5)


def test_a_refusal_in_the_history_is_text_of_the_assistant():
    part = {"type": "refusal", "refusal": "No."}
    (said,) = ChatRequest(messages=[{"role": "assistant", "content": [part]}]).plain_messages()
    assert said == {"role": "assistant", "content": "No."}
    with pytest.raises(UsageError, match="refusal"):
        ChatRequest(messages=[{"role": "user", "content": [part]}]).plain_messages()


@pytest.mark.parametrize("value", [0, 0.0, "0", "0s", "0h0m0s"])
def test_a_model_that_is_kept_for_no_time_is_unloaded(value):
    assert OllamaGenerateRequest(keep_alive=value).unloads


@pytest.mark.parametrize("value", [None, -1, 300, 0.5, "5m", "0.5s", "-1", "", "forever"])
def test_a_model_that_is_kept_for_some_time_is_not_unloaded(value):
    assert not OllamaGenerateRequest(keep_alive=value).unloads


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"top_p": 2}, UsageError),
        ({"top_k": -2}, UsageError),
        ({"top_k": "many"}, ValidationError),
        ({"top_k": [-1]}, ValidationError),
    ],
)
def test_a_wrong_parameter_is_refused_by_name(fields, error):
    with pytest.raises(error, match=next(iter(fields))):
        sampling(**fields)
