"""Counts in a configuration are checked before anything is built of that many parts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rdrr_converter.architectures.config import MAX_LAYERS, Config
from rdrr_converter.convert import convert
from rdrr_converter.reading import matching
from rdrr_format.errors import SourceError
from support.costs import MIB, refused
from support.safetensor_files import llama_tensors, write_llama, write_safetensors

MANY = 10**7
"""Large enough to be seen in the memory and the time of a refusal, without using up a machine."""

SIZES = {"hidden_size": 64, "intermediate_size": 96}
MIXTURE = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
STABLELM = {"model_type": "stablelm", "architectures": ["StableLmForCausalLM"]}


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    folder = write_llama(tmp_path / "model", llama_tensors(rng, **SIZES), **SIZES)
    convert(folder, tmp_path / "out", dry_run=True, workers=1)  # the control
    return folder


def refuse(folder: Path, words: str, **config: object) -> None:
    """Check that the checkpoint with some other values is refused, cheaply."""
    path = folder / "config.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text(encoding="utf-8")), **config}), encoding="utf-8"
    )
    out = folder.parent / "out"
    refused(SourceError, words, 4 * MIB, lambda: convert(folder, out, dry_run=True, workers=1))


@pytest.mark.parametrize("count", [MAX_LAYERS + 1, MANY, 10**30])
def test_more_layers_than_any_model_has_are_refused(folder, count):
    refuse(folder, f"expected at most {MAX_LAYERS}, found {count}", num_hidden_layers=count)


def test_more_layers_than_tensors_are_refused(folder):
    refuse(folder, "at most 21, the number of tensors", num_hidden_layers=MAX_LAYERS)
    assert Config({"num_hidden_layers": MAX_LAYERS}, {}, "here").layers == MAX_LAYERS


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("vocab_size", r"expected \[10000000, 64\], found \[320, 64\]"),
        ("intermediate_size", r"expected \[10000000, 64\], found \[96, 64\]"),
        ("num_attention_heads", "a multiple of 10000000 heads"),
        ("num_key_value_heads", "a divisor of 4 heads"),
        ("head_dim", r"expected \[40000000, 64\]"),
    ],
)
def test_a_size_that_the_tensors_do_not_have_is_refused(folder, key, words):
    refuse(folder, words, **{key: MANY})


@pytest.mark.parametrize("count", [MANY, 10**30])
def test_more_experts_than_rows_are_refused(folder, count):
    refuse(folder, f"experts cannot be used .*found {count}", **MIXTURE, num_local_experts=count)


def test_rows_without_values_do_not_count(folder, rng):
    tensors = llama_tensors(rng, **SIZES)
    tensors["model.layers.0.block_sparse_moe.gate.weight"] = np.empty((1 << 57, 0), np.float32)
    write_safetensors(folder / "model.safetensors", tensors)
    refuse(folder, "expected at most 320, found 10000000", **MIXTURE, num_local_experts=MANY)


def test_missing_tensors_are_counted_up_to_a_bound(folder, monkeypatch):
    monkeypatch.setattr(matching, "_MOST_MISSING", 100)
    refuse(folder, "100 or more tensors are missing", **MIXTURE, num_local_experts=90)


def test_rows_that_are_tensors_are_named_only_as_far_as_there_are_tensors(folder, rng):
    tensors = llama_tensors(rng, **SIZES)
    del tensors["model.layers.0.self_attn.q_proj.weight"]
    row = "model.layers.0.self_attn.q_layernorm.norms.{}.weight"
    tensors[row.format(0)] = np.ones(16, np.uint16)
    write_safetensors(folder / "model.safetensors", tensors)
    heads = {"num_attention_heads": MANY, "num_key_value_heads": 2, "head_dim": 16}
    words = f"missing .*expected {row.format(1)}, found {row.format(0)}"
    refuse(folder, words, **STABLELM, **heads, qk_layernorm=True)
