"""Models whose sizes are not multiples of 4 run on the GPU, which reads four values at a time."""

from __future__ import annotations

from contextlib import closing

import pytest
from rdrr_converter.convert import convert
from rdrr_manifests.graph.ops import Norm
from rdrr_manifests.graph.padding import pad_widths
from rdrr_manifests.package import open_package
from rdrr_runtime.compile.choice.hints import resolve
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.reference.backend import CpuBackend
from support.checkpoints import make_model, save_checkpoint
from support.comparison import relative_error, scored, stepped, transformers_logits
from support.routes import decided_ids
from support.tiny_models import VOCAB, TinyModel

TOKENS, PREFILL = 40, 36
LLAMA = TinyModel(
    "llama", 250, (("intermediate_size", 511), ("mlp_bias", True), ("num_attention_heads", 2))
)
GEMMA = TinyModel(
    "gemma3_text",
    190,
    (
        ("intermediate_size", 301),
        ("num_attention_heads", 2),
        ("sliding_window", 24),
        ("query_pre_attn_scalar", 48),
        ("sliding_window_pattern", 2),
        ("tie_word_embeddings", True),
    ),
)
EXPERTS = TinyModel(
    "qwen2_moe",
    254,
    (
        ("moe_intermediate_size", 97),
        ("mlp_only_layers", [1]),
        ("num_experts", 6),
        ("num_experts_per_tok", 3),
        ("shared_expert_intermediate_size", 161),
        ("num_attention_heads", 2),
        ("intermediate_size", 131),
    ),
)
CASES = [
    (LLAMA, "q4_k_m", {}),
    (GEMMA, "f32", {}),
    (EXPERTS, "f32", {}),
    pytest.param(LLAMA, "f32", {}, marks=pytest.mark.thorough),
    pytest.param(LLAMA, "f16", {"transpose_weights": True}, marks=pytest.mark.thorough),
    pytest.param(EXPERTS, "q8_0", {}, marks=pytest.mark.thorough),
]


@pytest.mark.parametrize(("tiny", "quantize", "options"), CASES)
def test_odd_sizes_run_on_the_gpu_as_on_the_cpu(tiny, quantize, options, device, tmp_path, rng):
    model = make_model(tiny, rng, num_hidden_layers=2)
    save_checkpoint(model, tmp_path / "source", dtype="float32")
    result = convert(tmp_path / "source", tmp_path / "package", quantize=quantize, **options)
    assert not any("only the backend" in note for note in result.notes)
    package = open_package(tmp_path / "package")
    assert any(use.shape[-1] % 4 for use in package.graph.weights())
    ids = decided_ids(package, rng, TOKENS)
    expected = scored(CpuBackend(package, context=64), ids)
    if quantize == "f32" and tiny is not EXPERTS:  # torch needs multiples of 4 for experts
        assert relative_error(expected, transformers_logits(model, ids)) <= 1e-4
    exact = resolve({"run flag": {"computePrecision": "f32"}})
    with closing(
        GpuBackend(package, context=64, kv_dtype="f32", device=device, policy=exact)
    ) as backend:
        assert relative_error(scored(backend, ids), expected) <= 1e-4
        assert relative_error(stepped(backend, ids, PREFILL), expected[PREFILL - 1 :]) <= 1e-4


def test_only_odd_widths_are_padded(tmp_path, rng):
    for tiny, is_odd in ((LLAMA, True), (TinyModel("llama"), False)):
        folder = tmp_path / tiny.name
        save_checkpoint(make_model(tiny, rng, num_hidden_layers=2), folder / "source")
        convert(folder / "source", folder / "package")
        graph = open_package(folder / "package").graph
        padded = pad_widths(graph)
        assert (padded.graph is not graph) == is_odd
        assert all(use.shape[-1] % 4 == 0 for use in padded.graph.weights())
        shapes = {use.name: use.shape for use in padded.graph.weights()}
        for use in graph.weights():
            more = [new - old for new, old in zip(shapes[use.name], use.shape, strict=True)]
            assert all(0 <= id_ < 4 for id_ in more)
        for op, wide in zip(graph.ops, padded.graph.ops, strict=True):
            if isinstance(op, Norm) and op.weight is not None:  # zeros add nothing to the squares
                assert wide.eps * wide.width == pytest.approx(op.eps * op.width, rel=1e-9)
        norms = {use.name for use in graph.weights() if use.name.endswith("norm.weight")}
        assert set(padded.scales) == (norms if is_odd else set())


def test_a_mixture_whose_layers_are_all_dense_is_a_dense_model(tmp_path, rng):
    model = make_model(EXPERTS, rng, num_hidden_layers=2, mlp_only_layers=[0, 1])
    save_checkpoint(model, tmp_path / "source", dtype="float32")
    convert(tmp_path / "source", tmp_path / "package", quantize="f32")
    package = open_package(tmp_path / "package")
    assert package.manifest.moe_config is None
    ids = rng.integers(3, VOCAB, 8).tolist()
    ours = scored(CpuBackend(package, context=64), ids)
    assert relative_error(ours, transformers_logits(model, ids)) <= 1e-4
