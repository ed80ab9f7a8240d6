"""What a request says about sampling, under the names of OpenAI's API and of other programs."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from rdrr_format.errors import UsageError
from rdrr_runtime.sampling.params import SamplingParams

pytest.importorskip("starlette")
from rdrr.serve.requests import CompletionRequest


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


def test_parameters_have_their_other_names_and_null_is_the_default():
    assert sampling(temp=0.5, repetition_penalty=1.5) == SamplingParams(
        temperature=0.5, repeat_penalty=1.5
    )
    assert sampling(temperature=None, top_k=None) == SamplingParams(temperature=1.0)


@pytest.mark.parametrize(
    ("fields", "error"),
    [({"top_p": 2}, UsageError), ({"top_k": "many"}, ValidationError)],
    ids=["range", "type"],
)
def test_a_wrong_parameter_is_refused_by_name(fields, error):
    with pytest.raises(error, match=next(iter(fields))):
        sampling(**fields)
