"""Packages run in Chromium and Firefox give the ids and texts of the Python runtime.

Both run on software adapters. `make test-web` builds what it loads and runs these tests,
which are skipped otherwise: those that are not `thorough` with SHORT=1.
"""

from __future__ import annotations

import json
import os
import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import rdrr
from pictures import picture
from support.chromium import NOT_INSTALLED, find_chromium, find_firefox, run_in_tabs
from support.commands import EXAMPLE, ROOT
from support.encoders import make_encoder, save_encoder
from support.greedy_ids import check_greedy_ids
from support.image_prompts import SEEN, image_part, text, user
from support.images import drawn_image
from support.random_models import save_model
from support.seeing_checkpoints import KINDS, write_seeing
from support.selected_tests import is_covering
from support.sentence_checkpoints import add_modules
from support.shard_cutting import in_shards
from train_seeing import QUESTION

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
SCHEMA = {
    "max_tokens": 48,
    "response_format": {
        "type": "json_schema",
        "json_schema": {
            "name": "verse",
            "schema": {
                "type": "object",
                "properties": {
                    "speaker": {"enum": ["God", "Moses", "the people"]},
                    "verse": {"type": "integer", "minimum": 1, "maximum": 50},
                },
                "required": ["speaker", "verse"],
                "additionalProperties": False,
            },
        },
    },
}
MESSAGES = [{"role": "user", "content": "And God said"}]
LONG = [int(token_id) for token_id in np.random.default_rng(5).integers(3, 8000, 2040)]
RANDOM = ("gemma3_text", "qwen3", "qwen3_5_text", "tied")
"""Models with random weights: dense, a hybrid, and an embedding that is split since it is larger
than a binding, and is the head too."""

MIXTURES = ("qwen3_moe", "gpt_oss")
"""Mixtures of experts with random weights."""

SMALL_BINDINGS = DEVICE | {"limits": {"max-storage-buffer-binding-size": 2 << 20}}

pytestmark = [
    pytest.mark.skipif("RDRR_TEST_WEB" not in os.environ, reason="run by make test-web"),
    pytest.mark.skipif(find_chromium() is None, reason=NOT_INSTALLED),
]


def with_programs(package, folder, described=DEVICE):
    device = folder / "device.json"
    device.write_text(json.dumps(described), encoding="utf-8")
    rdrr.web(package, targets=[device])
    return package


def random_package(name, folder):
    """Return a package of a model of `RANDOM` or `MIXTURES` with its programs."""
    if name != "tied":
        save_model(name, folder / f"{name}-checkpoint", tokenizer_from=EXAMPLE)
        rdrr.convert(folder / f"{name}-checkpoint", folder / name)
        return with_programs(folder / name, folder)
    sizes = {"num_hidden_layers": 1, "tie_word_embeddings": True}
    save_model("qwen3", folder / "tied-checkpoint", tokenizer_from=EXAMPLE, **sizes)
    rdrr.convert(folder / "tied-checkpoint", folder / name, quantize="f16")
    size = rdrr.open_package(folder / name).manifest.tensors["model.embed_tokens.weight"].size
    assert size > SMALL_BINDINGS["limits"]["max-storage-buffer-binding-size"]
    return with_programs(folder / name, folder, SMALL_BINDINGS)


