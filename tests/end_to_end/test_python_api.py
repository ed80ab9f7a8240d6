"""The Python API as the README shows it."""

from __future__ import annotations

import json
import re
import sys

import pytest
import rdrr
import torch
from rdrr_format.errors import DeviceError, GenerationError, UsageError
from support.commands import rdrr as rdrr_command

PROMPT = "And it came to pass"


@pytest.fixture(scope="module")
def model(shallow_package):
    with rdrr.load(shallow_package, backend="cpu", context=256) as loaded:
        yield loaded


def test_pieces_of_text_are_the_decoded_ids(model):
    generation = model.generate(PROMPT, max_tokens=20)
    pieces = list(generation)
    assert len(pieces) > 1
    assert "".join(pieces) == model.decode(generation.token_ids)
    assert len(generation.token_ids) == 20
    assert generation.stats.finish == "length"
    assert generation.prompt_ids == model.encode(PROMPT)


def test_greedy_ids_are_the_argmax_of_the_teacher_forced_logits(model):
    generation = model.generate(PROMPT, max_tokens=8)
    generation.read()
    ids = generation.prompt_ids + generation.token_ids
    best = model.logits(ids).argmax(axis=1)
    first = len(generation.prompt_ids) - 1
    assert best[first:-1].tolist() == generation.token_ids


@pytest.mark.parametrize("wrong", [-1, 10**6])
def test_logits_of_an_id_outside_the_vocabulary_are_refused(model, wrong):
    with pytest.raises(GenerationError, match=f"outside the vocabulary.*found {wrong}"):
        model.logits([1, wrong])
    with pytest.raises(UsageError, match="`ids`"):
        model.logits("text")
    assert len(model.logits([1])) == 1  # the control


def test_a_prompt_may_be_token_ids(model):
    ids = model.encode(PROMPT)
    assert model.generate(ids, max_tokens=5).read() == model.generate(PROMPT, max_tokens=5).read()


def test_a_closed_generation_yields_no_more_text(model):
    generation = model.generate(PROMPT, max_tokens=50)
    assert next(generation)
    generation.close()
    assert list(generation) == []


def test_an_opened_package_reads_tensors_on_demand(shallow_package):
    package = rdrr.open_package(shallow_package)
    assert package.manifest.model_id == "small-llama"
    assert package.dequantize("model.norm.weight").shape == (256,)


