"""`rdrr export`: transformers computes the same from the checkpoints; output of the command."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_format.errors import UsageError
from rdrr_manifests.package import open_package
from support.checkpoints import make_model, save_checkpoint
from support.commands import error_line, rdrr
from support.comparison import load_stored_weights, relative_error, transformers_logits
from support.tiny_models import ALL_MODELS, COVERING, TinyModel, covering

IDS = [int(id_) for id_ in np.random.default_rng(0).integers(3, 300, 80)]

# From a GGUF, transformers reads neither the head dimension of Qwen 3 nor the attention scale of
# Gemma 3: it assumes those of the published models.
THEIRS = (
    TinyModel("llama"),
    TinyModel("qwen3", 256, (("head_dim", 128), ("tie_word_embeddings", True))),
    TinyModel("gemma3_text", 256, (("head_dim", 256), ("query_pre_attn_scalar", 256))),
)


def made(tmp_path, rng, tiny, **options):
    """Return a model with the weights of its package, and the package."""
    model = make_model(tiny, rng, num_hidden_layers=2)
    save_checkpoint(model, tmp_path / "source", dtype="float32")
    convert(tmp_path / "source", tmp_path / "package", **options)
    load_stored_weights(model, open_package(tmp_path / "package"))
    return model, tmp_path / "package"


def loaded(folder, **options):
    """Load the model; fail unless the checkpoint has exactly the tensors of its configuration."""
    import torch
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, **options
    )
    assert not any(info.values()), info
    return model.eval()


ELSEWHERE = {"lfm2_moe", "lfm3", "qwen3_next"}
"""test_hybrids.py tests these, whose stacks and gates `load_stored_weights` does not make."""

EXPORTED = [tiny for tiny in ALL_MODELS if tiny.model_type not in ELSEWHERE]


@pytest.mark.parametrize("tiny", covering(EXPORTED, COVERING[3:10]))
def test_transformers_loads_the_directory_and_computes_the_same(tmp_path, rng, tiny):
    fused = {"transpose_weights": True, "fuse_gate_up": tiny.can_fuse}
    model, package = made(tmp_path, rng, tiny, **fused)
    export(package, tmp_path / "out", lossless=True)
    wanted = transformers_logits(model, IDS)
    assert relative_error(transformers_logits(loaded(tmp_path / "out"), IDS), wanted) < 1e-6
    assert np.isfinite(wanted).all()


@pytest.mark.parametrize("tiny", covering(THEIRS, ("llama-256", "gemma3_text-256")))
def test_transformers_loads_the_gguf_and_computes_the_same(tmp_path, rng, tiny):
    model, package = made(tmp_path, rng, tiny)
    export(package, tmp_path / "out.gguf", to="gguf", lossless=True)
    wanted = transformers_logits(model, IDS)
    logits = transformers_logits(loaded(tmp_path, gguf_file="out.gguf"), IDS)
    assert relative_error(logits, wanted) < 1e-5


def test_a_single_file_of_safetensors_is_no_destination(tmp_path):
    with pytest.raises(UsageError, match=r"a folder of several files.*found .*out\.safetensors"):
        export(tmp_path / "package", tmp_path / "out.safetensors")


def test_the_command_prints_how_the_tensors_were_written(shallow_checkpoint, tmp_path):
    package = tmp_path / "package"
    assert rdrr("convert", shallow_checkpoint, package, "--quiet").code == 0
    done = rdrr("export", package, tmp_path / "half", code=0)
    assert "some values were rounded" in done.out
    result = rdrr("export", package, tmp_path / "m.gguf", "--to", "gguf", "--lossless", "--json")
    assert result.json()["lossless"] is True
    assert {tensor["dtype"] for tensor in result.json()["tensors"]} == {"F32", "Q4_K", "Q6_K"}
    rdrr("convert", tmp_path / "m.gguf", tmp_path / "again", "--quiet", code=0)
    result = rdrr("diff", package, tmp_path / "again", "--json").json()
    assert {tensor["verdict"] for tensor in result["tensors"]} == {"same bytes"}
    # The template's <|im_end|> also ends a turn, which the GGUF states and the checkpoint did not.
    assert [field_["field"] for field_ in result["fields"]] == ["eos_token_id", "modelId"]
    assert (
        json.loads((tmp_path / "half" / "config.json").read_text(encoding="utf-8"))["model_type"]
        == "llama"
    )


def test_a_refused_model_is_one_line_with_the_whole_command_that_goes_on(checkpoint, tmp_path):
    path = checkpoint / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {
        "model_type": "lamma",
        "architectures": ["LammaModel"],
    }
    path.write_text(json.dumps(config), encoding="utf-8")
    words = ("convert", checkpoint, tmp_path / "out", "--quantize", "q8_0")
    line = error_line(rdrr(*words))
    command = shlex.split(line.partition("to go on all the same, run: rdrr ")[2])
    assert command[: len(words)] == [str(word) for word in words]
    assert rdrr(*command, "--dry-run", "--quiet").code == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("out", "--dtype", "f16", "--to", "gguf"), 2, "--dtype is only for safetensors"),
        (("out", "--arch", "gpt17"), 2, "unknown architecture"),
        (("out", "--shard-size", "many"), 2, "not a size"),
        ((".",), 1, "exists already"),
    ],
)
def test_a_wrong_export_is_one_line(package, tmp_path, words, code, said):
    done = rdrr("export", package, tmp_path / words[0], *words[1:])
    assert done.code == code
    assert said in error_line(done)
    assert not (tmp_path / "out").exists()
