"""What plans need to know of a device: as an adapter has it, and as a file describes it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rdrr_device.adapters import AdapterInfo
from rdrr_device.capabilities import (
    DEFAULT_LIMITS,
    Capabilities,
    MatrixShape,
    read_capabilities,
)
from rdrr_format.errors import FormatError

DESCRIBED = Capabilities(
    features=frozenset({"shader-f16", "subgroup"}),
    limits=DEFAULT_LIMITS | {"max-compute-workgroup-storage-size": 32_768},
    language=frozenset({"packed_4x8_integer_dot_product"}),
    subgroup_sizes=(32, 32),
    matrices=(MatrixShape(16, 16, 16, "f16", "f32"),),
    vendor="NVIDIA",
)


def read(**described: object) -> Capabilities:
    return read_capabilities(json.dumps(described), "device.json")


def test_capabilities_are_the_same_after_they_were_written_and_read():
    assert read(**DESCRIBED.as_dict()) == DESCRIBED


def test_the_list_of_adapters_is_a_description_of_its_first():
    adapter = {"name": "GPU", "capabilities": DESCRIBED.as_dict()}
    assert read(**adapter) == DESCRIBED
    assert read(adapters=[adapter, {"capabilities": {}}]) == DESCRIBED


def test_what_a_description_leaves_out_has_webgpus_default():
    plain = read()
    assert plain == Capabilities()
    assert plain.max_binding == 128 << 20
    assert read(limits={"max-buffer-size": 1 << 20}).max_binding == 1 << 20


@pytest.mark.parametrize(
    ("described", "words"),
    [
        ({"features": ["subgroups"]}, "device.json.features"),
        ({"limits": {"maxBufferSize": 4}}, "device.json.limits"),
        ({"limits": {"max-buffer-size": 0}}, "positive"),
        ({"limits": {"max-buffer-size": "4"}}, "valid integer"),
        ({"matrices": [{"m": 16}]}, "device.json.matrices.0.n"),
        ({"software": 1}, "device.json.software"),
        ({"adapters": []}, "device.json.adapters"),
    ],
)
def test_a_description_that_plans_would_not_understand_is_refused(described, words):
    with pytest.raises(FormatError) as caught:
        read(**described)
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "null", "{" * 1000])
def test_a_text_that_is_no_description_is_refused(text):
    with pytest.raises(FormatError, match="capabilities of a device"):
        read_capabilities(text, "device.json")


def test_an_opened_device_can_do_what_its_adapter_says(device):
    assert device.capabilities == device.info.capabilities


def test_a_device_that_was_opened_without_a_feature_cannot_use_it(plain_device, device):
    assert "subgroup" in device.capabilities.features
    assert "subgroup" not in plain_device.capabilities.features
    without = plain_device.info.capabilities.without("subgroup", "shader-f16", "timestamp-query")
    assert plain_device.capabilities == without


def test_features_that_no_plan_asks_for_are_left_out():
    info = AdapterInfo(
        "Test GPU", "Vulkan", "DiscreteGPU", "", frozenset({"subgroup", "multiview"}), {}, False
    )
    assert info.capabilities == replace(
        Capabilities(features=frozenset({"subgroup"}), language=info.language), limits={}
    )
