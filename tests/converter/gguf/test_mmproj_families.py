"""Vision towers of Gemma 3, Gemma 4 and Idefics 3 in GGUF files of their own, written and read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_converter.gguf.file import read_gguf
from rdrr_format.errors import ConversionError, SourceError
from rdrr_manifests.package import Package, open_package, validate
from safetensors.numpy import load_file
from support.checkpoints import VOCAB, make_multimodal, write_tokenizer
from support.gemma_images import make_gemma4
from support.gguf_entries import rewritten
from support.seeds import generator_of

F32: dict[str, Any] = {"quantize": "f32", "vision_quantize": "f32"}
LAYERS = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
ENDINGS = (".weight", ".bias", ".input_min", ".input_max", ".output_min", ".output_max")


def make_gemma3(rng: np.random.Generator) -> Any:
    """Build a Gemma 3 whose gains are sums with 1 that float32 holds, as published ones are."""
    model = make_multimodal("gemma3", rng, {"image_size": 56, "num_hidden_layers": 2})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and "vision_tower" not in name:
                parameter.copy_((parameter * 128).round() / 128 + 0.0)  # no -0
    return model


@dataclass(frozen=True)
class Kind:
    """A kind of tower.

    Attributes:
        make: Builds a random model.
        settings: Settings of its image processor.
        metadata: What its file must state, without `clip.vision.`.
        beginnings: What published names begin with, and what gguf-py's table has in place of it.
    """

    make: Callable[[np.random.Generator], Any]
    settings: dict[str, Any]
    metadata: dict[str, Any]
    projector: str
    beginnings: dict[str, str]


def gemma4(tower: dict[str, Any], **text: Any) -> Callable[[np.random.Generator], Any]:
    sizes = {**LAYERS, "sliding_window": 12, "global_head_dim": 64, **text}
    return lambda rng: make_gemma4(rng, tower, **sizes)


SEEN_WHOLE = {"use_bidirectional_attention": "vision"}
GEMMA4 = {
    "settings": {"image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": 70},
    "metadata": {
        "image_mean": [0, 0, 0],
        "image_std": [1, 1, 1],
        "image_max_pixels": 70 * 48**2,
        "patch_size": 16,
    },
    "projector": "gemma4v",
    "beginnings": {
        "model.vision_tower.encoder.": "vision_model.model.",
        "model.vision_tower.": "model.vision_tower.",
        "model.embed_vision.": "model.embed_vision.",
    },
}
KINDS = {
    "gemma3": Kind(
        make_gemma3,
        {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 56, "width": 56}},
        {"image_size": 56, "projector.scale_factor": 2, "image_mean": [0.5] * 3},
        "gemma3",
        {
            "vision_tower.": "vision_tower.vision_model.",
            "multi_modal_projector.": "multi_modal_projector.",
        },
    ),
    "gemma4": Kind(gemma4({}, **SEEN_WHOLE), **GEMMA4),
    "gemma4 with limits": Kind(gemma4({"use_clipped_linears": True}, **SEEN_WHOLE), **GEMMA4),
    "idefics3": Kind(
        lambda rng: make_multimodal(
            "smolvlm", rng, {"image_size": 56, "num_hidden_layers": 2}, model_type="llama"
        ),
        {
            "image_processor_type": "SmolVLMImageProcessor",
            "size": {"longest_edge": 160},
            "max_image_size": {"longest_edge": 56},
        },
        {"image_size": 56, "projector.scale_factor": 2, "preproc_image_size": 160},
        "idefics3",
        {"model.vision_model.": "model.vision_model.", "model.connector.": "model.connector."},
    ),
}


def write_package(folder: Path, kind: Kind, rng: np.random.Generator, **options: Any) -> None:
    """Write a checkpoint and its package."""
    kind.make(rng).save_pretrained(folder / "model")
    write_tokenizer(folder / "model")
    path = folder / "model/preprocessor_config.json"
    path.write_text(json.dumps(kind.settings), encoding="utf-8")
    convert(folder / "model", folder / "package", **{**F32, **options})


@pytest.fixture(scope="module", params=KINDS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a checkpoint, its package, and the two files of its export."""
    folder = tmp_path_factory.mktemp("mmproj") / request.param
    write_package(folder, KINDS[request.param], generator_of(request))
    export(folder / "package", folder / "m.gguf", mmproj=folder / "mmproj.gguf")
    return folder


def contents(path: Path) -> tuple[dict[str, bytes], Package]:
    assert validate(path, deep=True).faults == ()
    package = open_package(path)
    return {name: package.read(name).tobytes() for name in package.manifest.tensors}, package


