"""Converting a GGUF gives the same package as converting the checkpoint it was made from."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from rdrr_converter.architectures import find_architecture
from rdrr_converter.checkpoint.magnitudes import measure
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_converter.gguf import source as gguf
from rdrr_converter.gguf.file import read_gguf
from rdrr_converter.reading.model import read_model
from rdrr_converter.sources import open_source
from rdrr_format.errors import ConversionError, RdrrError, SourceError
from rdrr_manifests.package import open_package
from support.checkpoints import make_checkpoint, write_tokenizer
from support.gguf_files import ALIKE, LIKE_LLAMA_CPP, write_gguf
from support.safetensor_files import llama_tensors, to_stored, write_llama
from support.tiny_models import MORE_MODELS, TINY_MODELS, covering

SMALL = {"num_hidden_layers": 2}
LAYER = {"num_hidden_layers": 1}
USUAL = ("gpt_oss-288", "phimoe-320", "olmo-384", "gemma2-256")
"""test_export_gguf.py has others; Llamas are read in most tests of this folder."""


@pytest.fixture
def llama(tmp_path, rng):
    """Return a small checkpoint."""
    return write_llama(tmp_path / "llama", llama_tensors(rng, **LAYER), **LAYER)


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def payloads(folder):
    """Return the bytes of every tensor by name."""
    package = open_package(folder)
    return {name: bytes(package.read(name)) for name in package.manifest.tensors}


@pytest.mark.parametrize("tiny", covering(TINY_MODELS + MORE_MODELS, USUAL))
def test_a_gguf_gives_the_package_of_its_checkpoint(tiny, tmp_path, rng):
    settings = (LAYER if tiny.model_type in ALIKE else SMALL) | LIKE_LLAMA_CPP.get(
        tiny.model_type, {}
    )
    checkpoint = make_checkpoint(tiny, tmp_path / "model", rng, **settings)
    gguf = write_gguf(checkpoint, tmp_path / "model.gguf")
    convert(checkpoint, tmp_path / "a")
    convert(gguf, tmp_path / "b")
    ours, theirs = manifest_of(tmp_path / "b"), manifest_of(tmp_path / "a")
    stated = ("modelId", "architecture", "inference", "tensors", "eos_token_id", "conversion")
    for key in (*stated, "moeConfig"):
        assert ours.get(key) == theirs.get(key), key
    assert (ours["metadata"]["sourceFormat"], theirs["metadata"]["sourceFormat"]) == (
        "gguf",
        "safetensors",
    )
    expected, stored = payloads(tmp_path / "a"), payloads(tmp_path / "b")
    for name, content in expected.items():
        if name.endswith("norm.weight"):  # Gemma's have had 1 added and taken away
            values = [np.frombuffer(each, np.float32) for each in (content, stored[name])]
            np.testing.assert_allclose(*values, rtol=0, atol=2**-22)
        else:
            assert stored[name] == content, name


def test_tensors_are_named_with_the_path_of_their_file(tmp_path, llama):
    path = write_gguf(llama, tmp_path / "m.gguf")
    tensors = open_source(path).tensors
    assert {tensor.where for tensor in tensors.values()} == {
        f"{path}, tensor {name}" for name in tensors
    }


def test_rows_of_query_and_key_projections_are_put_in_order(tmp_path, llama):
    source = open_source(write_gguf(llama, tmp_path / "m.gguf"))
    original = open_source(llama)
    for part, is_moved in (("q_proj", True), ("k_proj", True), ("v_proj", False)):
        name = f"model.layers.0.self_attn.{part}.weight"
        wanted, tensor = original.tensors[name].read(), source.tensors[name]
        np.testing.assert_array_equal(tensor.read(), wanted)
        np.testing.assert_array_equal(tensor.read(slice(3, 70), slice(5, 9)), wanted[3:70, 5:9])
        np.testing.assert_array_equal(tensor.read_transposed(slice(2, 4)), wanted[:, 2:4].T)
        assert measure(tensor).largest == np.abs(wanted).max()
        as_stored = (tensor.native().astype(np.uint32) << 16).view(np.float32)
        assert np.array_equal(as_stored, wanted) != is_moved


def test_biases_of_query_and_key_projections_are_put_in_order(tmp_path, rng):
    tensors = llama_tensors(rng)
    for layer in range(2):
        for part, size in (("q", 256), ("k", 128), ("v", 128), ("o", 256)):
            values = to_stored(rng.standard_normal(size, np.float32), "F32")
            tensors[f"model.layers.{layer}.self_attn.{part}_proj.bias"] = values
    folder = write_llama(tmp_path / "m", tensors, attention_bias=True)
    ours, theirs = open_source(write_gguf(folder, tmp_path / "m.gguf")), open_source(folder)
    biases = [name for name in theirs.tensors if name.endswith("bias")]
    assert len(biases) == 8
    for name in biases:
        np.testing.assert_array_equal(ours.tensors[name].read(), theirs.tensors[name].read())


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        {
            "rope_type": "llama3",
            "factor": 5.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 6.0,
            "original_max_position_embeddings": 640,
        },
    ],
    ids=["linear", "yarn", "llama3", "llama3 unlike any published"],
)
def test_scaled_rope_is_recovered(tmp_path, rng, scaling):
    rope = {"rope_theta": 500000.0, **scaling}
    folder = write_llama(tmp_path / "m", llama_tensors(rng, **LAYER), rope_parameters=rope, **LAYER)
    gguf = write_gguf(folder, tmp_path / "m.gguf")
    convert(folder, tmp_path / "a", quantize="f16")
    convert(gguf, tmp_path / "b", quantize="f16")
    ours, theirs = (manifest_of(tmp_path / name)["inference"]["rope"] for name in "ba")
    assert ours == theirs
    assert ours["ropeScalingType"] == scaling["rope_type"]


def test_unknown_rope_scaling_is_refused(tmp_path, llama):
    rope = {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = json.loads((llama / "config.json").read_text(encoding="utf-8"))
    (llama / "config.json").write_text(
        json.dumps({**config, "rope_parameters": rope}), encoding="utf-8"
    )
    gguf = write_gguf(llama, tmp_path / "m.gguf")
    assert open_source(gguf).config["rope_scaling"]["factor"] == 8.0
    # Another base makes the same divisors mean other wavelengths.
    write_gguf(llama, gguf, metadata={"llama.rope.freq_base": 100.0})
    with pytest.raises(ConversionError, match="unknown rope scaling"):
        open_source(gguf)


def test_defaults_that_llama_cpp_assumes_are_filled_in(tmp_path, llama):
    keys = ("attention.key_length", "rope.freq_base", "attention.head_count_kv")
    gguf = write_gguf(llama, tmp_path / "m.gguf", metadata={f"llama.{key}": None for key in keys})
    config = open_source(gguf).config
    assert (config["head_dim"], config["rope_theta"]) == (64, 10000.0)
    assert config["num_key_value_heads"] == 4  # as many as query heads
    with pytest.raises(SourceError, match=r"k_proj\.weight: wrong shape"):
        convert(gguf, tmp_path / "out")


def test_a_split_gguf_is_read_as_one(tmp_path, llama):
    write_gguf(llama, tmp_path / "m.gguf", split=5)
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert len(parts) == 3
    source = open_source(parts[0])
    original = open_source(llama)
    assert set(source.tensors) == set(original.tensors)
    for name, tensor in original.tensors.items():
        np.testing.assert_array_equal(source.tensors[name].read(), tensor.read())
    assert set(open_source(tmp_path).tensors) == set(original.tensors)
    parts[1].unlink()
    with pytest.raises(SourceError, match=rf"part .* missing .*{parts[1].name}"):
        open_source(parts[0])


def test_a_directory_with_one_gguf_is_read_like_that_gguf(tmp_path, llama):
    folder = tmp_path / "models"
    folder.mkdir()
    first = write_gguf(llama, folder / "one.gguf")
    assert open_source(folder).path == first
    shutil.copy(first, folder / "two.gguf")
    with pytest.raises(SourceError, match=r"found one\.gguf, two\.gguf.*name one.*one\.gguf"):
        open_source(folder)


def test_the_error_of_an_unknown_architecture_lists_the_known_ones(tmp_path, llama):
    gguf = write_gguf(llama, tmp_path / "m.gguf")
    content = gguf.read_bytes()
    assert open_source(gguf).config["hidden_size"] == 256
    # The name of the architecture is also part of every key; only its first occurrence is the
    # value.
    gguf.write_bytes(content.replace(b"llama", b"lemma", 1))
    with pytest.raises(ConversionError, match=r"expected llama, .*phi3.*, found lemma"):
        open_source(gguf)


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"llama.embedding_length": None}, SourceError, r"embedding_length.*found nothing"),
        ({"llama.block_count": None}, SourceError, "block_count.*found nothing"),
        ({"llama.block_count": 2**31}, SourceError, r"block_count.*from 1 to 12, found 2147483648"),
        ({"llama.attention.key_length": "64"}, SourceError, "key_length"),
        ({"llama.rope.dimension_count": [64, 32]}, ConversionError, "dimension_count"),
        ({"llama.rope.freq_base": float("inf")}, SourceError, "freq_base.*positive number"),
        ({"llama.rope.scaling.type": [1, 2]}, ConversionError, "this type of rope scaling"),
        ({"llama.attention.head_count": "many"}, SourceError, "head_count.*found many"),
        ({"llama.expert_count": 8}, SourceError, r"missing.*block_sparse_moe\.gate"),
        ({"llama.expert_count": "8"}, SourceError, "expert_count"),
        ({"llama.feed_forward_length": [512, 256]}, ConversionError, "different sizes"),
        ({"llama.rope.scaling.type": "longrope"}, SourceError, "short_factor"),
        ({"llama.embedding_length": 512}, SourceError, "wrong shape"),
    ],
)
def test_metadata_that_cannot_be_used_is_named(tmp_path, llama, metadata, error, message):
    gguf = write_gguf(llama, tmp_path / "m.gguf", metadata=metadata)
    with pytest.raises(error, match=message):
        convert(gguf, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    good = {"llama.feed_forward_length": [512, 512]}
    convert(write_gguf(llama, gguf, metadata=good), tmp_path / "out", dry_run=True)


def test_metadata_of_any_type_is_used_or_refused(tmp_path, rng, llama, monkeypatch):
    """Metadata is untrusted: no value may lead to anything but a conversion or a clear error."""
    write_tokenizer(llama)
    path = write_gguf(llama, tmp_path / "m.gguf")
    whole = read_gguf(path)
    values = ["x", "", 0, 1, 2**31, 0.0, 1.5, float("nan"), True, ["a"], [1, 2], [0.5], [True], []]
    keys = [key for key in whole.metadata if key != "general.architecture"]
    refused = 0
    for key in keys:
        spoiled = {**whole.metadata, key: values[rng.integers(len(values))]}
        changed = replace(whole, metadata=spoiled)
        monkeypatch.setattr(gguf, "read_gguf", lambda _, found=changed: found)
        try:
            source = open_source(path)
            read_model(source, find_architecture(source.config))
        except RdrrError:
            refused += 1
    assert 0 < refused < len(keys)


def test_bytes_of_any_value_are_read_or_refused(tmp_path, rng, llama):
    path = write_gguf(llama, tmp_path / "m.gguf")
    whole = path.read_bytes()
    end = min(tensor.offset for tensor in read_gguf(path).tensors.values())
    refused = 0
    for _ in range(100):
        spoiled = bytearray(whole)
        spoiled[rng.integers(8, end)] = rng.integers(256)
        path.write_bytes(spoiled)
        try:
            open_source(path)
        except RdrrError:
            refused += 1
    assert 0 < refused < 100


def test_blocks_of_stacks_are_copied_part_by_part(tmp_path, rng):
    """Experts of a layer, and Phi-3's projections, are one tensor each in a GGUF."""
    for tiny in MORE_MODELS:
        if tiny.model_type not in ("mixtral", "phi3"):
            continue
        checkpoint = make_checkpoint(tiny, tmp_path / tiny.name, rng, **LAYER)
        gguf = write_gguf(checkpoint, tmp_path / f"{tiny.name}.gguf", "Q8_0")
        result = convert(gguf, tmp_path / f"{tiny.name}-out", quantize="q8_0")
        copied = {tensor.name for tensor in result.plan.tensors if tensor.is_copied}
        assert copied == {
            tensor.name for tensor in result.plan.tensors if tensor.role not in ("norm", "router")
        }
        direct = convert(checkpoint, tmp_path / f"{tiny.name}-direct", quantize="q8_0")
        assert direct.total_size == result.total_size
        found, expected = (payloads(tmp_path / f"{tiny.name}-{kind}") for kind in ("out", "direct"))
        assert found == expected


