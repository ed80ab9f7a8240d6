"""Text models inside multimodal checkpoints, and checkpoints whose tensors decide what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.output.report import ConversionResult
from rdrr_format.errors import ConversionError, SourceError
from rdrr_manifests.package import open_package, validate
from rdrr_runtime.reference.backend import CpuBackend
from safetensors.numpy import load_file, save_file
from support.checkpoints import (
    make_checkpoint,
    make_model,
    make_multimodal,
    save_checkpoint,
    write_tokenizer,
)
from support.comparison import relative_error, scored, transformers_logits
from support.routes import decided_ids
from support.tiny_models import MINISTRAL3_ROPE, MORE_MODELS, VOCAB, TinyModel

CPU = 1e-4
TOKENS = 60  # longer than the sliding windows of 24
LINEAR = {"rope_type": "linear", "factor": 8.0}
SECTIONS = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [8, 4, 4]}
QWEN2 = {"head_dim": 16, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
GEMMA = {"sliding_window": 24, "sliding_window_pattern": 2, "rope_scaling": LINEAR}
HALF = {"rope_type": "default", "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}
EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
SIGMOIDS = {
    **EXPERTS,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "topk_group": 1,
}
LATENTS = {
    "head_dim": 16,
    "kv_lora_rank": 24,
    "num_key_value_heads": 4,
    "q_lora_rank": 40,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
OLDER = ("language_model.model.", "model.language_model.")
PUBLISHED = ("model.language_model.", "language_model.model.")
"""Prefixes of a text model's tensors, as transformers saves them and as others do."""

MULTIMODAL = (
    ("qwen2_5_vl", QWEN2, ("model.", "model.language_model.")),
    ("gemma3", GEMMA, ("language_model.model.", "model.language_model.")),
    ("mistral3", {"model_type": "mistral"}, ("language_model.model.", "model.language_model.")),
    ("qwen3_vl", {"rope_scaling": SECTIONS}, PUBLISHED),
    ("smolvlm", {"model_type": "llama"}, ("model.text_model.", "model.language_model.")),
    ("paligemma", {"model_type": "gemma2"}, OLDER),
    ("glm4v", {"head_dim": 16, "rope_parameters": HALF}, PUBLISHED),
    ("gemma4", {"sliding_window": 24, "hidden_size_per_layer_input": 8}, PUBLISHED),
)
FURTHER = (
    ("aya_vision", {"model_type": "cohere2"}, OLDER),
    ("llava", {"model_type": "llama"}, OLDER),
    ("mistral3", {"model_type": "ministral3", "rope_parameters": MINISTRAL3_ROPE}, OLDER),
    ("qwen3_vl_moe", {"rope_scaling": SECTIONS, **EXPERTS, "num_experts": 4}, PUBLISHED),
    ("cohere2_vision", {"model_type": "cohere2"}, PUBLISHED),
    ("glm4v_moe", {"head_dim": 16, "rope_parameters": HALF, **SIGMOIDS}, PUBLISHED),
    ("idefics3", {"model_type": "llama"}, ("model.text_model.", "model.language_model.")),
    ("internvl", {"model_type": "qwen3"}, OLDER),
    ("kimi_k25", {"model_type": "deepseek_v3", **LATENTS, **SIGMOIDS}, OLDER),
    ("lfm2_vl", {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}, PUBLISHED),
    ("lfm3_vl", {"model_type": "lfm3", "layer_types": ["conv", "full_attention"]}, PUBLISHED),
    ("llava_next", {"model_type": "granite", "logits_scaling": 4.0}, OLDER),
    ("llava_onevision", {"model_type": "qwen2"}, OLDER),
)
"""Wrappers that differ from the others in their rows only."""

WRAPPED = [
    *(pytest.param(*row, id=row[0]) for row in MULTIMODAL),
    *(pytest.param(*row, id=row[0], marks=pytest.mark.thorough) for row in FURTHER),
]


def edit_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8"
    )


def renamed(folder: Path, old: str, new: str) -> None:
    """Rewrite a checkpoint with another prefix of the text model's tensors."""
    path = folder / "model.safetensors"
    state = load_file(path)
    assert any(name.startswith(old) for name in state)
    save_file({name.replace(old, new, 1): values for name, values in state.items()}, path)


def names_in(result: ConversionResult) -> set[str]:
    return {tensor.name for tensor in result.tensors}