def test_a_round_trip_keeps_every_byte_of_tower_and_text_and_the_recipe_of_images(files, tmp_path):
    result = convert(files / "m.gguf", tmp_path / "out", mmproj=files / "mmproj.gguf", **F32)
    assert not any("vision" in note for note in result.notes)
    first, before = contents(files / "package")
    second, after = contents(tmp_path / "out")
    assert second == first
    assert after.manifest.vision == before.manifest.vision
    assert after.manifest.processor == before.manifest.processor
    assert after.graph == before.graph


def named_by_gguf(kind: Kind, name: str) -> str | None:
    """Return the name that gguf-py's table has for a published one; None for other parts."""
    names = gguf.TensorNameMap(gguf.MODEL_ARCH.MMPROJ, 2)
    for beginning, theirs in kind.beginnings.items():
        if name.startswith(beginning) and ".head." not in name:
            stem = theirs + name.removeprefix(beginning).replace(".linear.", ".")
            if stem.endswith("position_embedding_table"):
                stem += ".weight"
            return names.get_name(stem.replace("_weight", ".weight"), try_suffixes=ENDINGS)
    return None


def in_form_of_llama_cpp(kind: Kind, name: str, values: np.ndarray) -> np.ndarray:
    """Return the values of a published tensor as llama.cpp's converter stores them."""
    if name == "mm.soft_emb_norm.weight":
        return values + 1
    if name == "v.patch_embd.weight" and kind.projector == "gemma4v":
        return values.reshape(-1, 16, 16, 3).transpose(0, 3, 1, 2)
    return values.reshape(1) if values.ndim == 0 else values


def test_names_and_values_are_those_of_gguf_py_and_of_the_checkpoint(files):
    kind = KINDS[files.name]
    written = {t.name: t.data for t in gguf.GGUFReader(files / "mmproj.gguf").tensors}
    state = load_file(files / "model/model.safetensors")
    expected = {
        theirs: in_form_of_llama_cpp(kind, theirs, values)
        for name, values in state.items()
        if (theirs := named_by_gguf(kind, name)) is not None
    }
    assert set(written) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(written[name], values, err_msg=name)


def test_the_metadata_has_the_keys_that_llama_cpp_reads(files):
    kind, stated = KINDS[files.name], read_gguf(files / "mmproj.gguf").metadata
    is_nested = kind.projector == "gemma4v"
    key = gguf.Keys.ClipVision.PROJECTOR_TYPE if is_nested else gguf.Keys.Clip.PROJECTOR_TYPE
    assert stated[key] == getattr(gguf.VisionProjectorType, kind.projector.upper())
    assert stated[gguf.Keys.Clip.HAS_VISION_ENCODER] is True
    assert stated[gguf.Keys.ClipVision.USE_GELU] is True
    for name, value in kind.metadata.items():
        assert stated[f"clip.vision.{name}"] == value, name
    assert stated[gguf.Keys.ClipVision.PROJECTION_DIM] == 64
    assert "clip.vision.image_size" in stated


def test_a_transposed_matrix_of_blocks_is_decoded_and_said(request, tmp_path):
    write_package(tmp_path, KINDS["gemma3"], generator_of(request), vision_quantize="q8_0")
    result = export(tmp_path / "package", tmp_path / "m.gguf", mmproj=tmp_path / "mmproj.gguf")
    types = {tensor.name: (tensor.dtype, tensor.why) for tensor in result.tensors}
    assert types["mm.input_projection.weight"] == ("F16", "Q8_0 blocks cannot be transposed")
    assert types["v.blk.0.attn_q.weight"] == ("Q8_0", "")
    convert(tmp_path / "m.gguf", tmp_path / "again", mmproj=tmp_path / "mmproj.gguf")
    assert validate(tmp_path / "again", deep=True).faults == ()


@pytest.mark.parametrize("quantize", [pytest.param("f16", marks=pytest.mark.thorough), "q8_0"])
def test_rows_of_heads_are_put_in_llama_cpps_order_whatever_their_type(request, tmp_path, quantize):
    write_package(tmp_path, KINDS["gemma4"], generator_of(request), vision_quantize=quantize)
    export(tmp_path / "package", tmp_path / "m.gguf", mmproj=tmp_path / "mmproj.gguf")
    convert(
        tmp_path / "m.gguf",
        tmp_path / "again",
        quantize="f32",
        vision_quantize=quantize,
        mmproj=tmp_path / "mmproj.gguf",
    )
    first, second = contents(tmp_path / "package")[0], contents(tmp_path / "again")[0]
    heads = [name for name in first if "visual." in name and "self_attn" in name]
    assert heads
    assert {name: second[name] for name in heads} == {name: first[name] for name in heads}