def test_experts_of_the_oldest_files_are_tensors_of_their_own(tmp_path, rng):
    tiny = next(one for one in MORE_MODELS if one.model_type == "mixtral")
    checkpoint = make_checkpoint(tiny, tmp_path / "model", rng, **SMALL)
    stacked = open_source(write_gguf(checkpoint, tmp_path / "m.gguf"))
    alone = open_source(write_gguf(checkpoint, tmp_path / "n.gguf", stack=False))
    name = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
    assert name in alone.tensors
    assert name not in stacked.tensors
    models = [read_model(source, find_architecture(source.config)) for source in (stacked, alone)]
    for theirs, ours in zip(*(model.tensors for model in models), strict=True):
        assert ours.name == theirs.name
        np.testing.assert_array_equal(ours.source.read(), theirs.source.read())


def test_a_sparsemixer_whose_margin_no_gguf_states_is_not_exported(tmp_path, rng):
    tiny = next(model for model in MORE_MODELS if model.model_type == "phimoe")
    for noise, name in ((0.01, "published"), (0.3, "other")):
        folder = tmp_path / name
        make_checkpoint(tiny, folder / "model", rng, **LAYER, router_jitter_noise=noise)
        convert(folder / "model", folder / "package", quantize="f16")
    result = export(tmp_path / "published/package", tmp_path / "m.gguf", to="gguf")
    assert any("LayerNorm" in note for note in result.notes)
    with pytest.raises(ConversionError, match="margin"):
        export(tmp_path / "other/package", tmp_path / "n.gguf", to="gguf")


