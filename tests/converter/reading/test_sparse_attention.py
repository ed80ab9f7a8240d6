"""Models whose attention reads the tokens that an indexer selects, up to the number it selects."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rdrr._load import context_of
from rdrr_converter.convert import convert
from rdrr_format.errors import SourceError, UsageError
from rdrr_manifests.package import open_package
from rdrr_runtime.reference.backend import CpuBackend
from support.checkpoints import make_model, save_checkpoint
from support.comparison import relative_error, scored, transformers_logits
from support.tiny_models import VOCAB, TinyModel

CPU = 1e-4
TOP_K = 48
LATENTS = {
    "kv_lora_rank": 24,
    "num_key_value_heads": 4,
    "q_lora_rank": 40,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
}
EXPERTS = {
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "n_group": 2,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "topk_group": 1,
}
INDEXER = {"index_head_dim": 32, "index_n_heads": 2, "index_topk": TOP_K}


def made(kind: str, rng: Any) -> Any:
    options = {**LATENTS, **EXPERTS, **INDEXER, "intermediate_size": 96, "hidden_size": 64}
    tiny = TinyModel(kind, 64, tuple(options.items()), omitted=("head_dim",))
    return make_model(tiny, rng, num_hidden_layers=2)


@pytest.mark.parametrize("kind", ["deepseek_v32", "glm_moe_dsa"])
def test_the_context_ends_where_the_indexer_begins_to_select(tmp_path, rng, kind):
    model = made(kind, rng)
    folder = save_checkpoint(model, tmp_path / "model", dtype="float32")
    result = convert(folder, tmp_path / "out", quantize="f32")
    assert any(f"limited to {TOP_K} of 512 tokens" in note for note in result.notes)
    assert any("indexer" in note and "left out" in note for note in result.notes)
    ids = rng.integers(3, VOCAB, 2 * TOP_K).tolist()
    with open_package(tmp_path / "out") as package:
        assert package.manifest.architecture.max_seq_len == TOP_K
        backend = CpuBackend(package, context=TOP_K)
        ours = scored(backend, ids[:TOP_K])
        assert relative_error(ours, transformers_logits(model, ids[:TOP_K])) <= CPU
        assert context_of(package, TOP_K) == context_of(package, None) == TOP_K
        with pytest.raises(UsageError, match=f"1 to {TOP_K}"):
            context_of(package, TOP_K + 1)
    # Beyond it the selection matters, so full attention would be wrong.
    longer = transformers_logits(model, ids)
    path = tmp_path / "model/config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"index_topk": 512}),
        encoding="utf-8",
    )
    convert(folder, tmp_path / "full", quantize="f32")
    with open_package(tmp_path / "full") as package:
        wrong = scored(CpuBackend(package, context=2 * TOP_K), ids)
    assert relative_error(wrong[:TOP_K], longer[:TOP_K]) <= CPU < relative_error(wrong, longer)


def test_contradicting_statements_of_dense_layers_are_refused(tmp_path, rng):
    folder = save_checkpoint(made("deepseek_v32", rng), tmp_path / "model", dtype="float32")
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    convert(folder, tmp_path / "out", dry_run=True)
    path.write_text(json.dumps(config | {"first_k_dense_replace": 2}), encoding="utf-8")
    with pytest.raises(SourceError, match="first_k_dense_replace"):
        convert(folder, tmp_path / "out", dry_run=True)
    path.write_text(
        json.dumps(config | {"layer_types": ["sliding_attention"] * 2}), encoding="utf-8"
    )
    with pytest.raises(SourceError, match="layer_types"):
        convert(folder, tmp_path / "out", dry_run=True)
