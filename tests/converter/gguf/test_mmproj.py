"""A vision tower in a GGUF file of its own is read with its model, and written beside it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_converter.gguf.file import read_gguf
from rdrr_format.errors import ConversionError, RdrrError, SourceError, UsageError
from rdrr_manifests.package import Package, open_package, validate
from safetensors.numpy import load_file
from support.checkpoints import make_multimodal, write_tokenizer
from support.gguf_entries import rewritten
from support.images import save_processor
from support.seeds import generator_of

SECTIONS = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [8, 4, 4]}
TOWER = {"depth": 3, "deepstack_visual_indexes": [0, 2], "num_position_embeddings": 49}


@pytest.fixture(scope="module")
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a checkpoint, its package, and the two files of its export."""
    folder, rng = tmp_path_factory.mktemp("mmproj"), generator_of(request)
    model = make_multimodal("qwen3_vl", rng, TOWER, rope_scaling=SECTIONS)
    model.save_pretrained(folder / "model")
    write_tokenizer(folder / "model")
    save_processor(folder / "model")
    convert(folder / "model", folder / "package", quantize="f32", vision_quantize="f32")
    (folder / "gguf").mkdir()
    result = export(
        folder / "package",
        folder / "gguf/m.gguf",
        mmproj=folder / "gguf/mmproj-F32.gguf",
        lossless=True,
    )
    assert result.is_lossless
    return folder


def contents(path: Path) -> tuple[dict[str, bytes], Package]:
    assert validate(path, deep=True).faults == ()
    package = open_package(path)
    return {name: package.read(name).tobytes() for name in package.manifest.tensors}, package


def convert_gguf(files: Path, out: Path, **options: Any) -> Any:
    return convert(files / "gguf/m.gguf", out, quantize="f32", vision_quantize="f32", **options)


def copied(files: Path, folder: Path) -> Path:
    shutil.copytree(files / "gguf", folder / "gguf")
    return folder


def test_a_round_trip_keeps_every_value_of_tower_and_text_and_the_recipe_of_images(files, tmp_path):
    result = convert_gguf(files, tmp_path / "out", mmproj=files / "gguf/mmproj-F32.gguf")
    assert not any("vision" in note for note in result.notes)
    first, before = contents(files / "package")
    second, after = contents(tmp_path / "out")
    assert second == first
    assert after.manifest.vision == before.manifest.vision
    assert after.manifest.processor == before.manifest.processor
    assert after.graph == before.graph
    assert after.manifest.inference.rope.mrope_section == (8, 4, 4)


def test_the_file_has_the_names_and_forms_that_llama_cpp_reads(files):
    reader = gguf.GGUFReader(files / "gguf/mmproj-F32.gguf")
    layers = 3
    names = gguf.TensorNameMap(gguf.MODEL_ARCH.MMPROJ, layers)
    state = load_file(files / "model/model.safetensors")
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    expected = {}
    for name, values in state.items():
        published = name.removeprefix("model.")
        if not published.startswith("visual."):
            continue
        named = names.get_name(published, try_suffixes=(".weight", ".bias"))
        if named is not None and "deepstack" not in name and "patch_embed" not in name:
            expected[named] = values
    expected |= {
        "v.patch_embd.weight": state["model.visual.patch_embed.proj.weight"][:, :, 0],
        "v.patch_embd.weight.1": state["model.visual.patch_embed.proj.weight"][:, :, 1],
        "v.patch_embd.bias": state["model.visual.patch_embed.proj.bias"],
    }
    for theirs, ours in (("post_ln", "norm"), ("mm.0", "linear_fc1"), ("mm.2", "linear_fc2")):
        for kind in ("weight", "bias"):
            stem = theirs if theirs.startswith("mm.") else f"v.{theirs}"
            expected[f"{stem}.{kind}"] = state[f"model.visual.merger.{ours}.{kind}"]
    for tap, layer in enumerate(TOWER["deepstack_visual_indexes"]):
        for theirs, ours in (("norm", "norm"), ("fc1", "linear_fc1"), ("fc2", "linear_fc2")):
            for kind in ("weight", "bias"):
                stem = f"model.visual.deepstack_merger_list.{tap}.{ours}"
                expected[f"v.deepstack.{layer}.{theirs}.{kind}"] = state[f"{stem}.{kind}"]
    assert set(tensors) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(tensors[name], values, err_msg=name)


