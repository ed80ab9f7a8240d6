"""Packages made with the profile `doppler` give the same ids in DOPPLER as here.

DOPPLER 0.5.1 runs on Dawn in Node, on a software adapter. Without it the tests are skipped; the
nightly workflow always has it.
"""

from __future__ import annotations

import os

import pytest
import rdrr
from support.commands import EXAMPLE
from support.doppler import INSTALLED, generate_with_doppler
from support.greedy_ids import check_greedy_ids, encode
from support.random_models import MODELS, save_model

pytestmark = pytest.mark.thorough
PROMPT = "In the beginning God created"
TOKENS = 24


@pytest.fixture(scope="session", autouse=True)
def doppler() -> None:
    if not INSTALLED.exists():
        reason = "DOPPLER is not set up: run .ci/dawn"
        assert "CI" not in os.environ, reason
        pytest.skip(reason)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """The trained example, and random models with its tokenizer."""
    folder = tmp_path_factory.mktemp("doppler")
    return {"small-llama": EXAMPLE} | {
        name: save_model(name, folder / name, tokenizer_from=EXAMPLE) for name in MODELS
    }


@pytest.mark.parametrize("quantize", ["q4_k_m", "f16"])
@pytest.mark.parametrize("name", ["small-llama", *MODELS])
def test_doppler_generates_our_ids(checkpoints, tmp_path, name, quantize):
    package = tmp_path / "package"
    rdrr.convert(checkpoints[name], package, profile="doppler", quantize=quantize)
    assert rdrr.validate(package, deep=True, strict=True, profile="doppler").ok()
    check_same_ids(package)


def test_doppler_generates_our_ids_from_the_mix_with_q6_k(tmp_path):
    package = tmp_path / "package"
    types = {"embed": "q6_k", r"layers\.[25]\..*(v_proj|down_proj)": "q6_k"}
    rdrr.convert(EXAMPLE, package, profile="doppler", tensor_types=types)
    stored = {tensor.dtype for tensor in rdrr.open_package(package).manifest.tensors.values()}
    assert "Q6_K" in stored
    check_same_ids(package)


def check_same_ids(package):
    theirs = generate_with_doppler(package, PROMPT, TOKENS)
    assert theirs.prompt == encode(package, PROMPT)
    assert len(theirs.ids) == TOKENS
    check_greedy_ids(package, theirs.prompt, theirs.ids)