def test_longrope_with_one_kind_of_factors_is_refused(tmp_path, rng):
    tiny = next(model for model in MORE_MODELS if model.model_type == "phi3")
    checkpoint = make_checkpoint(tiny, tmp_path / "model", rng, **SMALL)
    gguf = write_gguf(checkpoint, tmp_path / "m.gguf")
    assert open_source(gguf).config["rope_scaling"]["type"] == "longrope"
    name = b"rope_factors_short.weight"
    gguf.write_bytes(gguf.read_bytes().replace(name, b"rope_factors_other.weight"))
    with pytest.raises(ConversionError, match="longrope needs short and long"):
        open_source(gguf)


YARN = {
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 4.0,
    "llama.rope.scaling.original_context_length": 32,
}
LINEAR = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}


@pytest.mark.parametrize(
    ("key", "value", "harmless", "beside"),
    [
        ("attention.causal", False, True, {}),
        ("rope.scaling.attn_factor", 1.3, 1.0, {}),
        ("rope.scaling.attn_factor", 1.3, 1.0, LINEAR),
        ("rope.scaling.yarn_attn_factor", 1.3, 1.0, YARN),
        ("rope.scaling.yarn_beta_fast", 16.0, 32.0, YARN),
        ("rope.scaling.yarn_beta_slow", 2.0, 1.0, YARN),
        ("rope.scaling.yarn_ext_factor", 0.5, 1.0, YARN),
        ("attention.max_alibi_bias", 8.0, 0.0, {}),
        ("attention.shared_kv_layers", 1, 0, {}),
        ("expert_group_count", 4, 1, {}),
        ("logit_scale", 0.5, 1.0, {}),
        ("some.new_key", True, None, {}),
    ],
)
def test_metadata_that_nothing_reads_is_refused_by_name(
    tmp_path, llama, key, value, harmless, beside
):
    name = f"llama.{key}"
    path = write_gguf(llama, tmp_path / "m.gguf", metadata={**beside, name: value})
    with pytest.raises(ConversionError, match=rf"llama does not use.*{name}: .*allow_unread="):
        convert(path, tmp_path / "out", dry_run=True)
    allowed = convert(path, tmp_path / "out", dry_run=True, allow_unread=(name,))
    assert f"{name} is ignored, as `allow_unread` says" in allowed.notes
    write_gguf(llama, path, metadata={**beside, name: harmless})
    convert(path, tmp_path / "out", dry_run=True)


