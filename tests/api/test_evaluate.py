"""Perplexity and divergence, compared with torch, transformers and models with known results."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rdrr
import torch
from rdrr import evaluate
from rdrr_format.errors import GenerationError, UsageError
from support.commands import EXAMPLE, error_line
from support.commands import rdrr as run

TEXT = Path(__file__).parents[1] / "data" / "text" / "heldout.txt"
VOCAB = 50


class FakeModel:
    """A model whose logits of the next token do not depend on the tokens before it."""

    def __init__(self, table, where="fake"):
        self.table = np.asarray(table, np.float32)
        self.asked = []
        sizes = SimpleNamespace(architecture=SimpleNamespace(vocab_size=self.table.shape[1]))
        self.package = SimpleNamespace(manifest=sizes, where=where)

    def encode(self, text):
        return [ord(char) % self.table.shape[1] for char in text]

    def logits(self, ids, *, stepwise=False):
        self.asked.append((list(ids), stepwise))
        return self.table[np.asarray(ids)]


@pytest.fixture(scope="module")
def package(shallow_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate") / "small-llama"
    rdrr.convert(shallow_checkpoint, folder, quantize="f32")
    return folder


def test_log_softmax_and_divergence_are_those_of_torch(rng):
    base, model = (rng.normal(0, 5, (150, VOCAB)).astype(np.float32) for _ in range(2))
    logs = [torch.log_softmax(torch.from_numpy(logits).double(), 1) for logits in (base, model)]
    ours = [evaluate.log_softmax(logits) for logits in (base, model)]
    np.testing.assert_allclose(ours[0], logs[0].numpy(), rtol=1e-6, atol=1e-6)
    wanted = torch.nn.functional.kl_div(logs[1], logs[0], log_target=True, reduction="none")
    result = evaluate.divergence(*ours)
    np.testing.assert_allclose(result, wanted.sum(1).numpy(), rtol=1e-4, atol=1e-5)
    assert (result > 0).all()


def test_large_logits_do_not_overflow():
    logs = evaluate.log_softmax(np.array([[1e4, -1e4, 1e4]], np.float32))
    np.testing.assert_allclose(logs[0, [0, 2]], -math.log(2), rtol=1e-6)


def test_the_perplexity_of_a_uniform_model_is_the_size_of_its_vocabulary(rng):
    ids = rng.integers(0, VOCAB, 100).tolist()
    score = evaluate.perplexity(FakeModel(np.zeros((VOCAB, VOCAB))), ids)
    assert score.perplexity == pytest.approx(VOCAB, rel=1e-6)
    assert score.tokens == 99


def test_the_perplexity_of_certain_predictions_is_one():
    successor = 100.0 * np.eye(VOCAB)[(np.arange(VOCAB) + 1) % VOCAB]
    ids = [id_ % VOCAB for id_ in range(120)]
    assert evaluate.perplexity(FakeModel(successor), ids).perplexity == pytest.approx(1)
    assert evaluate.perplexity(FakeModel(successor), ids[::-1]).perplexity > 1e9


@pytest.mark.parametrize(("scale", "refused"), [(600.0, False), (900.0, True), (np.nan, True)])
def test_a_loss_beyond_what_exp_can_represent_is_refused(scale, refused):
    table = scale * np.eye(VOCAB)
    if not refused:
        assert evaluate.perplexity(FakeModel(table), [1, 2, 3]).cross_entropy == pytest.approx(
            scale
        )
        return
    with pytest.raises(GenerationError, match="loss is too large"):
        evaluate.perplexity(FakeModel(table), [1, 2, 3])


def test_windows_do_not_overlap_and_each_token_after_the_first_is_predicted_once():
    model = FakeModel(np.zeros((VOCAB, VOCAB)))
    seen = []
    ids = list(range(25))
    score = evaluate.perplexity(
        model, ids, window=10, stepwise=True, progress=lambda *counts: seen.append(counts)
    )
    assert [asked for asked, _ in model.asked] == [ids[:9], ids[10:19], ids[20:24]]
    assert all(stepwise for _, stepwise in model.asked)
    assert (score.tokens, score.windows) == (9 + 9 + 4, 3)
    assert seen == [(10, 25), (20, 25), (25, 25)]


def test_a_single_remaining_token_makes_no_window():
    score = evaluate.perplexity(FakeModel(np.zeros((VOCAB, VOCAB))), list(range(21)), window=10)
    assert (score.tokens, score.windows) == (18, 2)


def test_the_limit_cuts_the_text():
    model = FakeModel(np.zeros((VOCAB, VOCAB)))
    assert evaluate.perplexity(model, "some text to predict", limit=5).tokens == 4


@pytest.mark.parametrize(("ids", "window"), [([], 10), ([1], 10), ([1, 2, 3], 1)])
def test_a_text_or_window_of_less_than_two_tokens_is_refused(ids, window):
    with pytest.raises(UsageError, match="2 tokens or more"):
        evaluate.perplexity(FakeModel(np.zeros((VOCAB, VOCAB))), ids, window=window)


def test_a_model_does_not_differ_from_itself(rng):
    model = FakeModel(rng.normal(0, 3, (VOCAB, VOCAB)))
    comparison = evaluate.compare(model, model, rng.integers(0, VOCAB, 80).tolist(), window=32)
    assert (comparison.mean_divergence, comparison.largest_divergence) == (0, 0)
    assert comparison.divergence_error == 0
    assert (comparison.same_top, comparison.ratio, comparison.ratio_error) == (1, 1, 0)


def test_a_comparison_has_both_perplexities_and_the_divergence(rng):
    tables = [rng.normal(0, 3, (VOCAB, VOCAB)) for _ in range(2)]
    models = [FakeModel(table) for table in tables]
    ids = rng.integers(0, VOCAB, 80).tolist()
    comparison = evaluate.compare(*models, ids, window=80)
    for score, model in zip((comparison.model, comparison.base), models, strict=True):
        assert score == evaluate.perplexity(model, ids, window=80)
    tops = [table[ids[:-1]].argmax(1) for table in tables]
    assert comparison.same_top == pytest.approx((tops[0] == tops[1]).mean())
    model, base = (torch.log_softmax(torch.tensor(table[ids[:-1]]), 1).numpy() for table in tables)
    divergences = (np.exp(base) * (base - model)).sum(1)
    assert comparison.mean_divergence == pytest.approx(divergences.mean(), rel=1e-4)
    assert comparison.largest_divergence == pytest.approx(divergences.max(), rel=1e-4)
    error = divergences.std() / np.sqrt(79)
    assert comparison.divergence_error == pytest.approx(error, rel=1e-4)
    apart = (base - model)[np.arange(79), ids[1:]]
    assert comparison.ratio == pytest.approx(np.exp(apart.mean()), rel=1e-4)
    assert comparison.loss_error == pytest.approx(apart.std() / np.sqrt(79), rel=1e-4)


def test_models_with_different_tokenizers_cannot_be_compared():
    models = [FakeModel(np.zeros((size, size)), f"of {size}") for size in (50, 60)]
    with pytest.raises(UsageError, match=r"tokenizers .* differ.*60 tokens beside 50"):
        evaluate.compare(*models, [1, 2, 3])


def test_perplexity_is_that_of_transformers_on_the_same_windows(tmp_path):
    from transformers import AutoModelForCausalLM

    rdrr.convert(EXAMPLE, tmp_path / "package", quantize="f32")
    with rdrr.load(tmp_path / "package", backend="cpu", context=64) as model:
        ids = model.encode(TEXT.read_text(encoding="utf-8"))[:150]
        score = evaluate.perplexity(model, ids, window=64)
    peer = AutoModelForCausalLM.from_pretrained(EXAMPLE, dtype=torch.float32)
    losses = []
    with torch.no_grad():
        for first in range(0, 150, 64):
            part = torch.tensor([ids[first : first + 64]])
            logits = peer(part).logits[0, :-1]
            losses += torch.nn.functional.cross_entropy(
                logits, part[0, 1:], reduction="none"
            ).tolist()
    assert score.tokens == len(losses)
    assert score.cross_entropy == pytest.approx(np.mean(losses), abs=1e-5)
    assert score.perplexity < 40  # a trained model: its 8192 tokens are not equally likely


@pytest.mark.parametrize("backend", ["cpu", pytest.param("wgpu", marks=pytest.mark.thorough)])
def test_one_token_per_pass_gives_the_same_logits_as_many(package, backend):
    with rdrr.load(package, backend=backend, context=16, kv_dtype="f32") as model:
        ids = model.encode("And it came to pass in those days")
        many, single = model.logits(ids), model.logits(ids, stepwise=True)
        with pytest.raises(GenerationError, match=r"do not fit.*17"):
            model.logits([3] * 17)
    assert many.shape == single.shape
    assert np.abs(many - single).max() <= 1e-3 * np.abs(many).max()


def test_the_command_prints_the_figures_and_compares(package):
    words = ("perplexity", package, "--text", TEXT, "--tokens", 12, "--backend", "cpu")
    alone = run(*words, "--json").json()
    assert (alone["tokens"], alone["backend"]) == (11, "cpu")
    assert alone["perplexity"] == pytest.approx(math.exp(alone["cross_entropy"]))
    both = run(*words, "--against", package, "--json").json()
    assert (both["mean_divergence"], both["same_top"], both["ratio"]) == (0, 1, 1)
    assert both["base"]["perplexity"] == alone["perplexity"] == both["perplexity"]
    shown = run(*words, "--against", package)
    assert f"{alone['perplexity']:.4f}" in shown.out
    assert "100.00 %" in shown.out
    assert both["divergence_error"] == 0
    assert "0.000000 nats (standard error 0.000000)" in shown.out
    assert "--backend" in shown.err
    assert "divergence" not in run(*words).out


def test_the_command_refuses_what_it_cannot_read(package, tmp_path):
    words = ("perplexity", package, "--backend", "cpu", "--text")
    missing = run(*words, tmp_path / "none.txt")
    assert "none.txt" in error_line(missing, 1)
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xfe\x00")
    refused = run(*words, binary)
    assert "UTF-8" in error_line(refused, 2)
    wide = run(*words, TEXT, "--window", 10**6)
    assert "--window is larger" in error_line(wide, 2)
