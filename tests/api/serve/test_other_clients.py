"""Clients of `make test-serve`: libraries that bring too much for the usual environment."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from support.commands import EXAMPLE

pytestmark = pytest.mark.thorough

MESSAGES = [{"role": "user", "content": "Hello"}]
PLUGIN = Path(__file__).parents[3] / "plugins/llm-rdrr/llm_rdrr.py"


def text_of(client) -> str:
    answer = client.chat.completions.create(
        model="small-llama", messages=MESSAGES, max_tokens=6, temperature=0
    )
    return answer.choices[0].message.content


@pytest.mark.parametrize(
    ("provider", "path"), [("openai", "/v1"), ("anthropic", ""), ("ollama_chat", "")]
)
def test_litellm_gets_the_same_text_by_every_interface(client, server, provider, path, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    answer = litellm.completion(
        model=f"{provider}/small-llama",
        api_base=f"http://127.0.0.1:{server.port}{path}",
        api_key="none",
        messages=MESSAGES,
        max_tokens=6,
        temperature=0,
    )
    assert answer.choices[0].message.content == text_of(client)


def test_the_harness_scores_texts_over_http_as_in_process(worker, server):
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    pairs = [("And it came to pass", " in those days"), ("And he said", " unto them, Go")]
    api = LocalCompletionsAPI(
        base_url=f"http://127.0.0.1:{server.port}/v1/completions",
        model="small-llama",
        tokenizer=str(EXAMPLE),
        tokenizer_backend="huggingface",
        max_retries=1,
    )
    requests = [Instance("loglikelihood", {}, pair, at) for at, pair in enumerate(pairs)]
    scores = api.loglikelihood(requests)
    model = worker.model
    for (before, after), (total, is_greedy) in zip(pairs, scores, strict=True):
        prompt, whole = model.encode(before), model.encode(before + after)
        continuation = whole[len(prompt) :]
        own = server_call(worker, prompt, continuation)
        assert total == pytest.approx(own.total, abs=2e-2)
        assert is_greedy == own.is_greedy


def server_call(worker, prompt, continuation):
    """Return what the model itself says, in the thread that has it."""
    import queue

    from rdrr.serve.jobs import Job

    results = queue.SimpleQueue()
    worker.submit(
        Job((), results.put, 0, work=lambda m: m.loglikelihoods(prompt, [continuation])[0])
    )
    return results.get(timeout=300).result


def test_the_plugin_for_llm_answers_and_goes_on(made_package, monkeypatch):
    pytest.importorskip("llm")
    monkeypatch.setenv("LLM_RDRR_PACKAGES", str(made_package))
    spec = importlib.util.spec_from_file_location("llm_rdrr", PLUGIN)
    plugin = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "llm_rdrr", plugin)
    spec.loader.exec_module(plugin)
    models = []
    plugin.register_models(models.append)
    (model,) = [each for each in models if each.model_id == f"rdrr/{made_package.name}"]
    conversation = model.conversation()
    options = {"max_tokens": 4, "temperature": 0}
    first = conversation.prompt("Hello", system="Be brief.", **options)
    assert first.text()
    assert first.usage().output == 4
    second = conversation.prompt("And?", **options)
    assert second.text()
    assert second.usage().input > first.usage().input + 4
