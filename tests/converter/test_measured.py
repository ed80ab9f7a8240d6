"""`measure`: the divergence of a package from its source, in its report, page and model card."""

from __future__ import annotations

import json
import shutil

import pytest
import rdrr
from rdrr._measurement import chat_windows, spread
from rdrr._model_card import model_card
from rdrr._report_html import render
from rdrr._report_view import read_report, view
from rdrr._sample_texts import SENTENCES
from rdrr.evaluate import compare, compare_embeddings
from rdrr_converter.convert import convert
from rdrr_format.errors import UsageError
from rdrr_format.locations import parse_hub
from rdrr_manifests.package import open_package
from support.commands import EXAMPLE, ROOT, error_line
from support.commands import rdrr as run
from support.encoders import make_encoder, save_encoder
from support.safetensor_files import llama_tensors, write_llama
from support.seeds import generator_of

HELD_OUT = ROOT / "tests/data/text/heldout.txt"
CARD = parse_hub("hf://someone/model")


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch):
    monkeypatch.setattr("rdrr._measurement.TOKENS", 128)
    monkeypatch.setattr("rdrr._measurement.WINDOW", 64)
    monkeypatch.setattr("rdrr._convert.TOKENS", 128)


@pytest.fixture(scope="module")
def talker(request, tmp_path_factory):
    """A small random model with the tokenizer and the chat template of the example."""
    sizes = {"vocab_size": 8192, "hidden_size": 64, "intermediate_size": 128}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    folder = tmp_path_factory.mktemp("talker") / "small"
    write_llama(folder, llama_tensors(generator_of(request), **sizes), **sizes)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EXAMPLE / name, folder)
    return folder


def test_report_page_and_card_state_the_divergence_that_compare_measures(tmp_path, talker):
    options = {"tensor_types": {"up_proj": "Q6_K"}}
    result = rdrr.convert(talker, tmp_path / "out", measure=HELD_OUT, **options)
    rdrr.convert(talker, tmp_path / "usual")
    rdrr.convert(talker, tmp_path / "plain", quantize="f32")
    report = read_report(tmp_path / "out")
    measured = report.measured
    assert measured == result.measured
    with rdrr.load(tmp_path / "plain", backend="cpu") as base:
        ids = spread(base.encode(HELD_OUT.read_text(encoding="utf-8")), 128, 64)
        ids = in_conversations(base, ids[:64]) + in_conversations(base, ids[64:])
        for name, figures in (("out", measured.package), ("usual", measured.usual)):
            with rdrr.load(tmp_path / name, backend="cpu") as model:
                expected = compare(model, base, ids, window=64)
            assert figures.mean == pytest.approx(expected.mean_divergence, rel=1e-3)
            assert figures.standard_error == pytest.approx(expected.divergence_error, rel=1e-3)
    assert (measured.tokens, measured.is_chat) == (126, True)
    sizes = [open_package(tmp_path / name).manifest.total_size for name in ("out", "usual")]
    assert [measured.package.bytes, measured.usual.bytes] == sizes
    said = f"{measured.package.mean:.4g} ± {measured.package.standard_error:.2g} nats"
    manifest = open_package(tmp_path / "out").manifest
    for text in (
        render(view(report)),
        model_card(manifest, CARD, report=report),
        run("report", tmp_path / "out").out,
    ):
        assert said in text


def in_conversations(model, ids):
    """The first quarter of a window as a user says it, and the rest as the answer."""
    start, answer = ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n")
    prompt = model.encode_as_is(start + model.decode(ids[:16]) + answer)
    return (prompt + ids[16:])[:64]


def test_a_text_stays_as_it_is_without_a_template_that_takes_it(tmp_path, talker):
    windows = [[5, 6, 7, 8] * 16, [9, 10, 11, 12] * 16]
    rdrr.convert(talker, tmp_path / "out", quantize="f32")
    settings = tmp_path / "out/tokenizer_config.json"
    stated = json.loads(settings.read_text(encoding="utf-8"))
    templates = {
        "usual": stated["chat_template"],
        "refuses": "{{ raise_exception('no') }}",
        "long": "long " * 99,
        "absent": None,
    }
    lengths = {}
    for name, template in templates.items():
        settings.write_text(json.dumps({**stated, "chat_template": template}), encoding="utf-8")
        with rdrr.load(tmp_path / "out", backend="cpu") as model:
            conversations = chat_windows(model, windows)
        lengths[name] = conversations and [len(ids) for ids in conversations]
    assert lengths == {"usual": [64, 64], "refuses": None, "long": None, "absent": None}


