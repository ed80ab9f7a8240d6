"""What `rdrr inspect` shows about an architecture and its memory."""

from __future__ import annotations

from math import prod

import pytest
from rdrr._survey import estimate_memory, survey
from rdrr_device import device
from rdrr_format.errors import DeviceError
from rdrr_manifests.models import Manifest
from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.images.sizes import most_patches, resized, token_count
from support.images import GEMMA3, GEMMA4, IDEFICS3, QWEN
from support.manifests import valid_manifest
from support.packages import llama_manifest, write_random_package
from support.towers import manifest_with_tower

MOE = {
    "numExperts": 60,
    "numExpertsPerToken": 4,
    "expertIntermediateSize": 48,
    "sharedExpertIntermediateSize": 80,
}


def test_experts_masks_and_layers_without_rope_are_listed_if_there_are_any():
    data = valid_manifest() | {"moeConfig": MOE, "mask_token_id": 7}
    data["inference"]["rope"]["unrotatedLayers"] = [1]
    facts = survey(Manifest.model_validate(data)).sections["architecture"]
    listed = {
        "experts": 60,
        "experts per token": 4,
        "expert size": 48,
        "shared expert size": 80,
        "layers without rope": 1,
        "mask token": 7,
    }
    assert {key: facts[key] for key in listed} == listed
    plain = survey(Manifest.model_validate(valid_manifest())).sections["architecture"]
    assert not plain.keys() & listed.keys()


def test_a_vision_tower_is_described_with_its_weights_and_its_largest_image():
    manifest = Manifest.model_validate(manifest_with_tower())
    facts = survey(manifest).sections["vision tower"]
    tensors = [t for name, t in manifest.tensors.items() if name.startswith("visual.")]
    assert facts["weights"] == sum(prod(tensor.shape) for tensor in tensors)
    assert facts["bytes"] == sum(tensor.size for tensor in tensors)
    assert (facts["layers"], facts["hidden size"], facts["patch size"]) == (2, 32, 16)
    # 128 x 128 pixels, of which 32 x 32 are a token.
    assert facts["most tokens of an image"] == 16
    assert "vision tower" not in survey(Manifest.model_validate(valid_manifest())).sections


@pytest.mark.parametrize(
    ("processor", "tokens", "patches"),
    [
        (QWEN, 10_000, 8 * 8),
        (QWEN, 5, 5 * 4),
        (GEMMA3, 10_000, 8 * 4),
        (GEMMA4, 10_000, 70 * 9),
    ],
)
def test_an_image_has_at_most_the_patches_of_its_recipe_and_of_the_context(
    processor, tokens, patches
):
    assert most_patches(processor, tokens) == patches


def test_no_image_of_tiles_has_more_patches_than_the_most():
    most = most_patches(IDEFICS3, 10_000)
    shapes = [(1000, 1000), (1000, 999), (400, 1000), (1000, 10), (10, 10)]
    taken = [token_count(IDEFICS3, resized(IDEFICS3, shape)) for shape in shapes]
    assert max(taken) * IDEFICS3.merge_size**2 <= most


def test_without_an_adapter_memory_is_estimated_unless_one_was_named(tmp_path, rng, monkeypatch):
    package = write_random_package(tmp_path, llama_manifest(), rng)
    with_adapter = estimate_memory(package, Policy(), 40)
    assert with_adapter.loaded is not None

    def none_there(adapter, **_):
        raise DeviceError("no adapter", found=adapter)

    monkeypatch.setattr(device, "open_device", none_there)
    without = estimate_memory(package, Policy(), 40)
    assert without.loaded is None
    assert without.total == with_adapter.total
    with pytest.raises(DeviceError, match="no adapter"):
        estimate_memory(package, Policy(), 40, "some adapter")
