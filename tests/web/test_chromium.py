"""Packages run in Chromium give the ids and texts of the Python runtime.

Chromium runs on its software adapter. `make test-web` builds what it loads and runs these tests,
which are skipped otherwise: those that are not `thorough` with SHORT=1.
"""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
import rdrr
from support.chromium import NOT_INSTALLED, find_chromium, run_module
from support.commands import EXAMPLE, ROOT
from support.encoders import make_encoder, save_encoder
from support.greedy_ids import check_greedy_ids
from support.random_models import save_model
from support.sentence_checkpoints import add_modules

BUILD = ROOT / "web" / "build"
PROMPT = "And it came to pass in those days"
DEVICE = {"language": ["packed_4x8_integer_dot_product"], "software": True}
"""What the usual programs are planned for is compiled for minutes on a software adapter."""

GREEDY = {"temperature": 0}
OPTIONS = {
    "sampled": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "seed": 7},
    "greedy": GREEDY,
    "penalized": {
        "temperature": 0.9,
        "min_p": 0.05,
        "repeat_penalty": 1.2,
        "frequency_penalty": 0.1,
        "seed": 11,
    },
}
TOKENS = 4
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
MESSAGES = [{"role": "user", "content": "And God said"}]
RANDOM = ("gemma3_text", "qwen3")
"""Models with random weights."""

pytestmark = [
    pytest.mark.skipif("RDRR_TEST_WEB" not in os.environ, reason="run by make test-web"),
    pytest.mark.skipif(find_chromium() is None, reason=NOT_INSTALLED),
]


def with_programs(package, folder):
    device = folder / "device.json"
    device.write_text(json.dumps(DEVICE), encoding="utf-8")
    rdrr.web(package, targets=[device])
    return package


