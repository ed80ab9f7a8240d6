"""Vision towers are converted with their text models, and left out where they cannot be used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_format.errors import UsageError
from rdrr_manifests.models import Manifest
from rdrr_manifests.package import open_package, validate
from safetensors.numpy import load_file, save_file
from support.checkpoints import edit_vision, make_multimodal, write_tokenizer
from support.gemma_images import make_gemma4
from support.images import save_processor
from support.seeds import generator_of

SECTIONS = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [8, 4, 4]}
UNUSABLE = "the vision tower cannot be used, so it is not converted"


@pytest.fixture(scope="module")
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("qwen") / "model", generator_of(request)
    make_multimodal("qwen3_vl", rng, rope_scaling=SECTIONS).save_pretrained(folder)
    write_tokenizer(folder)
    save_processor(folder)
    return folder


def saved(folder: Path, model: Any, settings: dict[str, Any]) -> Path:
    """Write a checkpoint with a tokenizer and the settings of its image processor."""
    model.save_pretrained(folder)
    write_tokenizer(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def manifest_of(folder: Path) -> Manifest:
    assert validate(folder, deep=True).faults == ()
    return Manifest.model_validate_json((folder / "manifest.json").read_bytes())


def tower_types(manifest: Manifest) -> dict[str, str]:
    return {name: t.dtype for name, t in manifest.tensors.items() if t.group == "vision"}


def test_tower_and_text_are_one_package_with_the_recipe_of_images(checkpoint, tmp_path):
    result = convert(checkpoint, tmp_path / "out", quantize="q8_0")
    assert result.notes == ()
    manifest = manifest_of(tmp_path / "out")
    assert (manifest.vision.output_size, manifest.vision.taps) == (64, (0,))
    assert manifest.processor.merge_size == manifest.vision.merge_size == 2
    types = tower_types(manifest)
    assert types["visual.layers.0.self_attn.k_proj.weight"] == "F16"
    assert types["visual.taps.0.norm.weight"] == "F32"
    assert manifest.tensors["visual.patch_embed.weight"].shape == (32, 3 * 2 * 16 * 16)
    assert manifest.quantization == "Q8_0"
    assert manifest.quantization_info.vision == "f16"


def test_the_tower_has_a_precision_of_its_own(checkpoint, tmp_path):
    convert(checkpoint, tmp_path / "out", quantize="f16", vision_quantize="q8_0")
    manifest = manifest_of(tmp_path / "out")
    assert manifest.quantization == "F16"
    assert tower_types(manifest)["visual.merger.up_proj.weight"] == "Q8_0"
    assert manifest.conversion is not None
    assert dict(manifest.conversion)["options"]["visionQuantize"] == "q8_0"


def test_the_tower_can_be_left_out(checkpoint, tmp_path):
    result = convert(checkpoint, tmp_path / "out", quantize="f16", without_vision=True)
    manifest = manifest_of(tmp_path / "out")
    assert (manifest.vision, manifest.processor, tower_types(manifest)) == (None, None, {})
    (note,) = result.notes
    assert "not part of the text model" in note


def test_a_precision_of_a_tower_that_is_left_out_is_a_usage_error(checkpoint, tmp_path):
    with pytest.raises(UsageError, match="`without_vision` leaves out"):
        convert(checkpoint, tmp_path / "out", without_vision=True, vision_quantize="f16")


def without(part: str) -> Any:
    def change(folder: Path) -> None:
        state = load_file(folder / "model.safetensors")
        left = {name: values for name, values in state.items() if part not in name}
        assert len(left) < len(state)
        save_file(left, folder / "model.safetensors")

    return change


def stating(**values: Any) -> Any:
    return lambda folder: edit_vision(folder, **values)


@pytest.fixture(scope="module")
def tiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("smolvlm") / "model", generator_of(request)
    # `size` and the like stand in published towers, and are the image processor's.
    published = {"size": {"longest_edge": 56}, "use_base_siglip": False}
    settings = {
        "image_processor_type": "SmolVLMImageProcessor",
        "max_image_size": {"longest_edge": 28},
        "size": {"longest_edge": 56},
    }
    return saved(folder, make_multimodal("smolvlm", rng, published), settings)


def test_a_tower_with_the_body_of_siglip_is_a_package_with_its_text_model(tiled, tmp_path):
    result = convert(tiled, tmp_path / "out", quantize="q8_0")
    assert result.notes == ()
    manifest = manifest_of(tmp_path / "out")
    assert (manifest.vision.merger, manifest.vision.position_sampling) == ("linear", "nearest")
    assert (manifest.vision.output_size, manifest.vision.rope_theta) == (64, None)
    assert manifest.processor.patch_order == "merged"
    assert manifest.tensors["visual.merger.proj.weight"].shape == (64, 4 * 32)
    assert tower_types(manifest)["visual.layers.0.mlp.up_proj.weight"] == "F16"


@pytest.mark.parametrize(
    ("source", "change", "why"),
    [
        ("checkpoint", without("visual.merger.norm.weight"), "a tensor is missing"),
        ("checkpoint", without("attn.qkv.bias"), "a tensor is missing"),
        ("checkpoint", stating(hidden_size=40), "wrong shape"),
        ("checkpoint", stating(out_hidden_size=32), "the output size cannot be used"),
        ("checkpoint", stating(num_position_embeddings=2303), "the square of a number"),
        ("checkpoint", stating(depth=10**9), "the number of layers cannot be used"),
        ("checkpoint", stating(in_channels=4), "in_channels cannot be used"),
        ("checkpoint", stating(patch_size=[16, 16]), "patch_size cannot be used"),
        ("checkpoint", stating(deepstack_visual_indexes=[0, -1]), "a list of layers"),
        ("checkpoint", stating(hidden_act="relu2"), "activation"),
        ("checkpoint", stating(rope_parameters={"rope_type": "yarn"}), "rope_type axial"),
        ("checkpoint", stating(window_size=112), "unknown keys: window_size"),
        ("tiled", without("connector."), "a tensor is missing"),
        ("tiled", without("post_layernorm"), "a tensor is missing"),
        ("tiled", stating(image_size=42), "wrong shape"),
        ("tiled", stating(image_size=[28, 28]), "image_size cannot be used"),
        ("tiled", stating(num_channels=1), "num_channels cannot be used"),
        ("tiled", stating(window_size=4), "unknown keys: window_size"),
    ],
)
def test_a_tower_that_cannot_be_used_is_left_out_and_the_note_says_why(
    request, tmp_path, source, change, why
):
    folder = tmp_path / "model"
    shutil.copytree(request.getfixturevalue(source), folder)
    change(folder)
    result = convert(folder, tmp_path / "out", dry_run=True)
    (note,) = (note for note in result.notes if note.startswith(UNUSABLE))
    assert why in note
    assert not any(tensor.name.startswith("visual.") for tensor in result.tensors)


@pytest.fixture(scope="module")
def of_gemma(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("gemma3") / "model", generator_of(request)
    tower = {"image_size": 56, "vision_use_head": False}
    settings = {
        "image_processor_type": "Gemma3ImageProcessorFast",
        "size": {"height": 56, "width": 56},
        "do_pan_and_scan": None,
    }
    return saved(folder, make_multimodal("gemma3", rng, tower), settings)


def test_a_tower_of_gemma_3_makes_tokens_of_means_that_the_text_model_sees_whole(
    of_gemma, tmp_path
):
    assert convert(of_gemma, tmp_path / "out", quantize="q8_0").notes == ()
    manifest, stored = manifest_of(tmp_path / "out"), load_file(of_gemma / "model.safetensors")
    assert (manifest.vision.merger, manifest.vision.seen_whole) == ("mean", "all")
    assert manifest.vision.merge_size == manifest.processor.merge_size == 2
    assert (manifest.processor.sizing, manifest.processor.patch_order) == ("fixed", "merged")
    projector = stored["multi_modal_projector.mm_input_projection_weight"]
    assert manifest.tensors["visual.merger.proj.weight"].shape == projector.shape[::-1]


def test_a_tower_of_gemma_3_has_names_within_the_model_in_published_checkpoints(of_gemma, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(of_gemma, folder)
    state = load_file(folder / "model.safetensors")
    published = "vision_tower.vision_model."
    named = {name.replace("vision_tower.", published): values for name, values in state.items()}
    save_file(named, folder / "model.safetensors")
    converted = [
        convert(source, tmp_path / name, quantize="f16", model_id="same")
        for name, source in (("a", of_gemma), ("b", folder))
    ]
    first, second = ([*result.tensors] for result in converted)
    assert [tensor.name for tensor in first] == [tensor.name for tensor in second]
    assert any(tensor.name == "visual.layers.0.mlp.up_proj.weight" for tensor in first)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (without("mm_soft_emb_norm"), "a tensor is missing"),
        (stating(image_size=70), "mm_tokens_per_image cannot be used"),
    ],
)
def test_a_tower_of_gemma_3_that_cannot_be_used_is_left_out_like_one_that_is_not_asked_for(
    of_gemma, tmp_path, change, why
):
    folder = tmp_path / "model"
    shutil.copytree(of_gemma, folder)
    change(folder)
    result = convert(folder, tmp_path / "out", quantize="f16")
    (note,) = (note for note in result.notes if note.startswith(UNUSABLE))
    assert why in note
    convert(of_gemma, tmp_path / "text", quantize="f16", without_vision=True)
    for name in ("out", "text"):
        assert manifest_of(tmp_path / name).vision is None
    shards = [sorted((tmp_path / name).glob("*.bin")) for name in ("out", "text")]
    left_out, not_asked_for = ([shard.read_bytes() for shard in of] for of in shards)
    assert left_out == not_asked_for != []


@pytest.fixture(scope="module")
def of_gemma4(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("gemma4") / "model", generator_of(request)
    # `default_output_length` and the like stand in published towers.
    published = {"default_output_length": 280, "global_head_dim": 16}
    both_ways = {"use_bidirectional_attention": "vision"}
    settings = {"image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": 70}
    return saved(folder, make_gemma4(rng, published, **both_ways), settings)


def test_a_tower_of_gemma_4_states_its_form_and_which_layers_see_images_whole(of_gemma4, tmp_path):
    assert convert(of_gemma4, tmp_path / "out", quantize="q8_0").notes == ()
    manifest = manifest_of(tmp_path / "out")
    assert (manifest.vision.form, manifest.vision.merger) == ("rms_norm", "scaled_mean")
    assert (manifest.vision.seen_whole, manifest.vision.standardizes) == ("sliding", True)
    assert manifest.vision.merge_size == manifest.processor.merge_size == 3
    assert manifest.processor.mean == manifest.processor.deviation == (0.5, 0.5, 0.5)
    assert manifest.tensors["visual.embed_positions.weight"].shape == (2 * 48, 32)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (stating(use_clipped_linears=True), "a tensor is missing"),
        (stating(num_key_value_heads=1), "num_key_value_heads cannot be used"),
        (stating(rope_parameters={"rope_type": "yarn"}), "rope_type axial"),
        (without("std_scale"), "a tensor is missing"),
    ],
)
def test_a_tower_of_gemma_4_that_cannot_be_used_is_left_out_and_the_note_says_why(
    of_gemma4, tmp_path, change, why
):
    folder = tmp_path / "model"
    shutil.copytree(of_gemma4, folder)
    change(folder)
    (note,) = convert(folder, tmp_path / "out", dry_run=True).notes[:1]
    assert note.startswith(UNUSABLE)
    assert why in note


def test_the_limits_of_products_are_tensors_and_inputs_of_layers_those_of_token_0(rng, tmp_path):
    folder = tmp_path / "model"
    sizes = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 384}
    make_gemma4(rng, {"use_clipped_linears": True}, **sizes).save_pretrained(folder)
    write_tokenizer(folder)
    convert(folder, tmp_path / "out", quantize="f16")
    manifest, stored = manifest_of(tmp_path / "out"), load_file(folder / "model.safetensors")
    assert manifest.vision.limits
    name = "visual.layers.0.mlp.up_proj"
    limits = open_package(tmp_path / "out").dequantize(f"{name}.limits")
    module = "model.vision_tower.encoder.layers.0.mlp.up_proj"
    ends = ("input_min", "input_max", "output_min", "output_max")
    assert limits[:, 0].tolist() == [stored[f"{module}.{end}"].item() for end in ends]
    # Elsewhere tokens of images would need the inputs of another token.
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["text_config"]["pad_token_id"] = 3
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (note,) = convert(folder, tmp_path / "text", dry_run=True).notes[:1]
    assert note.startswith(UNUSABLE)
    assert "pad_token_id cannot be used" in note


def test_a_tower_without_a_known_recipe_of_images_is_converted_with_a_note(checkpoint, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    (folder / "preprocessor_config.json").unlink()
    result = convert(folder, tmp_path / "out", dry_run=True)
    assert any("images cannot be read" in note for note in result.notes)
    assert any(tensor.name.startswith("visual.") for tensor in result.tensors)


def test_an_export_leaves_out_the_tower_and_says_so(checkpoint, tmp_path):
    convert(checkpoint, tmp_path / "out", quantize="f16")
    for to in ("safetensors", "gguf"):
        result = export(tmp_path / "out", tmp_path / f"exported.{to[:4]}", to=to)
        assert any("vision tower" in note for note in result.notes)
    names = load_file(tmp_path / "exported.safe/model.safetensors")
    assert not any("vis" in name for name in names)
    assert json.loads((tmp_path / "exported.safe/config.json").read_text(encoding="utf-8"))
