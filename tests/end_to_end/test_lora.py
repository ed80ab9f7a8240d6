"""LoRA adapters merged while converting, compared with PEFT applying them to the base model."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from rdrr_converter.convert import convert
from rdrr_manifests.package import open_package
from rdrr_runtime.reference.backend import CpuBackend
from support.checkpoints import make_model, save_checkpoint
from support.commands import rdrr
from support.comparison import relative_error, scored, transformers_logits
from support.gguf_files import write_gguf
from support.quantized_checkpoints import gptq, write_quantized
from support.tiny_models import OLDER_MODELS, TINY_MODELS, VOCAB
from transformers import AutoModelForCausalLM

CPU = 1e-4
MODELS = {tiny.model_type: tiny for tiny in TINY_MODELS[2:]} | {"llama": TINY_MODELS[0]}
LINEAR = ["q_proj", "v_proj", "down_proj", "gate_proj"]

CASES = {
    "linear": {"target_modules": LINEAR},
    "stabilized": {
        "target_modules": LINEAR,
        "use_rslora": True,
        "lora_alpha": 3,
        "rank_pattern": {"down_proj": 7, "layers.1.*v_proj": 2},
        "alpha_pattern": {"^model.layers.0.self_attn.q_proj": 11},
    },
    "embedding-and-head": {"target_modules": ["k_proj", "embed_tokens", "lm_head"]},
    "replaced": {
        "target_modules": ["o_proj"],
        "modules_to_save": ["norm", "lm_head", "up_proj"],
        "bias": "all",
    },
    "biases-of-targets": {"target_modules": ["q_proj"], "bias": "lora_only"},
    "added-biases": {"target_modules": ["q_proj", "v_proj"], "lora_bias": True},
    "dora": {"target_modules": LINEAR, "use_dora": True},
    "stays-tied": {
        "target_modules": ["q_proj"],
        "modules_to_save": ["embed_tokens"],
        "ensure_weight_tying": True,
    },
    "becomes-untied": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
}
TIED = ("stays-tied", "becomes-untied")


def adapted(model, options, folder, rng):
    """Return the model with an adapter of random values, after saving the adapter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuned = get_peft_model(model, LoraConfig(r=4, **options)).eval()
        with torch.no_grad():
            for name, value in tuned.named_parameters():
                if value.requires_grad:
                    noise = rng.standard_normal(tuple(value.shape), np.float32)
                    size = 0.2 if "lora_A" in name or "lora_B" in name else 0.02
                    value.add_(torch.from_numpy(size * noise).reshape(value.shape))
        tuned.save_pretrained(folder)
    return tuned


def ours(source, folder, ids, **options):
    convert(source, folder, quantize="f32", **options)
    return scored(CpuBackend(open_package(folder), context=64), ids)


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_peft(case, tmp_path, rng):
    layers = 2 if case == "stabilized" else 1
    settings = {"num_hidden_layers": layers, "tie_word_embeddings": case in TIED}
    model = make_model(MODELS["qwen2"], rng, **settings)
    base = save_checkpoint(model, tmp_path / "base", dtype="float32")
    ids = rng.integers(3, VOCAB, 40).tolist()
    before = transformers_logits(model, ids)
    tuned = adapted(model, CASES[case], tmp_path / "adapter", rng)
    reference = transformers_logits(tuned, ids)
    assert relative_error(before, reference) > 100 * CPU
    result = ours(base, tmp_path / "out", ids, lora=tmp_path / "adapter", fuse_gate_up=True)
    assert relative_error(result, reference) <= CPU
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert str(tmp_path) not in json.dumps(manifest)
    assert manifest["inference"]["output"]["tieWordEmbeddings"] is (case == "stays-tied")


OLDER_TARGETS = {
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "gpt_neox": ["query_key_value", "dense"],
    "phi": ["q_proj", "dense", "fc1"],
}


@pytest.mark.parametrize("name", OLDER_TARGETS)
def test_adapters_of_renamed_and_transposed_weights_are_merged(name, tmp_path, rng):
    tiny = next(one for one in OLDER_MODELS if one.model_type == name)
    model = make_model(tiny, rng, num_hidden_layers=1)
    base = save_checkpoint(model, tmp_path / "base", dtype="float32")
    ids = rng.integers(3, VOCAB, 40).tolist()
    before = transformers_logits(model, ids)
    options = {"target_modules": OLDER_TARGETS[name], "fan_in_fan_out": name == "gpt2"}
    tuned = adapted(model, options, tmp_path / "adapter", rng)
    reference = transformers_logits(tuned, ids)
    assert relative_error(before, reference) > 100 * CPU
    result = ours(base, tmp_path / "out", ids, lora=tmp_path / "adapter")
    assert relative_error(result, reference) <= CPU


@pytest.mark.parametrize("kind", ["gguf", "gptq", "half"])
def test_an_adapter_is_merged_into_any_kind_of_input(kind, tmp_path, rng):
    """A GGUF has its rows in another order, and a quantized base is dequantized first."""
    dtype = "float16" if kind == "half" else "float32"
    made = make_model(MODELS["llama"], rng, num_hidden_layers=1)
    base = save_checkpoint(made, tmp_path / "base", dtype=dtype)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    if kind == "gguf":
        base = write_gguf(base, tmp_path / "base.gguf", "F32")
    if kind == "gptq":
        base = quantized(model, base, tmp_path / "gptq", rng)
    ids = rng.integers(3, VOCAB, 40).tolist()
    tuned = adapted(model, {"target_modules": LINEAR}, tmp_path / "adapter", rng)
    reference = transformers_logits(tuned, ids)
    result = ours(base, tmp_path / "out", ids, lora=tmp_path / "adapter")
    assert relative_error(result, reference) <= CPU


def quantized(model, plain, folder, rng):
    tensors = {}
    for name, value in model.state_dict().items():
        if not name.endswith("_proj.weight"):
            tensors[name] = value
            continue
        parts, meaning = gptq()(value.numpy(), rng)
        tensors |= {
            f"{name.removesuffix('.weight')}.{part}": part_values
            for part, part_values in parts.items()
        }
        value.copy_(torch.from_numpy(meaning))
    config = json.loads((plain / "config.json").read_text(encoding="utf-8"))
    write_quantized(folder, config, tensors, {"quant_method": "gptq", "group_size": 64})
    (folder / "tokenizer.json").write_bytes((plain / "tokenizer.json").read_bytes())
    return folder


def test_the_command_says_what_was_merged_and_workers_do_not_change_the_bytes(tmp_path, rng):
    model = make_model(MODELS["llama"], rng, num_hidden_layers=1)
    base = save_checkpoint(model, tmp_path / "base")
    adapted(model.float(), {"target_modules": LINEAR}, tmp_path / "adapter", rng)
    contents = []
    for workers in ("1", "3"):
        done = rdrr("convert", base, tmp_path / workers, "--lora", tmp_path / "adapter",
                    "--workers", workers, "--model-id", "same", "--transpose-weights",
                    code=0)  # fmt: skip
        assert "LoRA adapter of rank 4: 4 tensors changed" in " ".join(done.out.split())
        contents.append((tmp_path / workers / "shard_00000.bin").read_bytes())
    assert contents[0] == contents[1]
    report = json.loads((tmp_path / "1" / "conversion-report.json").read_text(encoding="utf-8"))
    reasons = {tensor["name"]: tensor["why"] for tensor in report["tensors"]}
    assert reasons["model.layers.0.self_attn.q_proj.weight"].endswith("; LoRA merged")
    assert "LoRA" not in reasons["model.layers.0.self_attn.k_proj.weight"]
