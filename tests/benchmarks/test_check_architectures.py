"""The check of architectures finds what is wrong, and records only what it has shown."""

from __future__ import annotations

import check_architectures
import numpy as np
import pytest
from _architecture_checks import LIMITS, REQUIRED, Outcome, Subject, check, subjects
from check_architectures import choose, markdown, record, summary
from rdrr_converter.architectures import ARCHITECTURES
from rdrr_converter.architectures import checked as checked_module
from rdrr_converter.architectures.checked import read_checked
from support.tiny_models import ALL_MODELS

GOOD = dict.fromkeys(LIMITS, 1e-06)
FACTS = {"transformers": "5", "adapter": "some adapter", "tokens": "56"}


def outcome(**errors: float) -> Outcome:
    return Outcome("m", "llama", 1, "llama", ("LlamaForCausalLM",), GOOD | errors)


def test_an_error_beyond_its_limit_and_a_missing_check_are_faults():
    assert outcome().faults == ()
    for name, limit in LIMITS.items():
        assert outcome(**{name: 2 * limit}).faults == (name,)
        assert outcome(**{name: float("nan")}).faults == (name,)
        less = outcome()
        del less.errors[name]
        assert less.faults == ((name,) if name in REQUIRED else ())


def test_a_summary_claims_only_what_all_models_have_shown():
    without = outcome(cpu=3e-6)
    del without.errors["gguf_in"], without.errors["wgpu_batch"]
    summed = summary([outcome(), without])
    assert summed.errors["cpu"] == 3e-6
    assert "wgpu_batch" not in summed.errors
    assert summed.errors["gguf_in"] == 1e-6  # llama.cpp has no form for the other model
    assert "gguf_out" not in summary([outcome(gguf_out=1.0)]).errors
    page = markdown({"llama": summed}, FACTS)
    row = next(line for line in page.splitlines() if line.startswith("| llama |"))
    assert "`LlamaForCausalLM`" in row
    assert row.count("| - |") == 1


def test_what_is_recorded_is_what_the_command_reads(tmp_path, monkeypatch):
    path = tmp_path / "checked.json"
    monkeypatch.setattr(checked_module, "CHECKED_FILE", path)
    monkeypatch.setattr(check_architectures, "CHECKED_FILE", path)
    assert read_checked() == {}
    record({"llama": summary([outcome()])}, FACTS)
    assert read_checked()["llama"].errors == GOOD
    assert checked_module.read_facts() == FACTS


def test_the_recorded_results_are_those_of_known_architectures_and_within_the_limits():
    names = {rule.name for rule in ARCHITECTURES}
    for name, outcome_of in read_checked().items():
        assert name in names
        assert set(REQUIRED) <= set(outcome_of.errors) <= set(LIMITS)
        assert all(value <= LIMITS[key] for key, value in outcome_of.errors.items()), name


def test_every_model_of_the_tests_is_a_subject():
    all_subjects = subjects()
    assert len({subject.name for subject in all_subjects}) == len(all_subjects)
    assert {tiny.name for tiny in ALL_MODELS} <= {subject.name for subject in all_subjects}
    assert {subject.model_type for subject in choose(all_subjects, ["gemma3"])} == {
        "gemma3_text",
        "gemma3",
    }
    assert choose(all_subjects, ["no such"]) == []


@pytest.mark.thorough
@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
def test_a_model_that_computes_something_else_fails(wrong):
    """The control changes a weight after the reference is computed, so that every check sees it."""
    subject = next(candidate for candidate in subjects() if candidate.name == "llama-256")

    class Twice:
        """A model whose saved weights differ from those it has computed logits with."""

        def __init__(self, model):
            self.model, self.config = model, model.config

        def modules(self):
            return self.model.modules()

        def __call__(self, *args, **keywords):
            return self.model(*args, **keywords)

        def to(self, dtype):
            self.model.model.layers[0].self_attn.q_proj.weight.data *= 1.5
            return self.model.to(dtype)

    def build(rng: np.random.Generator, **options):
        model = subject.build(rng, **options)
        return Twice(model) if wrong else model

    checked = check(Subject("llama-256", "llama", build), seed=3)
    # Of f16 and Q4_K_M both backends compute the same, since they read the same package.
    expected = set(LIMITS) - {"q4_k_m", "f16"} if wrong else set()
    assert set(checked.faults) == expected, (checked.errors, checked.refusals)
    assert checked.architecture == "llama"