def logits_error(folder: Path, model: Any, rng: np.random.Generator) -> float:
    """Return the error of the logits of a package, which must be valid, after random ids."""
    assert validate(folder, deep=True).faults == ()
    with open_package(folder) as package:
        ids = decided_ids(package, rng, TOKENS)
        ours = scored(CpuBackend(package, context=64), ids)
    return relative_error(ours, transformers_logits(model, ids))


@pytest.mark.parametrize(("kind", "text", "prefixes"), WRAPPED)
def test_the_text_model_is_converted_and_computes_the_same_as_transformers(
    tmp_path, rng, kind, text, prefixes
):
    model = make_multimodal(kind, rng, **text)
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    write_tokenizer(folder)
    if kind == "kimi_k25":  # transformers saves the layers as it does those of the tower
        renamed(folder, "language_model.model.blocks.", "language_model.model.layers.")
    result = convert(folder, tmp_path / "out", quantize="f32", without_vision=True)
    (note,) = [note for note in result.notes if "left out" in note]
    assert "not part of the text model" in note
    assert any("vis" in name for name in load_file(folder / "model.safetensors"))
    assert not any("vis" in tensor.name for tensor in result.tensors)
    assert logits_error(tmp_path / "out", model, rng) <= CPU
    renamed(folder, *prefixes)
    convert(folder, tmp_path / "other", quantize="f32", without_vision=True)
    for name in ("manifest.json", "shard_00000.bin"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_an_older_configuration_of_gemma_3_4b_is_read_alike(tmp_path, rng):
    """The published file omits defaults and has the scaling of global layers in `rope_scaling`."""
    folder = tmp_path / "model"
    make_multimodal("gemma3", rng, **GEMMA).save_pretrained(folder)
    write_tokenizer(folder)
    convert(folder, tmp_path / "newer")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    newer = config["text_config"]
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "sliding_window", "head_dim")
    keys += ("num_attention_heads", "num_key_value_heads", "vocab_size", "max_position_embeddings")
    older = {key: newer[key] for key in (*keys, "sliding_window_pattern", "eos_token_id")}
    config["text_config"] = {**older, "rope_scaling": LINEAR}
    del config["tie_word_embeddings"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    convert(folder, tmp_path / "older")
    texts = [
        (tmp_path / name / "manifest.json").read_text(encoding="utf-8")
        for name in ("newer", "older")
    ]
    assert texts[0] == texts[1]
    rope = json.loads(texts[0])["inference"]["rope"]
    assert (rope["ropeScalingType"], rope["ropeScalingFactor"]) == ("linear", 8.0)
    assert rope["ropeLocalScalingType"] is None


def test_the_eos_token_may_be_stated_in_the_text_configuration_only(tmp_path, rng):
    folder = tmp_path / "model"
    make_multimodal("gemma3", rng, **GEMMA).save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert "eos_token_id" not in config
    convert(folder, tmp_path / "out")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text(encoding="utf-8"))
    assert manifest["eos_token_id"] == config["text_config"]["eos_token_id"] == 2


def test_vision_tensors_of_a_text_architecture_are_still_an_error(tmp_path, rng):
    folder = tmp_path / "model"
    make_multimodal("qwen3_vl", rng).save_pretrained(folder)
    renamed(folder, "model.language_model.", "model.")
    convert(folder, tmp_path / "control", dry_run=True)
    with pytest.raises(SourceError, match=r"unexpected.*model\.visual"):
        convert(folder, tmp_path / "out", arch="qwen3")


def test_a_head_inside_the_text_model_is_found_and_its_values_decide_whether_it_is_tied(
    tmp_path, rng
):
    """In the older form the head has a prefix too, and may be a copy of the embedding."""
    folder = tmp_path / "model"
    make_multimodal("qwen3_vl", rng).save_pretrained(folder)
    write_tokenizer(folder)
    renamed(folder, "model.language_model.", "language_model.model.")
    renamed(folder, "lm_head.", "language_model.lm_head.")
    assert "lm_head.weight" in names_in(convert(folder, tmp_path / "own"))
    path = folder / "model.safetensors"
    state = load_file(path)
    state["language_model.lm_head.weight"] = state["language_model.model.embed_tokens.weight"]
    save_file(state, path)
    edit_config(folder, tie_word_embeddings=True)
    result = convert(folder, tmp_path / "same")
    assert "lm_head.weight" not in names_in(result)
    assert any("stored once" in note for note in result.notes)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_the_tensors_decide_which_qwen_a_wedlm_is(tmp_path, rng, kind):
    tiny = TinyModel(kind, 64, (("intermediate_size", 96), ("head_dim", 32)))
    model = make_model(tiny, rng, num_hidden_layers=2)
    folder = save_checkpoint(model, tmp_path / "model", dtype="float32")
    named = {"architectures": ["WeDLMForCausalLM"], "model_type": "wedlm"}
    edit_config(folder, **named, mask_token_id=5)
    result = convert(folder, tmp_path / "out", quantize="f32")
    assert result.notes == ()
    manifest = json.loads((tmp_path / "out/manifest.json").read_text(encoding="utf-8"))
    assert manifest["mask_token_id"] == 5
    attention = manifest["inference"]["attention"]
    assert attention["queryKeyNorm"] == (kind == "qwen3")
    assert attention["attentionBias"] == (kind == "qwen2")
    assert logits_error(tmp_path / "out", model, rng) <= CPU


