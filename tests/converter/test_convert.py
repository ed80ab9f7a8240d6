"""Conversions, read back and compared with arrays that are encoded without the converter."""

from __future__ import annotations

import hashlib
import itertools
import json
import re

import numpy as np
import pytest
import rdrr
import rdrr_converter
from rdrr_converter.convert import convert
from rdrr_converter.encode import chunks
from rdrr_format.dtypes import parse_dtype
from rdrr_format.encoding import encode_tensor
from rdrr_format.errors import SourceError, UsageError
from rdrr_format.layouts import Layout
from rdrr_manifests.package import open_package, validate
from support.safetensor_files import (
    LLAMA_CONFIG,
    ODD,
    from_stored,
    llama_tensors,
    to_stored,
    write_llama,
)

LAYOUTS = {
    "default": {},
    "column": {"q4k_layout": "column"},
    "transposed": {"transpose_weights": True},
    "flat": {"q4k_layout": "flat"},
}


LAYERS = {"num_hidden_layers": 1}


@pytest.fixture
def tensors(rng):
    return llama_tensors(rng, **LAYERS)


@pytest.fixture
def folder(tmp_path, tensors):
    return write_llama(tmp_path / "source", tensors, **LAYERS)


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def combinations():
    """Yield all, `thorough` but for Q4_K_M and half of the others: each type with each layout."""
    for case in itertools.product(["q4_k_m", "q8_0", "f16", "f32"], LAYOUTS, [False, True]):
        quantize, layout, fuse = case
        is_usual = quantize == "q4_k_m" or fuse == (layout in ("column", "flat"))
        yield pytest.param(*case, marks=() if is_usual else pytest.mark.thorough)


@pytest.mark.parametrize(("quantize", "layout", "fuse"), [*combinations()])
def test_every_combination_stores_the_source_as_the_codecs_encode_it(
    tmp_path, rng, quantize, layout, fuse
):
    tensors = llama_tensors(rng, **ODD)
    source = write_llama(tmp_path / "source", tensors, **ODD)
    options = {"quantize": quantize, "fuse_gate_up": fuse, **LAYOUTS[layout]}
    result = convert(source, tmp_path / "out", workers=2, **options)
    assert validate(tmp_path / "out", deep=True).errors == ()
    values = {name: from_stored(array) for name, array in tensors.items()}
    if fuse:
        stem = "model.layers.0.mlp"
        parts = [values.pop(f"{stem}.{part}_proj.weight") for part in ("gate", "up")]
        values[f"{stem}.gate_up_proj.weight"] = np.concatenate(parts)
    with open_package(tmp_path / "out") as package:
        assert set(package.manifest.tensors) == set(values)
        for name, entry in package.manifest.tensors.items():
            expected = encode_tensor(values[name], entry.parsed_dtype(), entry.parsed_layout())
            np.testing.assert_array_equal(package.read(name), expected, err_msg=name)
            assert entry.shape == values[name].shape
            is_matmul = "_proj" in name or "lm_head" in name
            is_block = parse_dtype(entry.dtype).is_block
            expected_layout = {
                "default": Layout.ROW,
                "column": Layout.COLUMN if is_block else Layout.ROW,
                "transposed": Layout.COLUMN,
                "flat": Layout.FLAT if is_block else Layout.ROW,
            }[layout]
            assert entry.parsed_layout() == (expected_layout if is_matmul else Layout.ROW)
            column = is_matmul and expected_layout is Layout.COLUMN
            assert (entry.original_shape == entry.shape) == (column and not is_block)
        for report in result.tensors:
            wanted = values[report.name].astype(np.float64)
            error = package.dequantize(report.name) - wanted
            rmse = np.sqrt((error**2).sum() / (wanted**2).sum())
            assert report.relative_rmse == pytest.approx(rmse, rel=1e-6, abs=1e-12)


