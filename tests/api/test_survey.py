"""What `rdrr inspect` shows about an architecture and its memory."""

from __future__ import annotations

import pytest
from rdrr._survey import estimate_memory, survey
from rdrr_device import device
from rdrr_format.errors import DeviceError
from rdrr_manifests.models import Manifest
from rdrr_runtime.compile.choice.hints import Policy
from support.manifests import valid_manifest
from support.packages import llama_manifest, write_random_package

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
