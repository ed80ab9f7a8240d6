"""Texts that run together op by op compute what each computes alone."""

from __future__ import annotations

import numpy as np
import pytest
import rdrr
import torch
from rdrr_manifests.graph.ops import Head, Linear
from rdrr_manifests.package import open_package
from rdrr_runtime.reference import stack
from rdrr_runtime.reference.forward import ReferenceModel
from rdrr_runtime.reference.stack import TextStack
from support.checkpoints import make_model, save_checkpoint
from support.tiny_models import ALL_MODELS

TEXTS, ROWS = 3, 7


def graph_of(name, rng, tmp_path):
    tiny = next(model for model in ALL_MODELS if model.model_type == name)
    # Qwen 3 Next and Gemma 3n have other layers behind the first two.
    layers = {} if name in ("qwen3_next", "gemma3n_text") else {"num_hidden_layers": 2}
    save_checkpoint(make_model(tiny, rng, **layers), tmp_path / "source", dtype="float32")
    rdrr.convert(tmp_path / "source", tmp_path / "package", quantize="f32")
    package = open_package(tmp_path / "package")
    names = [use.name for use in package.graph.weights()]
    return package.graph, {
        name: torch.from_numpy(np.ascontiguousarray(package.dequantize(name))) for name in names
    }


@pytest.mark.parametrize(
    "name", ["llama", "gemma3n_text", "qwen3_moe", "qwen3_next", "deepseek_v3"]
)
def test_a_walk_has_the_hidden_states_of_each_text(tmp_path, rng, name, monkeypatch):
    monkeypatch.setattr(stack, "SCORES", 1 << 9)  # attention takes a few texts at once
    graph, weights = graph_of(name, rng, tmp_path)
    ids = torch.from_numpy(rng.integers(3, graph.vocab_size, (TEXTS, ROWS)))
    ops = []
    for op, run in TextStack(graph, weights, TEXTS, ROWS).walk(ids):
        ops.append(op)
        held = set(run.values)
    assert tuple(ops) == graph.ops
    assert isinstance(op, Head)
    assert held == {op.x}  # all else is freed
    for text, hidden in zip(ids, run.values[op.x].unflatten(0, (TEXTS, ROWS)), strict=True):
        alone = ReferenceModel(graph, weights, ROWS).hidden(text.tolist(), 0)
        torch.testing.assert_close(hidden, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", pytest.param("qwen3_next", marks=pytest.mark.thorough)])
def test_sampled_tokens_follow_the_predictions_and_the_seed(tmp_path, rng, name):
    graph, weights = graph_of(name, rng, tmp_path)
    head = graph.ops[-1].weight.name
    starts = torch.from_numpy(rng.integers(3, graph.vocab_size, (TEXTS, 2)))

    def sample(weights, seed):
        return TextStack(graph, weights, TEXTS, ROWS).sample(starts, ROWS, seed)

    assert torch.equal(sample(weights, 0), sample(weights, 0))
    assert not torch.equal(sample(weights, 0), sample(weights, 1))
    # Logits that are far apart leave no choice but the most probable token.
    certain = {**weights, head: weights[head] * 1e5}
    ids = sample(certain, 0)
    for text in ids:
        logits = ReferenceModel(graph, certain, ROWS).forward(text[:-1].tolist(), 0, all_rows=True)
        assert torch.equal(logits.argmax(1)[1:], text[2:])


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("llama", 3),
        pytest.param("gemma3n_text", 3, marks=pytest.mark.thorough),
        ("qwen3_moe", 3),
        ("qwen3_next", 1),
        pytest.param("deepseek_v3", 1, marks=pytest.mark.thorough),
    ],
)
def test_logits_and_gradients_are_those_of_each_text_alone(tmp_path, rng, name, texts):
    graph, weights = graph_of(name, rng, tmp_path)
    ids = torch.from_numpy(rng.integers(3, graph.vocab_size, (texts, ROWS)))
    factors = torch.from_numpy(rng.normal(size=(texts, ROWS, graph.vocab_size)).astype(np.float32))
    leaf = next(op.weight.name for op in graph.ops if isinstance(op, Linear))

    def run(logits):
        weights[leaf] = weights[leaf].detach().requires_grad_()
        values = logits()
        (values * factors).sum().backward()
        return values.detach(), weights[leaf].grad

    def alone():
        models = [ReferenceModel(graph, weights, ROWS, differentiable=True) for _ in ids]
        pairs = zip(models, ids, strict=True)
        return torch.stack(
            [model.forward(text.tolist(), 0, all_rows=True) for model, text in pairs]
        )

    def together():
        return TextStack(graph, weights, texts, ROWS, differentiable=True).logits(ids)

    for ours, reference in zip(run(together), run(alone), strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-3, atol=1e-3)
    assert not TextStack(graph, weights, texts, ROWS).logits(ids).requires_grad