@pytest.mark.cover
@pytest.mark.parametrize("k_tail", ["ggml", "auto"])
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_rows_with_a_partial_block_may_get_other_types(tmp_path, rng, k_tail, layout):
    tensors = llama_tensors(rng, **ODD)
    source = write_llama(tmp_path / "source", tensors, **ODD)
    padded = convert(source, tmp_path / "pad", dry_run=True, **LAYOUTS[layout])
    result = convert(source, tmp_path / "out", k_tail=k_tail, **LAYOUTS[layout])
    assert validate(tmp_path / "out", deep=True).errors == ()
    # In the layout flat, only the embedding has partial blocks, because it is never flat.
    fallbacks = {"Q5_0"} if layout == "flat" else {"Q5_0", "Q8_0"}
    assert fallbacks <= set(result.by_dtype())
    with open_package(tmp_path / "out") as package:
        for name, entry in package.manifest.tensors.items():
            dtype, stored = entry.parsed_dtype(), entry.parsed_layout()
            expected = encode_tensor(from_stored(tensors[name]), dtype, stored)
            np.testing.assert_array_equal(package.read(name), expected, err_msg=name)
            if entry.geometry().row_elements % 256:
                assert k_tail == "auto" or dtype.name not in ("Q4_K", "Q6_K")
    if k_tail == "auto":
        assert result.total_size <= padded.total_size
        for ours, pad in zip(result.tensors, padded.tensors, strict=True):
            assert ours.size <= pad.size


def test_f16_rounds_to_the_nearest_even(tmp_path, tensors):
    name = "model.layers.0.self_attn.q_proj.weight"
    values = np.zeros((256, 256), np.float32)
    # Halfway between two float16 numbers, and slightly more or less.
    values[0, :4] = [1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-11 + 2**-20, 2**-25]
    tensors[name] = to_stored(values, "F32")
    convert(write_llama(tmp_path / "m", tensors, **LAYERS), tmp_path / "out", quantize="f16")
    with open_package(tmp_path / "out") as package:
        result = package.dequantize(name)[0, :4]
    np.testing.assert_array_equal(result, [1, 1 + 2**-9, 1 + 2**-10, 0])