def run(packages, cases, folder, tabs=1, *, firefox=False):
    """Run cases in one browser, and return what each reports; of several tabs, a list."""
    (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    served = {
        "cases": folder / "cases.json",
        "build": ROOT / "api" / "rdrr" / "browser",
        "grammar": ROOT / "web/node_modules/@mlc-ai/web-xgrammar/lib/index.js",
    }
    tabs_reports = run_in_tabs(
        tabs, BUILD / "chromium.mjs", {**served, **packages}, firefox=firefox
    )
    for reports in tabs_reports:
        failed = {name: report["error"] for name, report in reports.items() if "error" in report}
        assert not failed, failed
    return tabs_reports if tabs > 1 else tabs_reports[0]


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
def package(request, tmp_path_factory):
    """small-llama, transposed and fused, with a chat template; of one layer in the short form."""
    made_package = request.getfixturevalue("shallow_package" if is_covering() else "made_package")
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
    biased = {**request, "prompt": ids, "max_tokens": 2}
    requests = [
        *requests_of(),
        {**request, "stop": [stop]},
        {**biased, "logit_bias": {str(generated(model, GREEDY)[1][0]): -100}},
        {**request, **OPTIONS["sampled"], "n": 2, "max_tokens": 2},
        {"messages": MESSAGES, "max_tokens": TOKENS, **GREEDY},
        {"messages": following(model), "max_tokens": 2, **GREEDY},
        {**request, **OPTIONS["sampled"], "logprobs": 2, "max_tokens": 2},
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
    expected = generated(model, {**GREEDY, "logit_bias": {first: -100.0}}, tokens=2)
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
    first, second = report["answers"][6:8]
    messages = following(model)
    (choice,) = first["choices"]
    assert choice["message"] == messages[1]
    (choice,) = second["choices"]
    assert choice["message"]["content"] == model.chat(messages, max_tokens=2, **GREEDY).read()
    before = first["usage"]["prompt_tokens"] + TOKENS
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == before - 1


def test_log_probabilities_are_those_of_python(report, model):
    (only,) = report["answers"][8]["choices"]
    recorded = only["logprobs"]
    generation = model.generate(PROMPT, max_tokens=2, logprobs=2, **OPTIONS["sampled"])
    generation.read()
    assert only["token_ids"] == [token.token_id for token in generation.logprobs]
    for at, token in enumerate(generation.logprobs):
        assert recorded["tokens"][at] == model.decode([token.token_id])
        assert recorded["token_logprobs"][at] == pytest.approx(token.logprob, abs=5e-3)
        tops = {model.decode([best]): logprob for best, logprob in token.top}
        assert recorded["top_logprobs"][at] == pytest.approx(tops, abs=5e-3)
    assert recorded["text_offset"] == [0, len(recorded["tokens"][0])]
    assert report["answers"][0]["choices"][0]["logprobs"] is None


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
    assert choice(report["restored"]["answered"]) == choice(report["answers"][0])


def test_a_text_that_was_saved_is_restored_without_running_again(report, model):
    restored, prompt = report["restored"], len(model.encode(PROMPT))
    assert choice(restored["answered"]) == choice(report["answers"][0])
    usage = restored["answered"]["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == prompt - 1
    assert restored["ids"] == prompt  # the text before ended with its first id, which did not run
    assert restored["faults"] == ["usage", "usage", "format"]


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


def long_context(folder):
    """A random Qwen 3 of a layer whose program serves several contexts."""
    sizes = {"num_hidden_layers": 1, "max_position_embeddings": 4096}
    save_model("qwen3", folder / "long-checkpoint", tokenizer_from=EXAMPLE, **sizes)
    rdrr.convert(folder / "long-checkpoint", folder / "long")
    return with_programs(folder / "long", folder)


def run_case(kind, package, requests, folder):
    """Run requests in a browser of their own, since all together take it longer than a test may."""
    cases = {kind: {"kind": kind, "model": "package", "requests": requests}}
    return run({"package": package}, cases, folder)[kind]


@pytest.mark.thorough
def test_row_major_packages_give_the_ids_of_python(tmp_path):
    rdrr.convert(EXAMPLE, tmp_path / "rows")
    package = with_programs(tmp_path / "rows", tmp_path)
    answers = run_case("answers", package, requests_of(), tmp_path)["answers"]
    with rdrr.load(package, context=512) as model:
        for options, answer in zip(OPTIONS.values(), answers, strict=True):
            assert choice(answer) == generated(model, options)


@pytest.mark.thorough
@pytest.mark.parametrize("name", RANDOM)
def test_other_models_choose_the_most_probable_tokens(name, tmp_path):
    package = random_package(name, tmp_path)
    requests = [{"prompt": PROMPT, "max_tokens": TOKENS, **GREEDY}]
    (answer,) = run_case("answers", package, requests, tmp_path)["answers"]
    with rdrr.load(package, backend="cpu", context=512) as model:
        prompt = [int(token_id) for token_id in model.encode(PROMPT)]
    _, ids = choice(answer)
    check_greedy_ids(package, prompt, ids)


@pytest.mark.thorough
@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_give_the_ids_of_python(name, tmp_path):
    package = random_package(name, tmp_path)
    report = run_case("answers", package, requests_of(tokens=12), tmp_path)
    (program,) = json.loads((package / "web/index.json").read_text("utf-8"))["programs"]
    assert report["facts"]["program"] == program["file"]
    with rdrr.load(package, context=512) as model:
        for options, answer in zip(OPTIONS.values(), report["answers"], strict=True):
            assert choice(answer) == generated(model, options, tokens=12)


SEEING = Path(__file__).parents[1] / "data/small-qwen3-vl"


@pytest.mark.thorough
def test_a_model_that_sees_says_what_is_in_pictures(tmp_path):
    rdrr.convert(SEEING, tmp_path / "package", quantize="f16")
    package = with_programs(tmp_path / "package", tmp_path)
    rng = np.random.default_rng(1_000_003)
    shown = [picture(rng) for _ in range(2)]
    first, second = (user(image_part(seen.image), text(QUESTION)) for seen in shown)
    answer = {"role": "assistant", "content": shown[0].words}
    turns = [[first], [second], [first, answer, second], [first]]
    requests = [{"messages": turn, "max_tokens": 16, **GREEDY} for turn in turns]
    report = run_case("long", package, requests, tmp_path)
    with rdrr.load(package, backend="cpu", context=256) as model:
        expected = [model.chat(turn, max_tokens=16, temperature=0).read() for turn in turns]
    said = [only["message"]["content"] for only in (a["choices"][0] for a in report["answers"])]
    assert said == expected
    assert said[:2] == [seen.words for seen in shown]
    # The image of the first turn is encoded once, and its tokens are found in the cache.
    cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in report["answers"]]
    assert cached[3] > 9 > cached[1]


@pytest.mark.thorough
@pytest.mark.parametrize("name", KINDS)
def test_pictures_have_the_tokens_and_the_answers_of_python(name, tmp_path):
    write_seeing(tmp_path / "model", np.random.default_rng(1_000_003), name)
    exact = {"quantize": "f32", "vision_quantize": "f32"}
    rdrr.convert(tmp_path / "model", tmp_path / "package", **exact)
    package = with_programs(tmp_path / "package", tmp_path)
    first = user(text("a "), image_part(drawn_image(90, 150)), text("b?"))
    answer = {"role": "assistant", "content": "user"}
    turns = [[first], [SEEN], [first, answer, SEEN]]
    requests = [{"messages": turn, "max_tokens": 8, **GREEDY} for turn in turns]
    report = run_case("answers", package, requests, tmp_path)
    with rdrr.load(package, context=512) as model:
        for turn, answered in zip(turns, report["answers"], strict=True):
            generation = model.chat(turn, max_tokens=8, temperature=0)
            generation.read()
            assert answered["usage"]["prompt_tokens"] == len(generation.prompt_ids)
            (only,) = answered["choices"]
            assert only["message"]["token_ids"] == list(generation.token_ids)


@pytest.mark.thorough
def test_the_cache_grows_when_a_text_needs_more(tmp_path):
    package = long_context(tmp_path)
    requests = [{"prompt": LONG, "max_tokens": 12, **GREEDY}]
    report = run_case("long", package, requests, tmp_path)
    assert report["contexts"] == [2048, 4096]
    (answer,) = report["answers"]
    _, ids = choice(answer)
    assert len(ids) == 12
    check_greedy_ids(package, LONG, ids)


@pytest.fixture(scope="module")
def in_shards_of_4_mib(package, tmp_path_factory):
    """The package, cut into shards, with its programs."""
    folder = tmp_path_factory.mktemp("shards")
    cut = shutil.copytree(
        package, folder / "package", ignore=shutil.ignore_patterns("web", "*.bin")
    )
    manifest = in_shards(json.loads((package / "manifest.json").read_text("utf-8")), 4 << 20)
    weights = (package / "shard_00000.bin").read_bytes()
    for shard in manifest["shards"]:
        content = weights[shard["offset"] :][: shard["size"]]
        (cut / shard["filename"]).write_bytes(content)
        shard["hash"] = sha256(content).hexdigest()
    (cut / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert len(manifest["shards"]) > 1
    return with_programs(cut, folder)


@pytest.mark.thorough
@pytest.mark.parametrize("during", [None, "delete", "abort"])
def test_two_tabs_load_a_package_at_the_same_time(in_shards_of_4_mib, model, during, tmp_path):
    package = in_shards_of_4_mib
    requests = requests_of()[: 1 if during else 2]
    case = {"kind": "tabs", "model": "package", "requests": requests, "during": during}
    reports = [only["tabs"] for only in run({"package": package}, {"tabs": case}, tmp_path, tabs=2)]
    first, second = sorted(reports, key=lambda report: not report["first"])
    for report in (first, second) if during != "abort" else (second,):
        assert "fault" not in report
        for options, answer in zip(OPTIONS.values(), report["answers"], strict=False):
            assert choice(answer) == generated(model, options)
    shards = sorted(path.name for path in package.glob("shard_*"))
    if during is None:
        # Each shard is downloaded by the tab that needs it first; the other one waits for it.
        assert sorted(first["shards"] + second["shards"]) == shards
        assert first["shards"][0] == shards[0]
    elif during == "delete":
        # What is deleted is downloaded again, and what the first tab keeps afterwards is not.
        assert second["deletes"]
        assert (first["shards"], second["shards"]) == (shards, shards[:1])
    else:
        assert second["shards"] == shards
        assert (first["fault"], first["shards"]) == ("AbortError", shards[:1])
    assert second["had"]
    assert second["offline"] == ["none", "network"]


@pytest.mark.thorough
@pytest.mark.skipif(find_firefox() is None, reason="Firefox is not installed")
def test_firefox_gives_the_ids_of_python(package, model, tmp_path):
    """Firefox compiles with naga, and takes Mesa's software adapter."""
    cases = {"texts": {"kind": "answers", "model": "package", "requests": requests_of()}}
    answers = run({"package": package}, cases, tmp_path, firefox=True)["texts"]["answers"]
    for options, answer in zip(OPTIONS.values(), answers, strict=True):
        assert choice(answer) == generated(model, options)


@pytest.mark.thorough
def test_a_lost_device_is_opened_again_and_the_text_goes_on(package, model, tmp_path):
    report = run_case("lost", package, requests_of()[:1], tmp_path)
    assert report["devices"] == 2
    assert report["ids"] == generated(model, next(iter(OPTIONS.values())))[1]


@pytest.mark.thorough
def test_a_worker_has_the_same_interface_and_follows_schemas(package, model, tmp_path):
    requests = [*requests_of()[:2], {"prompt": PROMPT, **SCHEMA, **GREEDY}]
    report = run_case("worker", package, requests, tmp_path)
    for options, answer in zip(list(OPTIONS.values())[:2], report["answers"], strict=False):
        assert choice(answer) == generated(model, options)
    assert (report["fault"], report["aborted"]) == ("usage", "AbortError")
    assert report["facts"]["id"] == "small-llama"
    assert "download" in report["stages"]
    # Python's library prescribes the tokens of a text that can only go on in one way, this one not.
    text, _ = choice(report["answers"][2])
    answer = json.loads(text)
    assert list(answer) == ["speaker", "verse"]
    assert answer["speaker"] in ("God", "Moses", "the people")
    assert 1 <= answer["verse"] <= 50