def test_a_recipe_of_images_without_a_key_in_llama_cpp_is_not_written(request, tmp_path):
    kind = KINDS["gemma3"]
    other = Kind(kind.make, {**kind.settings, "resample": 3}, {}, kind.projector, {})
    write_package(tmp_path, other, generator_of(request))
    with pytest.raises(ConversionError, match="cannot write the vision tower"):
        export(tmp_path / "package", tmp_path / "m.gguf", mmproj=tmp_path / "mmproj.gguf")
    assert not list(tmp_path.glob("*.gguf"))


@pytest.mark.parametrize("has_inputs", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_layers_with_inputs_of_their_own_do_not_see_whole_images(request, tmp_path, has_inputs):
    inputs = {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCAB}
    text = inputs if has_inputs else SEEN_WHOLE
    write_package(tmp_path, Kind(gemma4({}, **text), **GEMMA4), generator_of(request))
    export(tmp_path / "package", tmp_path / "m.gguf", mmproj=tmp_path / "mmproj.gguf")
    convert(tmp_path / "m.gguf", tmp_path / "again", mmproj=tmp_path / "mmproj.gguf", **F32)
    vision = open_package(tmp_path / "again").manifest.vision
    assert vision.seen_whole == (None if has_inputs else "sliding")
    assert vision == open_package(tmp_path / "package").manifest.vision


def test_tensors_of_an_audio_tower_are_left_out_and_the_note_says_so(files, tmp_path):
    def with_sound(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
        metadata |= {"clip.has_audio_encoder": True, "clip.audio.block_count": 1}
        tensors |= {name: np.ones(4, np.float32) for name in ("a.blk.0.ln1.weight", "mm.a.fc.bias")}

    path = rewritten(files / "mmproj.gguf", with_sound, tmp_path / "mmproj.gguf")
    result = convert(files / "m.gguf", tmp_path / "out", mmproj=path, **F32)
    assert [note for note in result.notes if "2 tensors of an audio tower are left out" in note]
    assert contents(tmp_path / "out")[0] == contents(files / "package")[0]


def without(name: str) -> Callable[..., None]:
    return lambda _, tensors: tensors.pop(name)


def stating(key: str, value: object) -> Callable[..., None]:
    return lambda metadata, _: metadata.update({key: value})


def shaped(name: str, shape: tuple[int, ...]) -> Callable[..., None]:
    return lambda _, tensors: tensors.update({name: np.ones(shape, np.float32)})


FAULTS: dict[str, list[tuple[Callable[..., None], str]]] = {
    "gemma3": [
        (stating("clip.projector_type", "idefics3"), "not a vision tower that"),
        (stating("clip.vision.projector.scale_factor", 3), "whole tokens"),
        (stating("clip.vision.projector.scale_factor", 0), "impossible size"),
        (stating("clip.use_gelu", False), "activation of the vision tower"),
        (without("mm.soft_emb_norm.weight"), "a tensor is missing"),
        (shaped("mm.extra.weight", (4,)), "is unknown"),
        (shaped("v.patch_embd.weight.1", (32, 3, 14, 14)), "one kernel for each frame"),
    ],
    "idefics3": [
        (stating("clip.vision.preproc_image_size", -1), "cannot be used"),
        (shaped("mm.model.fc.weight", (64, 64)), "wrong shape"),
    ],
    "gemma4": [
        (shaped("v.position_embd.weight", (48, 32)), "impossible shape"),
        (without("v.std_scale"), "a tensor is missing"),
        (shaped("v.blk.0.attn_q.middle", (1,)), "is unknown"),
        (shaped("v.blk.0.ln1.bias", (32,)), "is unknown"),
    ],
    "gemma4 with limits": [
        (shaped("v.blk.0.ffn_up.input_min", (2,)), "wrong shape"),
        (without("v.blk.0.ffn_up.input_max"), "a tensor is missing"),
        (without("v.blk.0.attn_q.input_min"), "a tensor is missing"),
        (shaped("v.std_bias.input_min", (1,)), "is unknown"),
    ],
}


def test_a_damaged_tower_is_refused_by_name(files, tmp_path):
    # A case for each fault would make the files for each.
    for number, (change, why) in enumerate(FAULTS[files.name]):
        path = rewritten(files / "mmproj.gguf", change, tmp_path / f"mmproj{number}.gguf")
        with pytest.raises((SourceError, ConversionError), match=why):
            convert(files / "m.gguf", tmp_path / "out", mmproj=path, dry_run=True, **F32)
