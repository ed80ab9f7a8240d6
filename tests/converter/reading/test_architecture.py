"""A refusal of an unknown architecture says what is missing of it, and names the nearest one."""

from __future__ import annotations

import json

import pytest
from rdrr_converter.convert import convert
from rdrr_converter.reading.architecture import nearest_architecture
from rdrr_converter.sources import open_source
from rdrr_format.errors import ConversionError, UsageError
from safetensors.numpy import load_file, save_file
from support.encoders import make_encoder, save_encoder
from support.safetensor_files import llama_tensors, to_stored, write_llama


def unknown(folder, **keys):
    """Rename the architecture of a checkpoint, and change keys of its configuration."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {
        "architectures": ["XenolithForCausalLM"],
        "model_type": "xenolith",
    }
    path.write_text(json.dumps(config | keys), encoding="utf-8")
    return folder


def test_it_names_unknown_tensors_and_unread_keys(tmp_path, rng):
    tensors = llama_tensors(rng)
    for layer in range(2):
        values = to_stored(rng.standard_normal((4, 4)), "F32")
        tensors[f"model.layers.{layer}.xenolith.in_proj.weight"] = values
    folder = unknown(write_llama(tmp_path / "m", tensors), xenolith_factor=16)
    with pytest.raises(ConversionError) as caught:
        convert(folder, tmp_path / "out", dry_run=True)
    line = caught.value.line()
    assert caught.value.found == "XenolithForCausalLM"
    assert "nearest that converts is " in line
    assert "no tensors model.layers.*.xenolith.in_proj.weight" in line
    assert "does not read xenolith_factor" in line
    assert len(line) < 600


def test_a_model_that_fits_is_offered_the_options_that_go_on(tmp_path, rng):
    folder = unknown(write_llama(tmp_path / "m", llama_tensors(rng)), xenolith_factor=16)
    with pytest.raises(ConversionError, match="to go on all the same, add arch=") as caught:
        convert(folder, tmp_path / "out", dry_run=True)
    assert caught.value.options["allow_unread"] == ("model_type", "xenolith_factor")
    assert convert(folder, tmp_path / "out", dry_run=True, **caught.value.options)


def test_a_misspelled_name_is_guessed(tmp_path, rng):
    folder = write_llama(tmp_path / "m", llama_tensors(rng))
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"architectures": ["LammaForCausalLM"]}
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ConversionError, match="did you mean llama"):
        convert(folder, tmp_path / "out", dry_run=True)
    with pytest.raises(UsageError, match=r"found lama.*did you mean llama\?"):
        convert(folder, tmp_path / "out", dry_run=True, arch="lama")


def test_the_nearest_has_the_most_tensors_in_common(tmp_path, rng):
    tensors = llama_tensors(rng)
    for layer in range(2):
        for part in ("q", "k"):
            norm = to_stored(rng.standard_normal(64), "F32")
            tensors[f"model.layers.{layer}.self_attn.{part}_norm.weight"] = norm
    source = open_source(unknown(write_llama(tmp_path / "m", tensors)))
    nearest = nearest_architecture(source)
    # Llama has no norms of queries and keys, Qwen3 has all of these tensors.
    assert nearest.unknown == ()
    assert nearest.rule.name != "llama"
    assert any("q_norm" in row.name for row in nearest.rule.tensors)


def test_a_known_architecture_is_not_compared(tmp_path, rng):
    folder = write_llama(tmp_path / "m", llama_tensors(rng))
    assert convert(folder, tmp_path / "out", dry_run=True).architecture == "llama"


def test_the_nearest_of_an_unknown_encoder_is_an_encoder_whatever_its_prefix(tmp_path, rng):
    save_encoder(make_encoder("bert", rng, "ForMaskedLM"), tmp_path / "m")
    tensors = load_file(tmp_path / "m/model.safetensors")
    renamed = {name.replace("bert.", "xenolith."): values for name, values in tensors.items()}
    save_file(renamed, tmp_path / "m/model.safetensors")
    with pytest.raises(ConversionError, match="the nearest that converts is bert, which"):
        convert(unknown(tmp_path / "m"), tmp_path / "out", dry_run=True)


def test_nothing_is_named_if_most_tensors_belong_to_no_architecture(tmp_path, rng):
    """An encoder of T5 was once said to be like granitemoehybrid."""
    save_encoder(make_encoder("bert", rng), tmp_path / "m")
    tensors = load_file(tmp_path / "m/model.safetensors")
    names = {f"encoder.block.{at}.layer.0.x{at}.weight": v for at, v in enumerate(tensors.values())}
    save_file(names, tmp_path / "m/model.safetensors")
    with pytest.raises(ConversionError, match="none that converts has most of its tensors"):
        convert(unknown(tmp_path / "m"), tmp_path / "out", dry_run=True)


@pytest.mark.parametrize(
    ("name", "keys", "reason"),
    [
        ("DebertaV2Model", {"model_type": "deberta-v2"}, "disentangled attention"),
    ],
)
def test_a_family_that_is_much_like_another_is_refused_with_the_reason(
    name, keys, reason, tmp_path, rng
):
    save_encoder(make_encoder("bert", rng), tmp_path / "m")
    convert(tmp_path / "m", tmp_path / "sound", dry_run=True)
    unknown(tmp_path / "m", architectures=[name], **keys)
    with pytest.raises(ConversionError, match=reason) as caught:
        convert(tmp_path / "m", tmp_path / "out", dry_run=True)
    assert "the nearest that converts" not in caught.value.line()
