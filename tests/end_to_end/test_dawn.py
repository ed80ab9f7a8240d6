"""Models on Dawn give the ids that they give on wgpu."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import rdrr as front
from rdrr_device.adapters import list_adapters
from support.dawn_device import driver_of_dawn, why_no_dawn

PROMPT = "And it came to pass in those days"
TOKENS = 16
EXACT = {"kernel_hints": {"computePrecision": "f32"}, "kv_dtype": "f32"}


@pytest.fixture(scope="module", autouse=True)
def dawn_has_its_driver() -> Iterator[None]:
    why = why_no_dawn()
    if why is not None:
        pytest.skip(why)
    list_adapters()  # wgpu keeps the system's driver
    with driver_of_dawn():
        yield


def results(folder: Path, webgpu: str) -> tuple[str, np.ndarray]:
    """Return the text that a model generates through an implementation, and its logits."""
    with front.load(folder, webgpu=webgpu, backend="wgpu", context=64, **EXACT) as model:
        assert ("through Dawn" in model.reason) == (webgpu == "dawn")
        text = model.generate(PROMPT, max_tokens=TOKENS).read()
        return text, model.logits(model.encode(PROMPT))


@pytest.mark.thorough
def test_a_column_major_model_with_joined_matrices_continues_a_text_with_the_same_ids(made_package):
    text, logits = results(made_package, "dawn")
    expected, reference = results(made_package, "wgpu")
    assert text == expected
    np.testing.assert_allclose(logits, reference, atol=1e-5 * np.abs(reference).max())
