"""An adapter's tokenizer, chat template and grown vocabulary are those of the package."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import rdrr
from rdrr_converter.lora import merge_adapter
from rdrr_converter.sources import open_source
from rdrr_converter.tokenizer.adapter import with_adapter_tokenizer
from safetensors.numpy import load_file, save_file
from support import tiny_tokenizers as tiny
from support.gguf_files import write_gguf
from support.scripted_models import HEAD, write_scripted

END, GROWN = 2, 4


@pytest.fixture
def base(tmp_path) -> Path:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "of the base"}
    named = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False}
    files = {"tokenizer_config": settings | named}
    return write_scripted(tmp_path / "base", tiny.byte_level(), [5, 6], end=END, **files)


def adapter(folder: Path, base: Path, *, grown: int = 0, **files) -> Path:
    """Write an adapter of the query projection, and of an embedding and a head with more rows."""
    tensors = load_file(base / "model.safetensors")
    hidden = tensors["model.norm.weight"].size
    prefix, module = "base_model.model.", "model.layers.0.self_attn.q_proj"
    parts = {
        f"{prefix}{module}.lora_A.weight": np.zeros((2, hidden), np.float32),
        f"{prefix}{module}.lora_B.weight": np.zeros((HEAD, 2), np.float32),
    }
    for name in ("model.embed_tokens.weight", "lm_head.weight") if grown else ():
        more = np.full((grown, hidden), 0.5, np.float32)
        parts[prefix + name] = np.concatenate([tensors[name], more])
    folder.mkdir()
    save_file(parts, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]}
    for name, value in {"adapter_config.json": config, **files}.items():
        (folder / name).write_text(
            value if isinstance(value, str) else json.dumps(value), encoding="utf-8"
        )
    return folder


def test_a_grown_vocabulary_is_converted_with_its_tokenizer(tmp_path, base):
    tokenizer = tiny.byte_level()
    rows = load_file(base / "model.safetensors")["lm_head.weight"].shape[0]
    tokenizer["added_tokens"].append(tiny.added("<new>", len(tokenizer["model"]["vocab"])))
    folder = adapter(tmp_path / "lora", base, grown=GROWN, **{"tokenizer.json": tokenizer})
    rdrr.convert(base, tmp_path / "package", quantize="f32", lora=folder)
    with rdrr.load(tmp_path / "package", backend="cpu") as model:
        assert model.package.manifest.architecture.vocab_size == rows + GROWN
        assert model.encode("<new>") == [len(tokenizer["model"]["vocab"])]
        logits = model.logits([rows + GROWN - 1])[0]
    # The norm makes the new row one of ones, of which the new rows of the head take half the sum.
    assert logits[rows:].tolist() == pytest.approx([rows / 2] * GROWN, rel=1e-4)


def test_tokens_that_only_an_adapters_settings_state_are_those_of_a_gguf_too(tmp_path, base):
    new = len(tiny.byte_level()["model"]["vocab"])
    stated = {"added_tokens_decoder": {str(new): tiny.added("<new>", new)}}
    files = {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", **stated}}
    folder = adapter(tmp_path / "lora", base, grown=GROWN, **files)
    plain = adapter(tmp_path / "plain", base)
    gguf = write_gguf(base, tmp_path / "base.gguf")
    for lora, ids in ((folder, [new]), (plain, None)):
        package = tmp_path / f"{lora.name}-package"
        rdrr.convert(gguf, package, quantize="f32", lora=lora)
        with rdrr.load(package, backend="cpu") as model:
            assert model.chat_template().source == "of the base"
            tokens = model.encode_as_is("<new>")
            assert tokens == ids if ids else len(tokens) > 1


def test_an_embedding_with_the_same_rows_leaves_the_configuration(tmp_path, base):
    source = open_source(base)
    folder = adapter(tmp_path / "lora", base)
    assert merge_adapter(source, folder).config == source.config


def test_a_grown_text_model_of_a_wrapper_is_resized_where_it_states_its_size(tmp_path, base):
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    nested = {"model_type": "x", "text_config": config}
    (base / "config.json").write_text(json.dumps(nested), encoding="utf-8")
    folder = adapter(tmp_path / "lora", base, grown=GROWN)
    resized = merge_adapter(open_source(base), folder).config
    assert resized["text_config"] == config | {"vocab_size": config["vocab_size"] + GROWN}


def templates(base, folder):
    source = with_adapter_tokenizer(open_source(base), folder)
    settings = json.loads(source.content("tokenizer_config.json") or b"{}")
    return source.content("chat_template.jinja"), settings.get("chat_template")


@pytest.mark.parametrize(
    ("files", "right"),
    [
        pytest.param({}, (None, "of the base"), id="no files"),
        pytest.param(
            {"chat_template.jinja": "new"}, (b"new", "of the base"), id="a template, read first"
        ),
        pytest.param({"tokenizer_config.json": {}}, (None, "of the base"), id="empty settings"),
        pytest.param(
            {"tokenizer_config.json": {"eos_token": "</s>"}}, (None, "of the base"), id="settings"
        ),
        pytest.param({"tokenizer_config.json": {"chat_template": "new"}}, (None, "new"), id="both"),
    ],
)
def test_the_templates_are_the_adapters_if_it_has_any(tmp_path, base, files, right):
    folder = adapter(tmp_path / "lora", base, **files)
    assert templates(base, folder) == right


def test_a_template_of_the_adapters_settings_replaces_files_of_the_base(tmp_path, base):
    (base / "chat_template.jinja").write_text("older", encoding="utf-8")
    (base / "additional_chat_templates").mkdir()
    (base / "additional_chat_templates" / "rag.jinja").write_text("older", encoding="utf-8")
    files = {"tokenizer_config.json": {"chat_template": "new"}}
    rdrr.convert(
        base,
        tmp_path / "package",
        quantize="f32",
        lora=adapter(tmp_path / "lora", base, **files),
    )
    with rdrr.load(tmp_path / "package", backend="cpu") as model:
        assert model.chat_template().source == "new"


def test_an_adapter_without_files_of_a_tokenizer_changes_none(tmp_path, base):
    source = open_source(base)
    assert with_adapter_tokenizer(source, adapter(tmp_path / "lora", base)) is source