@pytest.mark.parametrize("quantize", ["f16", "q4_k_m", "q8_0"])
def test_a_tensor_that_would_overflow_is_kept_and_named(tmp_path, tensors, quantize):
    name = "model.layers.0.self_attn.o_proj.weight"
    values = from_stored(tensors[name]).copy()
    values[3, 5] = 2.0**24
    tensors[name] = to_stored(values, "BF16")
    result = convert(
        write_llama(tmp_path / "m", tensors, **LAYERS), tmp_path / "out", quantize=quantize
    )
    assert result.overflowed == (name,)
    with open_package(tmp_path / "out") as package:
        assert package.tensor(name).dtype == "F32"
        np.testing.assert_array_equal(package.dequantize(name), values)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path, tensors, value):
    name = "model.layers.0.self_attn.o_proj.weight"
    values = from_stored(tensors[name]).copy()
    values[3, 5] = value
    tensors[name] = to_stored(values, "BF16")
    where = re.escape(f"{tmp_path / 'm' / 'model.safetensors'}, tensor {name}: ")
    with pytest.raises(SourceError, match=f"^{where}the weights are not finite"):
        convert(write_llama(tmp_path / "m", tensors, **LAYERS), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_weights_of_another_type_are_refused(tmp_path, tensors):
    name = "model.layers.0.self_attn.o_proj.weight"
    tensors[name] = from_stored(tensors[name]).astype(np.int32)
    where = re.escape(f"{tmp_path / 'm' / 'model.safetensors'}, tensor {name}: ")
    with pytest.raises(SourceError, match=f"^{where}weights of this dtype cannot"):
        convert(write_llama(tmp_path / "m", tensors, **LAYERS), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_bytes_do_not_depend_on_workers_runs_or_chunks(tmp_path, folder, monkeypatch):
    options = {"transpose_weights": True, "fuse_gate_up": True, "shard_size": 2**17}
    convert(folder, tmp_path / "first", workers=1, **options)
    expected = files_of(tmp_path / "first")
    assert len([name for name in expected if name.startswith("shard_")]) > 3
    for run, workers in enumerate((1, 3)):
        convert(folder, tmp_path / f"run{run}", workers=workers, **options)
        assert files_of(tmp_path / f"run{run}") == expected
    # Whole blocks, but no whole rows of 512 or 1024 weights.
    monkeypatch.setattr(chunks, "CHUNK_WEIGHTS", 17 * 256)
    for layout in ("row", "column", "flat"):
        convert(folder, tmp_path / f"small-{layout}", workers=2, q4k_layout=layout)
    monkeypatch.undo()
    for layout in ("row", "column", "flat"):
        convert(folder, tmp_path / f"large-{layout}", workers=2, q4k_layout=layout)
        assert files_of(tmp_path / f"small-{layout}") == files_of(tmp_path / f"large-{layout}")


def test_sharded_and_whole_sources_give_the_same_package(tmp_path, tensors):
    for shards in (1, 3):
        # The folders have the same name, because the name becomes the model id.
        source = write_llama(tmp_path / str(shards) / "model", tensors, shards=shards, **LAYERS)
        convert(source, tmp_path / f"out{shards}")
    assert files_of(tmp_path / "out1") == files_of(tmp_path / "out3")


def test_the_time_is_written_only_with_source_date_epoch(tmp_path, folder, monkeypatch):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    convert(folder, tmp_path / "a")
    assert "convertedAt" not in (tmp_path / "a/manifest.json").read_text(encoding="utf-8")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    convert(folder, tmp_path / "b")
    manifest = json.loads((tmp_path / "b/manifest.json").read_text(encoding="utf-8"))
    assert manifest["metadata"]["convertedAt"] == "1970-01-02T00:00:00Z"


def test_nothing_about_this_machine_is_written(tmp_path, folder):
    convert(folder, tmp_path / "out")
    for data in files_of(tmp_path / "out").values():
        assert str(tmp_path).encode() not in data


def test_the_manifest_has_every_field_the_public_parser_requires(tmp_path, folder):
    convert(folder, tmp_path / "out", model_id="tiny-llama")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text(encoding="utf-8"))
    assert manifest["version"] == 1
    assert manifest["modelId"] == "tiny-llama"
    assert manifest["modelType"] == "transformer"
    assert manifest["quantization"] == "Q4_K_M"
    assert manifest["quantizationInfo"] == {
        "weights": "q4k",
        "embeddings": "q4k",
        "lmHead": "q6k",
        "compute": "f32",
        "layout": "row",
        "variantTag": "q4k-hq6k-af32",
    }
    assert manifest["eos_token_id"] == 2
    assert manifest["moeConfig"] is None
    assert manifest["hashAlgorithm"] == "sha256"
    assert manifest["tokenizer"]["vocabSize"] == 300
    inference = manifest["inference"]
    assert inference["schema"] is None
    assert inference["normalization"]["postAttentionNorm"] is True
    assert inference["chatTemplate"] == {"type": None, "enabled": False}
    for block, fields in {
        "output": ["embeddingScale", "logitInputScale", "finalLogitSoftcapping"],
        "layerPattern": ["residualBranchScale", "layerTypes"],
        "rope": ["ropeLocalTheta", "yarnBetaFast", "longropeLongFactor", "mropeSection"],
        "session": ["compute", "kvcache", "decodeLoop"],
    }.items():
        assert set(fields) <= set(inference[block])
    for shard in manifest["shards"]:
        data = (tmp_path / "out" / shard["filename"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (shard["size"], shard["hash"])
    for entry in manifest["tensors"].values():
        assert entry["role"] in ("embedding", "lm_head", "norm", "matmul")
        assert entry["group"]
        assert (entry.get("layout") == "row") == entry["dtype"].startswith("Q")


@pytest.mark.parametrize(
    ("options", "tag", "layout"),
    [
        ({"quantize": "f16"}, "f16-af32", "row"),
        ({"quantize": "q8_0"}, "q8_0-af32", "row"),
        ({"transpose_weights": True}, "q4k-hq6k-af32-col", "col"),
        ({"quantize": "f16", "transpose_weights": True}, "f16-af32-col", "col"),
        ({"q4k_layout": "column"}, "q4k-hq6k-af32-col", "col"),
        ({"q4k_layout": "flat"}, "q4k-hq6k-af32", "row"),
    ],
)
def test_the_manifest_summarizes_the_quantization(tmp_path, folder, options, tag, layout):
    convert(folder, tmp_path / "out", **options)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text(encoding="utf-8"))
    info = manifest["quantizationInfo"]
    assert (info["variantTag"], info["layout"]) == (tag, layout)
    assert manifest["weightsTransposed"] == (layout == "col")


def test_options_and_hints_are_recorded(tmp_path, folder):
    hints = {"q4kMatmul": "dequant_f16", "computePrecision": "f32"}
    convert(folder, tmp_path / "out", kernel_hints=hints, fuse_gate_up=True)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text(encoding="utf-8"))
    kernel_hints = manifest["optimizations"]["kernelHints"]
    assert {key: kernel_hints[key] for key in hints} == hints
    assert kernel_hints["f16Matmul"] == "auto"
    assert manifest["conversion"]["tool"] == "rdrr"
    assert manifest["conversion"]["options"]["fuseGateUp"] is True
    assert manifest["conversion"]["options"]["kernelHints"] == hints


@pytest.mark.parametrize(
    ("folder_name", "model_id"),
    [
        ("Llama-3.2-1B", "llama-3-2-1b"),
        ("--x--", "x"),
        ("...", "model"),
        ("y" * 80, "y" * 64),
        ("models--org--Some.Model/snapshots/0a1b", "some-model"),
    ],
)
def test_the_default_id_comes_from_the_folder(tmp_path, tensors, folder_name, model_id):
    source = write_llama(tmp_path / folder_name, tensors, **LAYERS)
    assert convert(source, tmp_path / "out", dry_run=True).model_id == model_id


@pytest.mark.parametrize(
    ("generation", "config", "written"),
    [
        ({"eos_token_id": [1, 106]}, 2, [1, 106]),
        ({"eos_token_id": 7}, 2, 7),
        ({}, 2, 2),
        (None, [3, 4], [3, 4]),
    ],
)
def test_the_eos_token_is_that_of_the_generation_config(
    tmp_path, tensors, generation, config, written
):
    folder = write_llama(tmp_path / "m", tensors, eos_token_id=config, **LAYERS)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    convert(folder, tmp_path / "out")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text(encoding="utf-8"))
    assert manifest["eos_token_id"] == written


