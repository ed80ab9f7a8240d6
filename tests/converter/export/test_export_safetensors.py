"""Exported checkpoints have the same tensors under the same names as the converted ones."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.export import _export, export
from rdrr_converter.sources import open_source
from rdrr_format.errors import ConversionError, StoreError, UsageError
from rdrr_manifests.package import open_package
from support.checkpoints import write_tokenizer
from support.safetensor_files import from_stored, llama_tensors, to_stored, write_llama

STORED = {
    "rows": {},
    "columns and fused": {"transpose_weights": True, "fuse_gate_up": True},
}
NORM = "model.norm.weight"
LAYER = {"num_hidden_layers": 1}


def stored_values(folder):
    """Return every tensor of a checkpoint as its file stores it."""
    tensors = open_source(folder).tensors
    return {
        name: (tensor.shape, tensor.dtype, tensor.stored().tobytes())
        for name, tensor in tensors.items()
    }


def package_of(tmp_path, tensors, *, config=None, **options):
    layers = sum(name.endswith("input_layernorm.weight") for name in tensors)
    stated = {"num_hidden_layers": layers, **(config or {})}
    folder = write_llama(tmp_path / "source", tensors, **stated)
    convert(folder, tmp_path / "package", **options)
    return folder, tmp_path / "package"


def edit(package, change):
    data = json.loads((package / "manifest.json").read_text(encoding="utf-8"))
    change(data)
    (package / "manifest.json").write_text(json.dumps(data), encoding="utf-8")


@pytest.mark.cover
@pytest.mark.parametrize("storage", STORED)
@pytest.mark.parametrize(
    ("dtype", "quantize", "requested"),
    [("F32", "f32", None), ("F16", "f16", None), ("F16", "f32", "f16"), ("BF16", "f32", "bf16")],
)
def test_a_round_trip_changes_no_value(tmp_path, rng, dtype, quantize, requested, storage):
    tensors = llama_tensors(rng, dtype, **LAYER)
    source, package = package_of(tmp_path, tensors, quantize=quantize, **STORED[storage])
    result = export(package, tmp_path / "out", dtype=requested, lossless=True)
    assert stored_values(tmp_path / "out") == stored_values(source)
    assert result.is_lossless
    ours, theirs = (open_source(path).config for path in (tmp_path / "out", source))
    ours = dict(ours)
    assert (
        ours.pop("torch_dtype") == {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[dtype]
    )
    assert {key: ours[key] for key in theirs} == theirs
    assert (tmp_path / "out/tokenizer.json").read_bytes() == (
        source / "tokenizer.json"
    ).read_bytes()


@pytest.mark.parametrize("layout", ["row", "column", "flat"])
def test_quantized_tensors_are_exported_as_their_decoded_values(tmp_path, rng, layout):
    source, package = package_of(
        tmp_path, llama_tensors(rng, **LAYER), q4k_layout=layout, fuse_gate_up=True
    )
    export(package, tmp_path / "exact", lossless=True)
    rounded = export(package, tmp_path / "half")
    assert {tensor.dtype for tensor in rounded.tensors} == {"F16"}
    assert not rounded.is_lossless
    exact, half = (open_source(tmp_path / name).tensors for name in ("exact", "half"))
    assert set(exact) == set(open_source(source).tensors)
    with open_package(package) as opened:
        name = "model.layers.0.self_attn.v_proj.weight"
        values = opened.dequantize(name)
        np.testing.assert_array_equal(exact[name].read(), values)
        np.testing.assert_array_equal(half[name].read(), values.astype(np.float16))
        fused = opened.dequantize("model.layers.0.mlp.gate_up_proj.weight")
        gate, up = (exact[f"model.layers.0.mlp.{part}_proj.weight"] for part in ("gate", "up"))
        np.testing.assert_array_equal(np.concatenate([gate.read(), up.read()]), fused)
        stated = {tensor.name: tensor.relative_rmse for tensor in rounded.tensors}[name]
        apart = values.astype(np.float16) - values.astype(np.float64)
        assert stated == pytest.approx(np.sqrt((apart**2).sum() / (values**2).sum()), rel=1e-4)


def test_lossless_refuses_an_export_that_changes_a_value(tmp_path, rng):
    tensors = llama_tensors(rng, "F32", **LAYER)
    _, package = package_of(tmp_path, tensors, quantize="f32")
    with pytest.raises(ConversionError, match="F16 cannot hold every value"):
        export(package, tmp_path / "out", dtype="f16", lossless=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["package", "source"]
    assert export(package, tmp_path / "out", dtype="f16").is_lossless is False


def test_a_value_that_a_type_cannot_hold_is_refused_by_name(tmp_path, rng):
    tensors = llama_tensors(rng, "F32", **LAYER)
    tensors[NORM][3] = 70_000.0
    _, package = package_of(tmp_path, tensors, quantize="f32")
    with pytest.raises(ConversionError, match=r"model\.norm\.weight.*does not fit F16.*70000"):
        export(package, tmp_path / "out", dtype="f16")
    assert not (tmp_path / "out").exists()
    assert export(package, tmp_path / "out", dtype="bf16").tensors


def test_large_checkpoints_are_written_in_several_files(tmp_path, rng):
    source, package = package_of(tmp_path, llama_tensors(rng, "F16", **LAYER), quantize="f16")
    export(package, tmp_path / "out", shard_size=1 << 19)
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert stored_values(tmp_path / "out") == stored_values(source)
    # The safetensors library reads the same.
    from safetensors import safe_open

    with safe_open(tmp_path / "out" / files[0], "np") as opened:
        for name in opened.keys():  # noqa: SIM118
            np.testing.assert_array_equal(
                opened.get_tensor(name), open_source(source).tensors[name].read().squeeze()
            )


def test_norms_are_exported_with_or_without_the_added_1_of_their_architecture(tmp_path, rng):
    tensors = llama_tensors(rng, "F32", **LAYER)
    _, package = package_of(tmp_path, tensors, quantize="f32")
    edit(package, lambda data: data["inference"]["normalization"].update(rmsNormWeightOffset=True))
    export(package, tmp_path / "out")
    result = open_source(tmp_path / "out").tensors[NORM].read()[0]
    np.testing.assert_array_equal(result, from_stored(tensors[NORM]) + np.float32(1.0))


@pytest.mark.parametrize("known", [True, False])
def test_a_package_of_another_writer_needs_no_architecture_name(tmp_path, rng, known):
    # GLM 4.5 with its first layer alone, which is dense, is a Llama too.
    source, package = package_of(tmp_path, llama_tensors(rng, "F16"), quantize="f16")
    prefix = "language_model.model."

    def change(data):
        del data["metadata"]["sourceArchitecture"]
        data["tensors"] = {
            name.replace("model.", prefix, 1) if name.startswith("model.") else name: entry
            for name, entry in data["tensors"].items()
        }
        if not known:
            data["inference"]["attention"]["attnLogitSoftcapping"] = 30.0

    edit(package, change)
    if known:
        assert export(package, tmp_path / "out").architecture == "llama"
        assert stored_values(tmp_path / "out") == stored_values(source)
        return
    with pytest.raises(ConversionError, match="no supported architecture"):
        export(package, tmp_path / "out", arch=None)


def test_a_configuration_that_cannot_describe_the_model_is_refused(tmp_path, rng):
    _, package = package_of(tmp_path, llama_tensors(rng, **LAYER), quantize="f16")
    edit(package, lambda data: data["inference"]["output"].update(scaleEmbeddings=True))
    with pytest.raises(ConversionError, match=r"ops\[0\]\.scale: .* of llama cannot describe this"):
        export(package, tmp_path / "out")
    with pytest.raises(ConversionError, match="cannot be exported as gemma3"):
        export(package, tmp_path / "out", arch="gemma3")
    with pytest.raises(UsageError, match="unknown architecture"):
        export(package, tmp_path / "out", arch="gpt17")
    edit(package, lambda data: data["inference"]["output"].update(logitInputScale=0))
    for arch in ("granite", None):
        with pytest.raises(ConversionError, match=r"a factor of 0|cannot describe this"):
            export(package, tmp_path / "out", arch=arch)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "original_max_position_embeddings": 64,
            }
        },
    ],
    ids=["linear", "llama3", "yarn"],
)
@pytest.mark.cover
@pytest.mark.parametrize("to", ["safetensors", "gguf"])
def test_rope_scaling_survives_a_round_trip(tmp_path, rng, rope, to):
    config = {"rope_theta": 500000.0, **rope}
    folder, package = package_of(
        tmp_path, llama_tensors(rng, **LAYER), config=config, quantize="f16"
    )
    write_tokenizer(folder)
    out = tmp_path / ("out.gguf" if to == "gguf" else "out")
    export(package, out, to=to)
    assert open_source(out).config["rope_scaling"] == rope["rope_scaling"]
    convert(out, tmp_path / "again", quantize="f16")
    first, second = (open_package(tmp_path / name) for name in ("package", "again"))
    assert second.graph.ropes == first.graph.ropes


WIDTHS = {"q": 256, "k": 128, "v": 128, "o": 256}


def with_biases(rng, parts, layers=(0,), count=1):
    """Return the tensors of a Llama with biases on some projections of some of its layers."""
    tensors = llama_tensors(rng, "F32", num_hidden_layers=count)
    for layer in layers:
        for part in parts:
            name = f"model.layers.{layer}.self_attn.{part}_proj.bias"
            tensors[name] = to_stored(rng.standard_normal(WIDTHS[part]), "F32")
    return tensors


def test_biases_and_tied_heads_survive_a_round_trip(tmp_path, rng):
    tensors = with_biases(rng, "qkvo")
    del tensors["lm_head.weight"]
    config = {"attention_bias": True, "tie_word_embeddings": True}
    source, package = package_of(tmp_path, tensors, config=config, quantize="f32")
    export(package, tmp_path / "out")
    assert stored_values(tmp_path / "out") == stored_values(source)
    written = open_source(tmp_path / "out").config
    assert {key: written[key] for key in config} == config
    # A GGUF interleaves the halves of each query and key head, also in biases.
    write_tokenizer(source)
    export(package, tmp_path / "out.gguf", to="gguf")
    ours, theirs = (open_source(path).tensors for path in (tmp_path / "out.gguf", source))
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name].read(), value.read(), err_msg=name)


SEED = {"architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss", "head_dim": 64}


@pytest.mark.parametrize(
    "parts",
    ["qkv", "o", *(pytest.param(parts, marks=pytest.mark.thorough) for parts in ("qkvo", ""))],
)
def test_the_configuration_states_which_projections_have_biases(tmp_path, rng, parts):
    stated = {"attention_bias": "q" in parts, "attention_out_bias": "o" in parts}
    tensors = with_biases(rng, parts)
    source, package = package_of(tmp_path, tensors, config={**SEED, **stated}, quantize="f32")
    assert export(package, tmp_path / "out").architecture == "seed_oss"
    assert stored_values(tmp_path / "out") == stored_values(source)
    written = open_source(tmp_path / "out").config
    assert {key: written[key] for key in stated} == stated
    convert(tmp_path / "out", tmp_path / "again", quantize="f32")
    with open_package(package) as first, open_package(tmp_path / "again") as second:
        assert first.graph == second.graph


@pytest.mark.parametrize(
    ("arch", "parts", "layers", "message"),
    [
        ("llama", "qkv", (0, 1), r"2 tensors are missing.*o_proj\.bias"),
        (
            "llama",
            "qkvo",
            (0,),
            r"4 tensors are missing.*model\.layers\.1\.self_attn\.q_proj\.bias",
        ),
        (
            "qwen2",
            "qkvo",
            (0, 1),
            r"cannot express that the model has model\.layers\.0\.self_attn\.o_proj",
        ),
        ("seed_oss", "q", (0, 1), r"4 tensors are missing.*k_proj\.bias"),
        ("mistral", "qkvo", (0, 1), r"unexpected tensors"),
    ],
)
@pytest.mark.cover
@pytest.mark.parametrize("to", ["safetensors", "gguf"])
def test_biases_that_no_configuration_can_express_are_refused(
    tmp_path, rng, arch, parts, layers, message, to
):
    source, package = package_of(tmp_path, with_biases(rng, parts, layers, 2), quantize="f32")
    write_tokenizer(source)
    with pytest.raises(ConversionError, match=message):
        export(package, tmp_path / "out", arch=arch, to=to)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["package", "source"]


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ("qkvo", "llama"),
        ("qkv", "qwen2"),
        pytest.param("o", "seed_oss", marks=pytest.mark.thorough),
    ],
)
def test_the_first_architecture_that_can_express_the_biases_is_used(tmp_path, rng, parts, found):
    source, package = package_of(tmp_path, with_biases(rng, parts, (0, 1), 2), quantize="f32")
    assert export(package, tmp_path / "out").architecture == found
    assert stored_values(tmp_path / "out") == stored_values(source)


def test_a_plan_that_loses_a_tensor_is_refused(tmp_path, rng, monkeypatch):
    _, package = package_of(tmp_path, llama_tensors(rng, "F32", **LAYER), quantize="f32")
    plan = _export._plan_directory
    for change in (lambda found: found[1:], lambda found: [*found, found[0]]):
        monkeypatch.setattr(_export, "_plan_directory", lambda *given, do=change: do(plan(*given)))
        with pytest.raises(ConversionError, match="would not contain every tensor exactly once"):
            export(package, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    monkeypatch.setattr(_export, "_plan_directory", plan)
    assert export(package, tmp_path / "out").tensors


def test_an_existing_destination_is_not_replaced(tmp_path, rng):
    _, package = package_of(tmp_path, llama_tensors(rng, **LAYER), quantize="f16")
    for to, name in (("safetensors", "there"), ("gguf", "there.gguf")):
        target = tmp_path / name
        target.write_text("mine", encoding="utf-8")
        with pytest.raises(StoreError, match="exists already"):
            export(package, target, to=to)
        assert target.read_text(encoding="utf-8") == "mine"
        with pytest.raises(StoreError, match=r"is not a .*, so it is not replaced"):
            export(package, target, to=to, overwrite=True)
        assert target.read_text(encoding="utf-8") == "mine"
    with pytest.raises(UsageError, match="`dtype` is only for safetensors"):
        export(package, tmp_path / "out.gguf", to="gguf", dtype="f16")


def test_a_checkpoint_is_replaced_on_request_but_never_the_package_itself(tmp_path, rng):
    _, package = package_of(tmp_path, llama_tensors(rng, **LAYER), quantize="f16")
    for name in ("folder", "file.gguf"):
        export(package, tmp_path / name)
        leftover = tmp_path / name / "leftover"
        if name == "folder":
            leftover.touch()
        assert export(package, tmp_path / name, overwrite=True).tensors
        assert not leftover.exists()
    (package / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(StoreError, match="holds the package itself"):
        export(package, package, overwrite=True)


def test_the_ending_of_the_file_chooses_gguf_unless_the_kind_is_stated(tmp_path, rng):
    _, package = package_of(tmp_path, llama_tensors(rng, **LAYER), quantize="f16")
    assert export(package, tmp_path / "out.GGUF").kind == "gguf"
    assert export(package, tmp_path / "out").kind == "safetensors"
    folder = export(package, tmp_path / "odd.gguf", to="safetensors", shard_size="1MiB")
    assert folder.kind == "safetensors"
