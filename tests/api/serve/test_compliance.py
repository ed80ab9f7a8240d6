"""The suites of llm-comply: all that a model without pictures can pass, by what an answer says."""

from __future__ import annotations

import json
from importlib import resources

import pytest
from llm_comply.config import ComplianceConfig
from llm_comply.runner import TestRunner as Runner
from llm_comply.schema import SpecLoader
from llm_comply.tests import get_tests
from rdrr.serve.jobs import Job
from support.serving import scripted


def text_of(job: Job) -> str:
    """Return a call where one is forced, and words otherwise."""
    if not job.response_format:
        return "Hello there, friend."
    schema = job.response_format["json_schema"]["schema"]
    name = schema["properties"]["name"]["const"]
    return json.dumps({"name": name, "arguments": {"location": "San Francisco"}})


@pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning")
@pytest.mark.parametrize(
    ("form", "spec", "least"),
    [
        ("openai-chat", "openai_chat.json", 7),
        ("anthropic", "anthropic.json", 7),
        ("open-responses", "openresponses.json", 11),
    ],
)
def test_a_suite_of_strangers_passes(worker, form, spec, least):
    with scripted(worker.model, text_of) as (url, _):
        config = ComplianceConfig(f"{url}/v1", "none", model="small-llama", timeout=300)
        file = resources.files("llm_comply").joinpath("specs", spec)
        cases = [case for case in get_tests(form) if "image" not in case.id]
        suite = Runner(config, cases, SpecLoader(str(file))).run_all()
    failed = {result.id: result.errors for result in suite.results if result.errors}
    ran = [result for result in suite.results if result.status.name != "SKIPPED"]
    assert all(result.status.name in ("PASSED", "SKIPPED") for result in suite.results), failed
    assert len(ran) >= least
