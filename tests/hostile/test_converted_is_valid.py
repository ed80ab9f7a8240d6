"""Every conversion gives a valid package or refuses the checkpoint before writing anything."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rdrr
from hypothesis import given
from hypothesis import strategies as st
from rdrr_format.errors import ConversionError, RdrrError
from support.examples import examples
from support.safetensor_files import LLAMA_CONFIG, llama_tensors, write_llama
from support.seeds import generator_of

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "vocab_size": 40,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CONFIG = {**LLAMA_CONFIG, **SIZES}
TOKENIZER = {
    "model": {"type": "BPE", "vocab": {f"t{number}": number for number in range(38)}, "merges": []}
}


@pytest.fixture(scope="module")
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a sound checkpoint, whose configuration the tests change."""
    folder = tmp_path_factory.mktemp("hostile") / "model"
    rng = generator_of(request)
    return write_llama(folder, llama_tensors(rng, **SIZES), **SIZES)


def write(checkpoint: Path, config: object, files: dict[str, object] | None = None) -> None:
    (checkpoint / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name, content in {"tokenizer.json": TOKENIZER, **(files or {})}.items():
        (checkpoint / name).write_text(json.dumps(content), encoding="utf-8")


def outcome(checkpoint: Path, **options: Any) -> RdrrError | None:
    """Convert; return None after checking a valid package, or the error if nothing was written."""
    out = checkpoint.parent / "out"
    try:
        rdrr.convert(checkpoint, out, **options)
        report = rdrr.validate(out, deep=True)
        assert report.ok(), [fault.line() for fault in report.errors]
    except RdrrError as error:
        refusal = error
    else:
        shutil.rmtree(out, ignore_errors=True)
        return None
    assert str(refusal).isprintable()
    assert [path.name for path in checkpoint.parent.iterdir()] == [checkpoint.name]
    return refusal


BEYOND = 10**30


@pytest.mark.parametrize(
    ("key", "inside", "outside"),
    [
        ("eos_token_id", 39, 40),
        ("eos_token_id", [0, 39], [0, 40]),
        ("eos_token_id", 0, -1),
        ("max_position_embeddings", 2**40, BEYOND),
        ("bos_token_id", 39, BEYOND),
        ("rope_theta", 1e6, 1e999),
        ("rms_norm_eps", 1e-6, 0.0),
    ],
)
def test_a_configuration_that_would_not_validate_is_refused_before_anything_is_written(
    checkpoint, key, inside, outside
):
    write(checkpoint, {**CONFIG, key: inside})
    assert outcome(checkpoint) is None
    write(checkpoint, {**CONFIG, key: outside})
    for dry_run in (False, True):
        assert isinstance(outcome(checkpoint, dry_run=dry_run), RdrrError)


def test_the_message_names_the_configuration_and_the_field(checkpoint):
    write(checkpoint, {**CONFIG, "eos_token_id": 41})
    error = outcome(checkpoint)
    assert isinstance(error, ConversionError)
    assert "config.json: the package would not be valid: eos_token_id" in str(error)


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from([0, 1, -1, 2, 3, 39, 40, 41, 64, 2**31, 2**53, 2**63, 10**19, BEYOND]),
        st.floats(),
        st.sampled_from(["", "silu", "gelu", "llama3", "yarn", "linear", "dynamic", "\x1b[2J"]),
        st.sampled_from(["mistral", "qwen2", "qwen3", "gemma", "gemma2", "granite", "smollm3"]),
        st.sampled_from(["full_attention", "sliding_attention", "fp8", "gptq", "awq"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["rope_type", "type", "factor", "rope_theta", "low_freq_factor",
                             "high_freq_factor", "original_max_position_embeddings",
                             "beta_fast", "beta_slow", "attention_factor", "mscale"]),
            inner, max_size=6),
    ),
    max_leaves=6,
)  # fmt: skip
KEYS = (
    *CONFIG, "head_dim", "rope_scaling", "rope_parameters", "attention_bias", "mlp_bias",
    "sliding_window", "layer_types", "pad_token_id", "text_config", "quantization_config",
    "attention_multiplier", "torch_dtype", "partial_rotary_factor",
)  # fmt: skip
GENERATION = st.dictionaries(
    st.sampled_from(["eos_token_id", "bos_token_id", "pad_token_id"]), VALUES, max_size=2
)
SETTINGS = st.dictionaries(
    st.sampled_from(["add_bos_token", "chat_template", "bos_token", "added_tokens_decoder"]),
    VALUES,
    max_size=2,
)


@st.composite
def tokenizers(draw: st.DrawFn) -> dict[str, Any]:
    tokenizer = copy.deepcopy(TOKENIZER)
    for key in draw(st.lists(st.sampled_from(["vocab", "model", "merges", "type"]), max_size=1)):
        target = tokenizer if key == "model" else tokenizer["model"]
        target[key] = draw(VALUES)
    if draw(st.booleans()):
        tokenizer["post_processor"] = draw(VALUES)
    return tokenizer


@pytest.fixture(scope="module")
def silent() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


@examples(200)
@given(
    st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3),
    st.sets(st.sampled_from(sorted(CONFIG)), max_size=1),
    st.fixed_dictionaries(
        {},
        optional={
            "generation_config.json": GENERATION,
            "tokenizer_config.json": SETTINGS,
            "tokenizer.json": tokenizers(),
        },
    ),
)
@pytest.mark.usefixtures("silent")
def test_any_configuration_gives_a_valid_package_or_none(checkpoint, changes, removed, files):
    config = {key: value for key, value in CONFIG.items() if key not in removed} | changes
    for name in ("generation_config.json", "tokenizer_config.json"):
        (checkpoint / name).unlink(missing_ok=True)
    write(checkpoint, config, files)
    outcome(checkpoint)
    write(checkpoint, CONFIG)
