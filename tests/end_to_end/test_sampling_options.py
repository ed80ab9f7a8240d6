"""Options of `rdrr generate` that decide how tokens are chosen."""

from __future__ import annotations

import json
import math
import re

import pytest
from support.commands import error_line, rdrr

PROMPT = "And it came to pass"
SHORT = ("--prompt", PROMPT, "--backend", "cpu", "--max-tokens", 40)


def test_a_schema_in_a_file_is_followed_and_log_probabilities_are_printed(
    shallow_package, tmp_path
):
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"enum": ["king", "priest"]}), encoding="utf-8")
    done = rdrr(
        "generate", shallow_package, *SHORT, "--json-schema", schema, "--json", "--logprobs", 2
    ).json()
    assert json.loads(done["text"]) in ("king", "priest")
    assert done["stats"]["finish"] == "stop"
    assert [logprob["token_id"] for logprob in done["logprobs"]] == done["token_ids"]
    for logprob in done["logprobs"]:
        assert logprob["logprob"] <= logprob["top"][0]["logprob"] <= 0
        assert len(logprob["top"]) == 2
        assert math.fsum(math.exp(likely["logprob"]) for likely in logprob["top"]) <= 1 + 1e-6


# tests/runtime/test_gpu_backend.py has masks and seeds on the GPU.
@pytest.mark.thorough
def test_a_schema_and_a_seed_give_one_text_on_both_backends(shallow_package):
    words = ("--regex", "[a-z]{2,6}( [a-z]{2,6}){2}", "--temperature", 1, "--seed", 4, "--json")
    exact = ("--kv-dtype", "f32", "--kernel-hint", "computePrecision=f32")
    gpu, cpu = (
        rdrr("generate", shallow_package, "--prompt", PROMPT, *words, "--backend", backend, *more)
        for backend, more in (("wgpu", exact), ("cpu", ()))
    )
    assert gpu.json()["text"] == cpu.json()["text"]
    assert gpu.json()["token_ids"] == cpu.json()["token_ids"]
    assert gpu.json()["backend"] == "wgpu"


def test_a_regular_expression_and_a_seed_give_one_text(shallow_package):
    words = ("--regex", "[a-z]{2,6}( [a-z]{2,6}){2}", "--temperature", 1, "--json", "--seed")
    first, again, other = (
        rdrr("generate", shallow_package, *SHORT, *words, seed).json() for seed in (4, 4, 5)
    )
    assert first["token_ids"] == again["token_ids"] != other["token_ids"]
    assert re.fullmatch("[a-z]{2,6}( [a-z]{2,6}){2}", first["text"])


def test_a_regular_expression_and_a_bias_can_be_combined(shallow_package):
    text = rdrr("generate", shallow_package, *SHORT, "--regex", "[ab]{6}", "--presence-penalty", 1)
    assert set(text.out.rstrip("\n")) <= {"a", "b"}
    assert len(text.out) == 7


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--logprobs", 2), "--json"),
        (("--logit-bias", "x=1"), "ID=VALUE"),
        (("--logit-bias", "1=2", "--logit-bias", "1=3"), "twice"),
        (("--logit-bias", "99999=1"), "outside the vocabulary"),
        (("--json-schema", "no-such-file"), "no-such-file"),
        (("--json-schema", "-"), "is not JSON"),
        (("--json-schema", "-", "--regex", "a"), "exclude"),
        (("--regex", "(a"), "regular expression"),
    ],
    ids=str,
)
def test_wrong_usage_is_one_line_and_exit_code_2(words, said, shallow_package):
    done = rdrr("generate", shallow_package, *SHORT, *words)
    assert said in error_line(done, 2)