def run(packages, cases, folder):
    """Run cases in one browser, and return what each reports."""
    (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    served = {"cases": folder / "cases.json", "build": ROOT / "api" / "rdrr" / "browser"}
    reports = run_module(BUILD / "chromium.mjs", {**served, **packages})
    failed = {name: report["error"] for name, report in reports.items() if "error" in report}
    assert not failed, failed
    return reports


def requests_of(prompt=PROMPT, tokens=TOKENS):
    return [{"prompt": prompt, "max_tokens": tokens, **options} for options in OPTIONS.values()]


def generated(model, options, prompt=PROMPT, tokens=TOKENS):
    generation = model.generate(prompt, max_tokens=tokens, **options)
    text = generation.read()
    return text, [int(token_id) for token_id in generation.token_ids]


def choice(answer):
    (only,) = answer["choices"]
    return only["text"], only["token_ids"]


@pytest.fixture(scope="module")
def package(made_package, tmp_path_factory):
    """small-llama, transposed and fused, with a chat template."""
    folder = tmp_path_factory.mktemp("web")
    package = shutil.copytree(made_package, folder / "package")
    settings = json.loads((package / "tokenizer_config.json").read_text(encoding="utf-8"))
    text = json.dumps(settings | {"chat_template": TEMPLATE})
    (package / "tokenizer_config.json").write_text(text, encoding="utf-8")
    return with_programs(package, folder)


@pytest.fixture(scope="module")
def model(package):
    with rdrr.load(package, context=512) as model:
        yield model


@pytest.fixture(scope="module")
def stop(model):
    """A string in the middle of the greedy text."""
    text, _ = generated(model, GREEDY)
    return text[len(text) // 2 :][:3]


def following(model):
    """The messages of a second turn, after the answer that Python gives in the first."""
    generation = model.chat(MESSAGES, max_tokens=TOKENS, **GREEDY)
    text = generation.read()
    ids = [int(token_id) for token_id in generation.token_ids]
    answer = {"role": "assistant", "content": text, "token_ids": ids}
    return [*MESSAGES, answer, {"role": "user", "content": "Go on"}]


@pytest.fixture(scope="module")
def report(package, model, stop, tmp_path_factory):
    ids = [int(token_id) for token_id in model.encode(PROMPT)]
    request = {"prompt": PROMPT, "max_tokens": TOKENS, **GREEDY}
    requests = [
        *requests_of(),
        {**request, "stop": [stop]},
        {**request, "prompt": ids, "logit_bias": {str(generated(model, GREEDY)[1][0]): -100}},
        {**request, **OPTIONS["sampled"], "n": 2, "max_tokens": 2},
        {"messages": MESSAGES, "max_tokens": TOKENS, **GREEDY},
        {"messages": following(model), "max_tokens": 2, **GREEDY},
    ]
    cases = {"texts": {"kind": "texts", "model": "package", "requests": requests}}
    return run({"package": package}, cases, tmp_path_factory.mktemp("cases"))["texts"]


def test_texts_and_ids_are_those_of_python(report, model):
    answers = report["answers"]
    for options, answer in zip(OPTIONS.values(), answers, strict=False):
        assert choice(answer) == generated(model, options)
        (only,) = answer["choices"]
        assert only["finish_reason"] == "length"


def test_a_text_ends_before_a_stop_string(report, model, stop):
    text, _ = generated(model, GREEDY)
    (only,) = report["answers"][3]["choices"]
    assert only["text"] == text[: text.index(stop)]
    assert only["finish_reason"] == "stop"


def test_a_bias_changes_what_is_chosen_as_in_python(report, model):
    first = generated(model, GREEDY)[1][0]
    expected = generated(model, {**GREEDY, "logit_bias": {first: -100.0}})
    assert choice(report["answers"][4]) == expected


def test_several_texts_have_seeds_of_their_own(report, model):
    choices = report["answers"][5]["choices"]
    for index, answer in enumerate(choices):
        options = {**OPTIONS["sampled"], "seed": OPTIONS["sampled"]["seed"] + index}
        assert answer["index"] == index
        assert answer["text"] == generated(model, options, tokens=2)[0]


def test_a_stream_joins_to_the_whole_text_and_ends_with_the_usage(report, model):
    stream = report["stream"]
    assert stream["text"] == generated(model, next(iter(OPTIONS.values())))[0]
    assert stream["chunks"] > 2
    assert stream["usage"]["completion_tokens"] == TOKENS


def test_a_chat_has_the_answers_of_python_and_its_second_turn_goes_on_from_the_cache(report, model):
    first, second = report["answers"][6:]
    messages = following(model)
    (choice,) = first["choices"]
    assert choice["message"] == messages[1]
    (choice,) = second["choices"]
    assert choice["message"]["content"] == model.chat(messages, max_tokens=2, **GREEDY).read()
    before = first["usage"]["prompt_tokens"] + TOKENS
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == before - 1


def test_the_usage_says_what_was_cached(report, model):
    prompt = len(model.encode(PROMPT))
    usages = [answer["usage"] for answer in report["answers"][:6]]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached == [0, *[prompt - 1] * (len(usages) - 1)]
    assert {usage["prompt_tokens"] for usage in usages} == {prompt}
    assert usages[-1]["completion_tokens"] == 4
    assert all(usage["speed"]["decode"] > 0 for usage in usages)


def test_a_survey_says_what_a_load_needs_and_keeps(report, package):
    size = (package / "shard_00000.bin").stat().st_size
    assert report["before"]["size"] == report["loaded"] == report["facts"]["size"] == size
    assert report["before"]["memory"] == report["facts"]["memory"]
    assert [report[key]["cached"] for key in ("before", "after")] == [False, True]
    assert report["before"]["reason"] is None
    assert report["stages"] == ["download", "compile", "ready"]
    assert report["facts"]["context"] == 2048
    assert report["facts"]["chat"]


def test_calls_that_end_early_leave_the_engine_as_it_was(report):
    assert report["faults"] == ["AbortError", *["usage"] * 5]
    assert choice(report["again"]) == choice(report["answers"][0])


def test_a_model_is_loaded_without_a_network_until_its_files_are_deleted(report):
    assert report["had"]
    assert len(report["listed"]) == 1
    assert report["deleted"]
    assert report["offline"] == ["none", "network"]


TEXTS = ["The quick brown fox", "", "It was the best of times. " * 8, "naïve café", "b"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A random BERT of 1 layer with prompts and a projection, whose mean leaves out the prompt."""
    folder, rng = tmp_path_factory.mktemp("encoder"), np.random.default_rng(3)
    save_encoder(make_encoder("bert", rng, num_hidden_layers=1), folder / "source")
    layers, biases = [rng.normal(size=(24, 96)) / 10], [rng.normal(size=24)]
    options = {"include_prompt": False, "layers": layers, "biases": biases}
    add_modules(folder / "source", 96, "mean", **options)
    rdrr.convert(folder / "source", folder / "package", quantize="f16")
    return with_programs(folder / "package", folder)


@pytest.mark.thorough
def test_embeddings_are_those_of_python(encoder, tmp_path):
    requests = [
        {"input": TEXTS},
        {"input": TEXTS, "prompt_name": "query"},
        {"input": "It was the worst of times. " * 80, "truncate": True},
        {"input": TEXTS[0], "dimensions": 8},
        {"input": [1, 20, 30, 2]},
    ]
    cases = {"vectors": {"kind": "vectors", "model": "encoder", "embeddings": requests}}
    report = run({"encoder": encoder}, cases, tmp_path)["vectors"]
    answers = [np.array([row["embedding"] for row in a["data"]]) for a in report["answers"]]
    with rdrr.load(encoder) as model:
        expected = [
            model.embed(TEXTS),
            model.embed(TEXTS, prompt="query"),
            model.embed(requests[2]["input"], truncate=True),
        ]
        for vectors, rows in zip(expected, answers, strict=False):
            assert np.abs(vectors - rows).max() <= 1e-3
        assert np.abs(expected[0] - expected[1]).max() > 1e-3
        short = expected[0][:1, :8]
        assert np.abs(short / np.linalg.norm(short) - answers[3]).max() <= 1e-3
        assert np.abs(model.embed("a worker")[0] - report["worker"]).max() <= 1e-3
        tokens = sum(len(model.encode(text)) for text in TEXTS)
    assert report["answers"][0]["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert answers[4].shape == (1, 24)
    assert report["faults"] == ["usage"] * 6
    assert (report["facts"]["embeds"], report["facts"]["generates"]) == (True, False)


FAMILIES = ("roberta", "mpnet", "modernbert")
"""Encoders with positions behind the padding's, a bias by distance, and rope with windows."""


@pytest.mark.thorough
def test_encoders_of_other_families_embed_as_in_python(rng, tmp_path):
    packages = {}
    for kind in FAMILIES:
        folder = tmp_path / kind
        layers = 2 if kind == "modernbert" else 1  # a layer with a window, and one without
        save_encoder(make_encoder(kind, rng, num_hidden_layers=layers), folder / "source")
        add_modules(folder / "source", 96, "mean")
        rdrr.convert(folder / "source", folder / "package", quantize="f16")
        packages[kind] = with_programs(folder / "package", folder)
    asked = [{"input": TEXTS}]
    cases = {kind: {"kind": "vectors", "model": kind, "embeddings": asked} for kind in FAMILIES}
    reports = run(packages, cases, tmp_path)
    for kind in FAMILIES:
        (answer,) = reports[kind]["answers"]
        vectors = np.array([row["embedding"] for row in answer["data"]])
        with rdrr.load(packages[kind]) as model:
            assert np.abs(vectors - model.embed(TEXTS)).max() <= 1e-3, kind


@pytest.fixture(scope="module")
def thorough(package, tmp_path_factory):
    folder = tmp_path_factory.mktemp("more")
    rdrr.convert(EXAMPLE, folder / "rows")
    packages = {"package": package, "rows": with_programs(folder / "rows", folder)}
    for name in RANDOM:
        save_model(name, folder / f"{name}-checkpoint", tokenizer_from=EXAMPLE)
        rdrr.convert(folder / f"{name}-checkpoint", folder / name)
        packages[name] = with_programs(folder / name, folder)
    greedy = [{"prompt": PROMPT, "max_tokens": TOKENS, **GREEDY}]
    cases = {name: {"kind": "answers", "model": name, "requests": greedy} for name in RANDOM}
    cases["rows"] = {"kind": "answers", "model": "rows", "requests": requests_of()}
    for kind in ("lost", "worker"):
        cases[kind] = {"kind": kind, "model": "package", "requests": requests_of()[:2]}
    return packages, run(packages, cases, folder)


@pytest.mark.thorough
def test_row_major_packages_give_the_ids_of_python(thorough):
    packages, reports = thorough
    with rdrr.load(packages["rows"], context=512) as model:
        for options, answer in zip(OPTIONS.values(), reports["rows"]["answers"], strict=True):
            assert choice(answer) == generated(model, options)


@pytest.mark.thorough
@pytest.mark.parametrize("name", RANDOM)
def test_other_models_choose_the_most_probable_tokens(thorough, name):
    packages, reports = thorough
    with rdrr.load(packages[name], context=512) as model:
        prompt = [int(token_id) for token_id in model.encode(PROMPT)]
    (answer,) = reports[name]["answers"]
    _, ids = choice(answer)
    check_greedy_ids(packages[name], prompt, ids)


@pytest.mark.thorough
def test_a_lost_device_is_opened_again_and_the_text_goes_on(thorough, model):
    _, reports = thorough
    assert reports["lost"]["devices"] == 2
    assert reports["lost"]["ids"] == generated(model, next(iter(OPTIONS.values())))[1]


@pytest.mark.thorough
def test_a_worker_has_the_same_interface(thorough, model):
    _, reports = thorough
    report = reports["worker"]
    for options, answer in zip(list(OPTIONS.values())[:2], report["answers"], strict=True):
        assert choice(answer) == generated(model, options)
    assert (report["fault"], report["aborted"]) == ("usage", "AbortError")
    assert report["facts"]["id"] == "small-llama"
    assert "download" in report["stages"]