def test_factors_of_yarn_are_used_where_llama_cpp_uses_them(tmp_path, llama):
    stated = {"attn_factor": 1.3, "yarn_log_multiplier": 0.0}
    metadata = {**YARN, **{f"llama.rope.scaling.{key}": value for key, value in stated.items()}}
    scaling = open_source(write_gguf(llama, tmp_path / "m.gguf", metadata=metadata)).config
    factor = scaling["rope_scaling"]["attention_factor"]
    assert factor == pytest.approx(1.3 * (0.1 * np.log(4.0) + 1.0))


@pytest.mark.parametrize("window", [24, 0, None])
def test_a_window_that_llama_cpp_ignores_is_obeyed_and_noted(tmp_path, llama, window):
    """Mistral's window: `build_attn_inp_kv` of llama.cpp's graph of Llama has no window."""
    path = write_gguf(
        llama, tmp_path / "m.gguf", metadata={"llama.attention.sliding_window": window}
    )
    result = convert(path, tmp_path / "out")
    noted = [note for note in result.notes if "llama.cpp ignores it for this architecture" in note]
    assert len(noted) == bool(window)
    assert not window or "a sliding window of 24 tokens" in noted[0]
    stated = manifest_of(tmp_path / "out")
    assert stated["inference"]["attention"]["slidingWindow"] == (window or None)


@pytest.mark.parametrize("layers", [2, "every other"])
def test_layers_with_a_window_that_are_no_list_of_flags_are_refused(tmp_path, llama, layers):
    keys = {"attention.sliding_window": 24, "attention.sliding_window_pattern": layers}
    path = write_gguf(
        llama, tmp_path / "m.gguf", metadata={f"llama.{key}": v for key, v in keys.items()}
    )
    with pytest.raises(SourceError, match=r"sliding_window_pattern.*a flag for each layer"):
        convert(path, tmp_path / "out")