def test_the_metadata_has_the_keys_that_llama_cpp_reads(files):
    tower = read_gguf(files / "gguf/mmproj-F32.gguf").metadata
    keys = gguf.Keys.ClipVision
    assert tower["general.architecture"] == "clip"
    assert tower["general.type"] == gguf.GGUFType.MMPROJ
    assert tower[gguf.Keys.Clip.PROJECTOR_TYPE] == gguf.VisionProjectorType.QWEN3VL
    assert tower[gguf.Keys.Clip.HAS_VISION_ENCODER] is True
    assert tower[keys.USE_GELU] is True
    assert tower[keys.IS_DEEPSTACK_LAYERS] == [True, False, True]
    assert tower[keys.IMAGE_SIZE] == 7 * 16
    sizes = (keys.PATCH_SIZE, keys.EMBEDDING_LENGTH, keys.FEED_FORWARD_LENGTH, keys.BLOCK_COUNT)
    assert [tower[key] for key in sizes] == [16, 32, 48, 3]
    assert (tower[keys.PROJECTION_DIM], tower[keys.Attention.HEAD_COUNT]) == (64, 2)
    assert (tower[keys.SPATIAL_MERGE_SIZE], tower[keys.Attention.LAYERNORM_EPS]) == (2, 1e-6)
    assert len(tower[keys.IMAGE_MEAN]) == len(tower[keys.IMAGE_STD]) == 3
    text = read_gguf(files / "gguf/m.gguf").metadata
    assert text["qwen3vl.n_deepstack_layers"] == 2
    assert text["qwen3vl.rope.dimension_sections"] == [8, 4, 4, 0]


def test_the_only_tower_beside_a_model_is_taken_and_said(files, tmp_path):
    for name, source in (("file", files / "gguf/m.gguf"), ("folder", files / "gguf")):
        result = convert(source, tmp_path / name, quantize="f32", vision_quantize="f32")
        assert [note for note in result.notes if "mmproj-F32.gguf" in note]
        assert open_package(tmp_path / name).manifest.vision is not None
    convert_gguf(files, tmp_path / "named", mmproj=files / "gguf/mmproj-F32.gguf")
    assert contents(tmp_path / "file")[0] == contents(tmp_path / "named")[0]


def test_of_several_towers_none_is_taken_and_the_note_names_them(files, tmp_path):
    folder = copied(files, tmp_path)
    shutil.copy(folder / "gguf/mmproj-F32.gguf", folder / "gguf/mmproj-again.gguf")
    result = convert_gguf(folder, tmp_path / "out")
    assert [note for note in result.notes if "mmproj-F32.gguf, mmproj-again.gguf" in note]
    assert open_package(tmp_path / "out").manifest.vision is None


def test_a_model_alone_is_converted_as_text(files, tmp_path):
    folder = copied(files, tmp_path)
    (folder / "gguf/mmproj-F32.gguf").unlink()
    convert_gguf(folder, tmp_path / "out")
    package = open_package(tmp_path / "out")
    assert package.manifest.vision is None
    assert package.manifest.inference.rope.mrope_section is None


def test_without_vision_leaves_the_tower_beside_alone(files, tmp_path):
    result = convert(files / "gguf", tmp_path / "out", quantize="f32", without_vision=True)
    assert not any("mmproj" in note for note in result.notes)
    assert open_package(tmp_path / "out").manifest.vision is None


def stating(key: str, value: object) -> Callable[..., None]:
    def change(metadata: dict[str, Any], _tensors: dict[str, Any]) -> None:
        metadata[key] = value

    return change


def renamed(name: str, other: str) -> Callable[..., None]:
    def change(_metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors[other] = tensors.pop(name)

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (stating("clip.projector_type", "gemma3"), "not a vision tower that this version knows"),
        (stating("clip.use_silu", True), "activation of the vision tower is not known"),
        (stating("clip.vision.projection_dim", 32), "the output size cannot be used"),
        (stating("clip.vision.block_count", 0), "impossible size"),
        (stating("clip.vision.attention.layer_norm_epsilon", 1e-5), "another epsilon"),
        (stating("clip.vision.is_deepstack_layers", [True, False, False]), "belong together"),
        (stating("clip.vision.window_size", 112), "clip.vision.window_size"),
        (stating("clip.vision.image_mean", [0.5]), "image processor cannot be used: mean"),
        (renamed("v.blk.1.ln1.bias", "v.blk.1.ln3.bias"), "is unknown"),
        (renamed("v.deepstack.2.fc1.bias", "v.deepstack.1.fc1.bias"), "is unknown"),
        (renamed("v.patch_embd.weight.1", "v.patch_embd.weight.2"), "is unknown"),
        (lambda _, tensors: tensors.pop("v.patch_embd.weight.1"), "one kernel for each frame"),
        (lambda _, tensors: tensors.pop("v.blk.1.ln1.bias"), "a tensor is missing"),
    ],
)
def test_a_tower_that_cannot_be_used_is_refused_if_it_is_named_and_left_out_if_not(
    files, tmp_path, change, why
):
    folder = copied(files, tmp_path)
    path = rewritten(folder / "gguf/mmproj-F32.gguf", change, folder / "gguf/changed-mmproj.gguf")
    with pytest.raises((SourceError, ConversionError), match=why):
        convert_gguf(folder, tmp_path / "out", mmproj=path, dry_run=True)
    (folder / "gguf/mmproj-F32.gguf").unlink()
    result = convert_gguf(folder, tmp_path / "out", dry_run=True)
    assert [note for note in result.notes if why in note and "not converted" in note]
    assert not any(tensor.name.startswith("visual.") for tensor in result.tensors)


