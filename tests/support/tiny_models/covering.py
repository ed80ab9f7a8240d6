"""Few models that together have every op, every kind of value of its fields, and every pair of ops.

Compiling the shaders of all models takes too long for a run before each commit, so `make test` runs
these on the GPU, and `make test-all` all.
`tests/converter/architectures/test_tiny_models.py` checks the list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest
from _pytest.mark import ParameterSet
from support.tiny_models.model import TinyModel

COVERING = (
    "llama-576",
    "gemma3_text-384",
    "mixtral-256",
    "qwen3_5_moe_text-256",
    "gemma3n_text-256",
    "nemotron_h-320",
    "deepseek_v3-256",
    "llama4_text-256",
    "opt-512",
    "gpt_oss-288",
    "falcon_h1-256",
    "gemma4_text-320",
    "olmo-384",
    "gpt2-256",
    "phimoe-320",
    "lfm2-256",
    "falcon-256",
    "ministral3-256",
    "apertus-256",
    "gemma2-256",
    "ernie4_5_moe-256",
    "flex_olmo-256",
    "stablelm-256",
    "falcon_h1-320",
)
"""The forms that most people run, and then, chosen greedily, what they lack."""


def covering(models: Iterable[TinyModel], usual: Collection[str] = COVERING) -> list[ParameterSet]:
    """Return models as cases of a test, `thorough` but for those of the cover.

    Args:
        models: The models of the test.
        usual: Names of the models that `make test` runs.
    """
    return [
        pytest.param(tiny, id=tiny.name, marks=() if tiny.name in usual else pytest.mark.thorough)
        for tiny in models
    ]