def test_a_default_mask_token_is_mentioned_in_a_note(tmp_path, rng):
    tiny = TinyModel("qwen3", 64, (("vocab_size", 384),))
    folder = make_checkpoint(tiny, tmp_path / "model", rng, num_hidden_layers=1)
    edit_config(folder, architectures=["WeDLMForCausalLM"], model_type="wedlm")
    result = convert(folder, tmp_path / "out", dry_run=True)
    assert any("151665 is assumed" in note for note in result.notes)
    edit_config(folder, mask_token_id="5")
    with pytest.raises(SourceError, match="mask_token_id"):
        convert(folder, tmp_path / "out", dry_run=True)


def test_yarn_extends_the_original_context_length(tmp_path, rng):
    """YaRN is switched on as the model cards of Qwen 2.5 and 3 describe."""
    tiny = TinyModel("qwen3", 64, (("head_dim", 32), ("max_position_embeddings", 64)))
    model = make_model(
        tiny,
        rng,
        num_hidden_layers=2,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    )
    folder = save_checkpoint(model, tmp_path / "model", dtype="float32")
    convert(folder, tmp_path / "out", quantize="f32")
    with open_package(tmp_path / "out") as package:
        assert package.manifest.architecture.max_seq_len == 256
        ids = rng.integers(3, VOCAB, 200).tolist()
        ours = scored(CpuBackend(package, context=256), ids)
    assert relative_error(ours, transformers_logits(model, ids)) <= CPU


def test_sarvam_is_a_deepseek_whose_keys_have_other_names(tmp_path, rng):
    options = {**LATENTS, **SIGMOIDS, "n_routed_experts": 8, "n_group": 2, "q_lora_rank": None}
    yarn = {"factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    yarn |= {"original_max_position_embeddings": 64, "rope_theta": 10000.0}
    tiny = TinyModel("deepseek_v3", 64, (*options.items(), ("rope_parameters", None)))
    model = make_model(
        tiny, rng, num_hidden_layers=2, rope_parameters={**yarn, "rope_type": "yarn"}
    )
    folder = save_checkpoint(model, tmp_path / "model", dtype="float32")
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for theirs, ours in (("n_routed_experts", "num_experts"), ("n_shared_experts", None)):
        config[ours or "num_shared_experts"] = config.pop(theirs)
    named = {"architectures": ["SarvamMLAForCausalLM"], "model_type": "sarvam_mla"}
    # The size of what is cached for a token, and sizes that the tensors say too.
    more = {"head_dim": 40, "q_head_dim": 32, "moe_shared_expert_intermediate_size": 32}
    del config["rope_parameters"]
    rope = {"rope_theta": 10000.0, "rope_scaling": {**yarn, "type": "deepseek_yarn"}}
    path.write_text(json.dumps(config | named | more | rope), encoding="utf-8")
    convert(folder, tmp_path / "out", quantize="f32")
    assert logits_error(tmp_path / "out", model, rng) <= CPU


def test_minimax_may_state_the_width_of_dense_layers_that_it_lacks(tmp_path, rng):
    tiny = next(one for one in MORE_MODELS if one.model_type == "minimax_m2")
    folder = make_checkpoint(tiny, tmp_path / "model", rng, num_hidden_layers=1)
    edit_config(folder, mlp_intermediate_size=8192)
    convert(folder, tmp_path / "out", dry_run=True)
    edit_config(folder, mlp_intermediate=8192)
    with pytest.raises(ConversionError, match="mlp_intermediate"):
        convert(folder, tmp_path / "out", dry_run=True)
