"""What `rdrr inspect` says of an architecture."""

from __future__ import annotations

from rdrr._survey import survey
from rdrr_manifests.models import Manifest
from support.manifests import valid_manifest

MOE = {
    "numExperts": 60,
    "numExpertsPerToken": 4,
    "expertIntermediateSize": 48,
    "sharedExpertIntermediateSize": 80,
}


def test_experts_masks_and_layers_without_rope_are_named_where_there_are_any():
    data = valid_manifest() | {"moeConfig": MOE, "mask_token_id": 7}
    data["inference"]["rope"]["unrotatedLayers"] = [1]
    facts = survey(Manifest.model_validate(data)).sections["architecture"]
    told = {
        "experts": 60,
        "experts of a token": 4,
        "expert size": 48,
        "shared expert size": 80,
        "layers without rope": 1,
        "mask token": 7,
    }
    assert {key: facts[key] for key in told} == told
    plain = survey(Manifest.model_validate(valid_manifest())).sections["architecture"]
    assert not plain.keys() & told.keys()