def test_validation_returns_a_report(shallow_package):
    report = rdrr.validate(shallow_package, deep=True)
    assert report.ok()
    assert report.model_id == "small-llama"
    assert report.faults == ()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"backend": "abacus"}, UsageError),
        ({"backend": "cpu", "context": 0}, UsageError),
        ({"kernel_hints": {"speed": "high"}}, UsageError),
        ({"backend": "wgpu", "kv_dtype": "f64"}, UsageError),
        ({"adapter": "no such adapter"}, DeviceError),
    ],
)
def test_a_wrong_option_of_load_is_an_error_of_the_tree(shallow_package, options, error):
    with pytest.raises(error):
        rdrr.load(shallow_package, **options)


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["king", "priest"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(("temperature", "seed"), [(0.0, 0), (1.5, 1), (1.5, 2)])
def test_a_schema_holds_for_any_sample_and_without_it_there_is_no_json(model, temperature, seed):
    wanted = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    options = {"temperature": temperature, "seed": seed}
    held = model.generate(PROMPT, response_format=wanted, max_tokens=60, **options)
    value = json.loads(held.read())
    assert list(value) == ["name", "age", "kind"]
    assert len(value["name"]) <= 6
    assert 0 <= value["age"] <= 99
    assert value["kind"] in ("king", "priest")
    assert held.stats.finish == "stop"
    free = model.generate(PROMPT, max_tokens=5, **options).read()
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(free)


def test_a_regular_expression_holds_for_the_whole_text(model):
    wanted = {"type": "regex", "regex": "[A-C]{3}-[0-9]{2}"}
    text = model.generate(PROMPT, response_format=wanted, temperature=2.0, seed=1).read()
    assert re.fullmatch(r"[A-C]{3}-[0-9]{2}", text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"response_format": {"type": "poem"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strang"}}}},
        {"response_format": {"type": "regex", "regex": "(ab"}},
        {"logprobs": 21},
        {"logit_bias": {10**9: 1.0}},
        {"frequency_penalty": float("nan")},
    ],
    ids=str,
)
def test_a_wrong_option_of_generate_is_wrong_usage(model, wrong):
    with pytest.raises(UsageError):
        model.generate(PROMPT, **wrong)


def test_a_schema_without_the_library_names_the_extra(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.delitem(model.__dict__, "_grammar_tokenizer", raising=False)
    with pytest.raises(UsageError, match=r"llguidance; pip install .llguidance"):
        model.generate(PROMPT, response_format={"type": "json_object"})


def test_logprobs_are_those_of_the_teacher_forced_logits(model):
    generation = model.generate(PROMPT, max_tokens=6, logprobs=2, temperature=1.0, seed=5)
    generation.read()
    ids, recorded = generation.token_ids, generation.logprobs
    logits = model.logits(generation.prompt_ids + ids)[len(generation.prompt_ids) - 1 : -1]
    expected = torch.from_numpy(logits).double().log_softmax(dim=-1)
    assert [token.token_id for token in recorded] == ids
    for row, token in zip(expected, recorded, strict=True):
        assert token.logprob == pytest.approx(float(row[token.token_id]), abs=1e-4)
        best = row.topk(2)
        assert [token_id for token_id, _ in token.top] == best.indices.tolist()
        assert [value for _, value in token.top] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert model.generate(PROMPT, max_tokens=2).logprobs is None


def test_a_bias_bans_a_token_and_forces_another(model):
    first = model.generate(PROMPT, max_tokens=3)
    first.read()
    banned = first.token_ids[0]
    other = model.generate(PROMPT, max_tokens=3, logit_bias={banned: -100.0})
    other.read()
    assert banned not in other.token_ids
    forced = model.generate(PROMPT, max_tokens=3, logit_bias={17: 100.0})
    forced.read()
    assert forced.token_ids == [17, 17, 17]


def test_draft_tokens_change_the_passes_and_not_the_text(model, shallow_package):
    prompt = "And it came to pass, that it came to pass, that it came"
    plain = model.generate(prompt, max_tokens=16)
    text = plain.read()
    for draft in ("ngram", shallow_package):
        drafted = model.generate(prompt, max_tokens=16, decode=rdrr.Speculative(draft))
        assert drafted.read() == text
        assert 0 < drafted.stats.counts.accepted <= drafted.stats.counts.drafted
        assert drafted.stats.counts.forwards < plain.stats.counts.forwards


def test_a_strategy_by_name_has_logprobs_and_formats_as_any_other(model):
    outputs = []
    for decode in ("ar", "speculative"):
        generation = model.generate(
            PROMPT,
            max_tokens=9,
            decode=decode,
            logprobs=1,
            response_format={"type": "regex", "regex": "(ab|cd){4}"},
        )
        outputs.append((generation.read(), [logprob.token_id for logprob in generation.logprobs]))
        assert outputs[-1][1] == generation.token_ids
    assert outputs[0] == outputs[1]
    assert set(outputs[0][0]) <= set("abcd")


def test_a_strategy_that_the_model_or_the_options_rule_out_is_wrong_usage(model):
    with pytest.raises(UsageError, match="not trained to fill masks"):
        model.generate(PROMPT, decode=rdrr.Wedlm())
    with pytest.raises(UsageError, match="ar, wedlm, speculative"):
        model.generate(PROMPT, decode="lookahead")
    done = rdrr_command("generate", "no package", "--prompt", "x", "--window", "8")
    assert done.code == 2
    assert "--window is an option of --decode wedlm" in done.err


def test_a_batch_gives_each_prompt_the_text_of_a_single_call(model):
    prompts = [PROMPT, "In the", model.encode("Behold")]
    done = model.generate_batch(prompts, max_tokens=6, temperature=0.9, seed=2)
    for result, prompt in zip(done, prompts, strict=True):
        alone = model.generate(prompt, max_tokens=6, temperature=0.9, seed=2)
        assert result.text == alone.read()
        assert (result.prompt_ids, result.token_ids) == (alone.prompt_ids, alone.token_ids)
        assert result.finish == "length"
    with pytest.raises(UsageError, match="warmth"):
        model.generate_batch(prompts, warmth=1.0)


def test_loglikelihoods_are_sums_over_the_teacher_forced_logits(model):
    prompt, continuations = model.encode(PROMPT), [model.encode(", and he said"), [17], []]
    scores = model.loglikelihoods(prompt, continuations)
    for score, continuation in zip(scores, continuations, strict=True):
        logits = model.logits(prompt + continuation)[len(prompt) - 1 : -1]
        rows = torch.from_numpy(logits).double().log_softmax(dim=-1)
        ids = torch.tensor(continuation, dtype=torch.int64)
        assert score.total == pytest.approx(float(rows.gather(1, ids[:, None]).sum()), abs=1e-4)
        assert score.is_greedy == (rows.argmax(dim=-1) == ids).all()
    greedy = model.generate(prompt, max_tokens=5)
    greedy.read()
    assert model.loglikelihoods(prompt, [greedy.token_ids])[0].is_greedy
    for wrong in ([], [10**9]):
        with pytest.raises(rdrr.GenerationError):
            model.loglikelihoods(wrong, [[1]])
    with pytest.raises(rdrr.GenerationError, match="longer than the context"):
        model.loglikelihoods(prompt, [[1] * 256])


def test_loglikelihoods_do_not_depend_on_how_many_logits_are_fetched_at_once(model, monkeypatch):
    continuation = model.encode(", and he said unto them")
    whole = model.loglikelihoods(PROMPT, [continuation])
    monkeypatch.setattr("rdrr._scoring_model._LOGITS_BYTES", 1)
    assert model.loglikelihoods(PROMPT, [continuation])[0].total == pytest.approx(
        whole[0].total, abs=1e-4
    )
