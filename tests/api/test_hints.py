"""Which hints a backend follows, and what is said of those that it does not."""

from __future__ import annotations

import pytest
from rdrr._backends import _int8, _unhonoured
from rdrr_format.errors import DeviceError
from rdrr_manifests.models import KernelHints


def _hints(**stated: str) -> KernelHints:
    return KernelHints.model_validate(stated)


@pytest.mark.parametrize(
    ("stated", "int8"),
    [
        ({}, None),
        ({"q4kMatmul": "fused_q4k"}, False),
        ({"q4kMatmul": "fused_q4k_int8"}, True),
        ({"computePrecision": "f32"}, False),
        ({"computePrecision": "f32", "q4kMatmul": "fused_q4k_int8"}, False),
    ],
)
def test_a_stated_precision_excludes_int8_activations(stated, int8):
    assert _int8(_hints(**stated)) is int8


@pytest.mark.parametrize("backend", ["wgpu", "cpu"])
def test_auto_is_no_hint(backend):
    assert _unhonoured(_hints(), backend, strict=True) == ()


@pytest.mark.parametrize(
    ("backend", "followed", "ignored"),
    [
        ("wgpu", {"q4kMatmul": "fused_q4k"}, {"q4kMatmul": "dequant_f16"}),
        ("wgpu", {"computePrecision": "f32"}, {"computePrecision": "f16"}),
        ("cpu", {"q4kMatmul": "dequant_f32"}, {"q4kMatmul": "fused_q4k"}),
    ],
)
def test_a_hint_that_is_not_followed_is_named_and_under_strict_refused(backend, followed, ignored):
    assert _unhonoured(_hints(**followed), backend, strict=True) == ()
    (line,) = _unhonoured(_hints(**ignored), backend, strict=False)
    key, value = next(iter(ignored.items()))
    assert f"{key}={value} is not followed" in line
    with pytest.raises(DeviceError, match=f"{key}={value}"):
        _unhonoured(_hints(**ignored), backend, strict=True)


def test_int8_that_a_precision_excludes_is_said():
    stated = {"computePrecision": "f32", "q4kMatmul": "fused_q4k_int8"}
    (line,) = _unhonoured(_hints(**stated), "wgpu", strict=False)
    assert "excludes int8" in line