def test_a_missing_tokenizer_or_eos_token_is_mentioned_in_a_note(tmp_path, tensors):
    folder = write_llama(tmp_path / "m", tensors, eos_token_id=None, **LAYERS)
    assert "eos_token_id" in " ".join(convert(folder, tmp_path / "a").notes)
    folder = write_llama(tmp_path / "m", tensors, **LAYERS)
    assert convert(folder, tmp_path / "b").notes == ()
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.json" in " ".join(convert(folder, tmp_path / "c").notes)
    assert validate(tmp_path / "c").errors == ()


def test_tokenizer_files_are_copied_unchanged(tmp_path, folder):
    extra = {"chat_template.jinja": "{{ x }}", "special_tokens_map.json": "{ }"}
    for name, text in extra.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "README.md").write_text("not part of a package", encoding="utf-8")
    convert(folder, tmp_path / "out")
    files = files_of(tmp_path / "out")
    always = {"manifest.json", "conversion-report.json", "shard_00000.bin"}
    assert set(files) == {*always, "tokenizer.json", *extra}
    for name in ("tokenizer.json", *extra):
        assert files[name] == (folder / name).read_bytes()


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer_is_refused_before_anything_is_written(tmp_path, folder, file):
    (folder / file).write_text("{", encoding="utf-8")
    with pytest.raises(SourceError, match=file):
        convert(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_dry_run_describes_the_conversion_and_writes_nothing(tmp_path, folder):
    before = sorted(path.name for path in tmp_path.iterdir())
    dry = convert(folder, tmp_path / "out", dry_run=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    wet = convert(folder, tmp_path / "out")
    assert dry.plan.shard_sizes == wet.plan.shard_sizes
    assert list(dry.plan.describe()) == list(wet.plan.describe())
    assert {report.relative_rmse for report in dry.tensors} == {None}
    sizes = tuple(path.stat().st_size for path in sorted((tmp_path / "out").glob("shard_*")))
    assert sizes == wet.plan.shard_sizes


def test_progress_counts_every_weight_of_every_stage(tmp_path, folder):
    events = []
    convert(folder, tmp_path / "out", progress=events.append, workers=2)
    assert list(dict.fromkeys(event.stage for event in events)) == ["scan", "write", "verify"]
    for stage in ("scan", "write", "verify"):
        counts = [(event.done, event.total) for event in events if event.stage == stage]
        assert counts == sorted(counts)
        assert counts[-1][0] == counts[-1][1]


def test_the_result_is_one_json_object(tmp_path, folder):
    result = convert(folder, tmp_path / "out")
    document = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert document["parameters"] == sum(
        int(np.prod(entry["shape"])) for entry in document["tensors"]
    )
    assert document["model_id"] == "source"
    assert sum(group["tensors"] for group in document["by_dtype"].values()) == len(
        document["tensors"]
    )
    assert LLAMA_CONFIG["num_hidden_layers"] == 2


def test_zero_workers_are_a_usage_error(tmp_path, folder):
    with pytest.raises(UsageError, match="workers"):
        convert(folder, tmp_path / "out", workers=0)


def test_the_recorded_version_is_that_of_the_project():
    assert rdrr_converter.__version__ == rdrr.__version__