def test_a_measured_package_differs_in_its_report_only(tmp_path, talker):
    done = run("convert", talker, tmp_path / "a", "--measure", HELD_OUT, "--json", code=0)
    rdrr.convert(talker, tmp_path / "b")
    for file in (tmp_path / "b").iterdir():
        if file.name != "conversion-report.json":
            assert (tmp_path / "a" / file.name).read_bytes() == file.read_bytes()
    report = json.loads((tmp_path / "a/conversion-report.json").read_text(encoding="utf-8"))
    # Without an option for quality or size there is nothing to compare it with.
    assert report.pop("measured")["package"]["mean"] == done.json()["measured"]["package"]["mean"]
    assert done.json()["measured"]["usual"] is None
    assert report == json.loads((tmp_path / "b/conversion-report.json").read_text("utf-8"))
    plain = read_report(tmp_path / "b")
    assert "Divergence" not in render(view(plain))
    assert "Divergence" not in model_card(open_package(tmp_path / "b").manifest, CARD, report=plain)


def test_the_similarity_of_embeddings_is_measured_on_bundled_sentences(rng, tmp_path):
    save_encoder(make_encoder("bert", rng), tmp_path / "source")
    options = {"quantize": "q8_0", "tensor_types": {"up_proj": "Q4_0"}}
    result = rdrr.convert(tmp_path / "source", tmp_path / "out", measure="sentences", **options)
    for name, kind in (("plain", "f32"), ("usual", "q8_0")):
        rdrr.convert(tmp_path / "source", tmp_path / name, quantize=kind)
    report = read_report(tmp_path / "out")
    measured = report.measured
    assert measured == result.measured
    texts = [text for text in SENTENCES if text]
    with rdrr.load(tmp_path / "plain", backend="cpu") as base:
        for name, figures in (("out", measured.package), ("usual", measured.usual)):
            with rdrr.load(tmp_path / name, backend="cpu") as model:
                expected = compare_embeddings(model, base, texts)
            assert figures.mean == pytest.approx(expected.mean, abs=2e-6)
            assert figures.least == pytest.approx(expected.least, abs=2e-6)
    assert measured.package.least < measured.usual.least <= measured.usual.mean < 1
    said = f"{measured.package.mean:.6f} on average, {measured.package.least:.6f} at least"
    card = model_card(open_package(tmp_path / "out").manifest, CARD, report=report)
    for text in (render(view(report)), card, run("report", tmp_path / "out").out):
        assert said in text
    assert "pipeline_tag: feature-extraction" in card
    assert "rdrr embed hf://someone/model" in card


def test_each_line_of_a_file_is_a_text_whose_embedding_is_compared(rng, tmp_path):
    save_encoder(make_encoder("bert", rng), tmp_path / "source")
    (tmp_path / "texts.txt").write_text("a b c\n\nd e\n", encoding="utf-8")
    (tmp_path / "none.txt").write_text(" \n", encoding="utf-8")
    options = {"quantize": "f32", "measure": tmp_path / "texts.txt"}
    measured = rdrr.convert(tmp_path / "source", tmp_path / "out", **options).measured
    assert (measured.texts, measured.usual) == (2, None)
    assert measured.package.least == measured.package.mean == 1
    with pytest.raises(UsageError, match="a text on each line"):
        rdrr.convert(tmp_path / "source", tmp_path / "none", measure=tmp_path / "none.txt")


def test_a_source_without_loss_has_no_divergence(tmp_path, talker):
    result = rdrr.convert(talker, tmp_path / "out", quantize="f32", measure="sentences")
    assert result.measured.tokens > 100
    assert result.measured.package.mean < 1e-6
    assert result.measured.package.same_top == 1


@pytest.mark.parametrize(
    ("kind", "task", "results"),
    [
        ("modernbert", "ForMaskedLM", "results for each token"),
        ("bert", "ForSequenceClassification", "labels"),
    ],
)
def test_a_model_without_predictions_and_embeddings_is_refused_first(
    rng, tmp_path, kind, task, results
):
    save_encoder(make_encoder(kind, rng, task), tmp_path / "source")
    with pytest.raises(UsageError, match=f"makes neither.*found {results}.*without `measure`"):
        rdrr.convert(tmp_path / "source", tmp_path / "out", measure="sentences")
    assert not (tmp_path / "out").exists()


def test_a_text_is_not_both_calibrated_and_judged_on(tmp_path):
    out = tmp_path / "out"
    options = {"size": "4400KiB", "text": HELD_OUT, "measure": HELD_OUT}
    with pytest.raises(UsageError, match="calibrated"):
        rdrr.convert(EXAMPLE, out, **options)
    assert "calibrated" in error_line(
        run("convert", EXAMPLE, out, "--measure", ROOT / "api/rdrr/texts/calibration.txt")
    )
    with pytest.raises(UsageError, match="dry run"):
        rdrr.convert(EXAMPLE, out, measure=HELD_OUT, dry_run=True)
    with pytest.raises(UsageError, match=r"rdrr\.convert"):
        convert(EXAMPLE, out, measure=HELD_OUT)
    assert not out.exists()


def test_windows_come_from_all_over_a_text():
    assert spread(range(100), 4, 2) == [0, 1, 50, 51]
    assert spread(range(5), 100, 8) == [0, 1, 2, 3, 4]