def test_a_file_that_is_written_again_unchanged_is_read(files, tmp_path):
    folder = copied(files, tmp_path)
    path = rewritten(folder / "gguf/mmproj-F32.gguf", lambda *_: None, tmp_path / "again.gguf")
    convert_gguf(folder, tmp_path / "out", mmproj=path)
    assert contents(tmp_path / "out")[0] == contents(files / "package")[0]


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("model", {"mmproj": "gguf/mmproj-F32.gguf"}, "`mmproj` is the vision tower of a GGUF"),
        ("gguf/m.gguf", {"mmproj": "gguf/mmproj-F32.gguf", "without_vision": True}, "leaves out"),
        ("gguf/mmproj-F32.gguf", {}, "this is a vision tower"),
        ("gguf/m.gguf", {"mmproj": "gguf/m.gguf"}, "not a vision tower that this version knows"),
    ],
)
def test_files_in_the_wrong_places_are_refused(files, tmp_path, source, options, message):
    options = {name: files / v if isinstance(v, str) else v for name, v in options.items()}
    with pytest.raises(RdrrError, match=message):
        convert(files / source, tmp_path / "out", dry_run=True, **options)


def test_only_an_export_as_gguf_writes_a_tower_and_only_where_there_is_one(files, tmp_path):
    with pytest.raises(UsageError, match="beside a GGUF"):
        export(files / "package", tmp_path / "out", mmproj=tmp_path / "mmproj.gguf")
    with pytest.raises(UsageError, match="beside a GGUF"):
        export(files / "package", tmp_path / "m.gguf", mmproj=tmp_path / "m.gguf")
    convert(files / "model", tmp_path / "text", quantize="f16", without_vision=True)
    with pytest.raises(ConversionError, match="no vision tower"):
        export(tmp_path / "text", tmp_path / "m.gguf", mmproj=tmp_path / "mmproj.gguf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text"]


def test_types_of_the_tower_are_kept_and_llama_cpp_gets_positions_in_f32(files, tmp_path):
    convert(files / "model", tmp_path / "package", quantize="f16", vision_quantize="q8_0")
    export(tmp_path / "package", tmp_path / "m.gguf", mmproj=tmp_path / "mmproj.gguf")
    types = {name: t.dtype for name, t in read_gguf(tmp_path / "mmproj.gguf").tensors.items()}
    assert types["v.blk.0.attn_qkv.weight"] == "Q8_0"
    assert types["v.position_embd.weight"] == types["v.blk.0.ln1.weight"] == "F32"
    assert types["v.patch_embd.weight"] in ("F16", "F32")
    convert(tmp_path / "m.gguf", tmp_path / "again", mmproj=tmp_path / "mmproj.gguf")
    assert validate(tmp_path / "again", deep=True).faults == ()


def test_settings_of_videos_are_left_out_and_the_note_says_so(files, tmp_path):
    shutil.copytree(files / "model", tmp_path / "model")
    recipe = open_package(files / "package").manifest.processor
    settings = {"image_mean": recipe.mean, "image_std": recipe.deviation}
    (tmp_path / "model/video_preprocessor_config.json").write_text(
        json.dumps({"video_processor_type": "Qwen3VLVideoProcessor", **settings}), encoding="utf-8"
    )
    convert(tmp_path / "model", tmp_path / "package", quantize="f16")
    processor = open_package(tmp_path / "package").manifest.processor
    assert processor.video is not None
    assert processor.model_copy(update={"video": None}) == recipe
    result = export(tmp_path / "package", tmp_path / "m.gguf", mmproj=tmp_path / "mmproj.gguf")
    assert [note for note in result.notes if "no settings of videos" in note]


@pytest.mark.thorough
def test_a_hybrid_text_model_has_its_tower_too(request, tmp_path):
    rope = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
    }
    linear = {f"linear_{part}_head_dim": 16 for part in ("key", "value")}
    model = make_multimodal(
        "qwen3_5",
        generator_of(request),
        {"num_position_embeddings": 49},
        rope_parameters=rope,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        **linear,
    )
    model.save_pretrained(tmp_path / "model")
    write_tokenizer(tmp_path / "model")
    save_processor(tmp_path / "model")
    types = {"quantize": "f32", "vision_quantize": "f32"}
    convert(tmp_path / "model", tmp_path / "package", **types)
    export(tmp_path / "package", tmp_path / "m.gguf", mmproj=tmp_path / "mmproj.gguf")
    convert(tmp_path / "m.gguf", tmp_path / "again", mmproj=tmp_path / "mmproj.gguf", **types)
    first, before = contents(tmp_path / "package")
    second, after = contents(tmp_path / "again")
    assert {k: v for k, v in second.items() if "visual." in k} == {
        k: v for k, v in first.items() if "visual." in k
    }
    assert (after.manifest.vision, after.graph) == (before.manifest.vision, before.graph)
