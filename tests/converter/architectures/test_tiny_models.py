"""Checkpoints of every architecture, saved by transformers, are converted without any change."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_manifests.graph.ops import Graph
from rdrr_manifests.package import open_package, validate
from support.checkpoints import make_checkpoint, make_model, save_checkpoint
from support.older_names import (
    canonical_name,
    is_conv1d,
    joined_gates,
    joined_norms,
    split_projections,
)
from support.state_space_names import is_input_projection, split_inputs
from support.tiny_models import ALL_MODELS, COVERING, TINY_MODELS


@pytest.mark.thorough
@pytest.mark.parametrize("tiny", ALL_MODELS, ids=lambda tiny: tiny.name)
def test_every_weight_of_a_saved_model_is_in_the_package(tmp_path, rng, tiny):
    model = make_model(tiny, rng)
    save_checkpoint(model, tmp_path / "source", dtype="float32")
    result = convert(tmp_path / "source", tmp_path / "out", quantize="f32")
    assert result.notes == ()
    assert validate(tmp_path / "out", deep=True).faults == ()
    state = saved_tensors(tmp_path / "source/model.safetensors", model.config)
    state = {canonical_name(name): values for name, values in state.items()}
    with open_package(tmp_path / "out") as package:
        assert set(package.manifest.tensors) == set(state)
        for name, values in state.items():
            np.testing.assert_array_equal(package.dequantize(name), values, err_msg=name)
        assert package.is_runnable


def saved_tensors(path: Path, config: Any) -> dict[str, np.ndarray]:
    """Return the tensors that transformers saved, with stacks split."""
    from safetensors.numpy import load_file

    state = load_file(path)
    if config.model_type == "lfm3":
        state = joined_gates(state, config.num_attention_heads)
    for name in list(state):
        if is_input_projection(name):
            state |= split_inputs(name, state.pop(name), config)
            continue
        if "granitemoe" in config.model_type and name.endswith("put_linear.weight"):
            shared = "mlp.shared_expert" if getattr(config, "num_local_experts", 1) else "mlp"
            state |= granite_parts(name, state.pop(name), shared)
        if config.model_type == "llama4_text" and ".experts." in name:
            whole = np.swapaxes(state.pop(name), 1, 2)
            stem, _, kind = name.replace("feed_forward", "mlp").rpartition(".")
            kinds = ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,)
            for number, matrix in enumerate(whole):
                parts = zip(kinds, np.split(matrix, len(kinds)), strict=True)
                state |= {f"{stem}.{number}.{kind}.weight": part for kind, part in parts}
            continue
        if config.model_type == "gpt_oss" and ".experts." in name:
            state |= separate_experts(name, state.pop(name))
        stem, _, part = name.rpartition(".")[0].rpartition(".")
        if part == "qkv_proj":
            q, kv = (config.head_dim * n for n in (4, 2))
            parts = np.split(state.pop(name), [q, q + kv])
            state |= {
                f"{stem}.{kind}_proj.weight": one for kind, one in zip("qkv", parts, strict=True)
            }
        elif name.endswith((".experts.gate_up_proj", ".experts.down_proj")) and "mlp" not in name:
            stem, _, kind = name.rpartition(".")
            kinds = ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,)
            for number, whole in enumerate(state.pop(name)):
                parts = np.split(whole, len(kinds))
                state |= {
                    f"{stem}.{number}.{kind}.weight": one
                    for kind, one in zip(kinds, parts, strict=True)
                }
        elif part == "gate_up_proj":
            gate, up = np.split(state.pop(name), 2)
            state |= {f"{stem}.gate_proj.weight": gate, f"{stem}.up_proj.weight": up}
        elif part in ("c_attn", "query_key_value"):
            state |= split_projections(name, state.pop(name), config.num_attention_heads)
        elif part in ("in_proj_qkvz", "in_proj_ba"):
            state |= linear_projections(name, state.pop(name), config)
        elif is_conv1d(name):
            state[name] = state[name].T
    return joined_norms(state)


def linear_projections(name: str, whole: np.ndarray, config: Any) -> dict[str, np.ndarray]:
    """Return the projections of linear attention that Qwen 3 Next stores key head by key head."""
    share = config.linear_num_value_heads // config.linear_num_key_heads
    values = share * config.linear_value_head_dim
    key, is_gates = config.linear_key_head_dim, "in_proj_ba" in name
    sizes = [share, share] if is_gates else [key, key, values, values]
    heads = whole.reshape(config.linear_num_key_heads, sum(sizes), -1)
    parts = [
        word.reshape(-1, whole.shape[1]) for word in np.split(heads, np.cumsum(sizes)[:-1], axis=1)
    ]
    if not is_gates:
        parts = [np.concatenate(parts[:3]), parts[3]]
    stem = name.partition("in_proj_")[0]
    kinds = "ba" if is_gates else ("qkv", "z")
    return {f"{stem}in_proj_{kind}.weight": part for kind, part in zip(kinds, parts, strict=True)}


def granite_parts(name: str, values: np.ndarray, shared: str) -> dict[str, np.ndarray]:
    """Return the tensors of a package that Granite's mixtures store in one."""
    stem, part, _ = name.rsplit(".", 2)
    kinds = ("gate", "up") if part == "input_linear" else ("down",)
    parts = dict(zip(kinds, np.split(values, len(kinds), axis=-2), strict=True))
    if stem.endswith("shared_mlp"):
        changed = stem.replace("shared_mlp", shared)
        return {f"{changed}.{kind}_proj.weight": matrices for kind, matrices in parts.items()}
    return {
        f"{stem}.experts.{expert}.{kind}_proj.weight": matrix
        for kind, matrices in parts.items()
        for expert, matrix in enumerate(matrices)
    }


def separate_experts(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the tensors of a package that gpt-oss stores in one."""
    stem, _, part = name.rpartition(".")
    kinds = ("gate", "up") if part.startswith("gate_up") else ("down",)
    biases = {}
    for first, kind in enumerate(kinds):
        bias = values[..., first :: len(kinds)]
        if part.endswith("_bias"):
            biases[f"{stem}.{kind}_proj.bias"] = bias
            continue
        for expert, matrix in enumerate(bias):
            biases[f"{stem}.{expert}.{kind}_proj.weight"] = matrix.T
    return biases


@pytest.mark.thorough
def test_the_covering_models_have_every_part_of_a_graph(tmp_path, rng):
    parts = defaultdict(set)
    for index, tiny in enumerate(ALL_MODELS):
        folder = tmp_path / str(index)
        convert(make_checkpoint(tiny, folder / "model", rng), folder / "out", quantize="f32")
        with open_package(folder / "out") as package:
            parts[tiny.name].update(parts_of(package.graph))
    every = set().union(*parts.values())
    assert every - set().union(*(parts[name] for name in COVERING)) == set()
    assert every - set().union(*(parts[name] for name in COVERING[:10])) != set()  # the control


def parts_of(graph: Graph) -> Iterator[Hashable]:
    """Yield the pairs of ops in a graph, and each field of an op with the kind of its value."""
    values = {op.out for op in graph.ops}
    for op, following in pairwise([*graph.ops, None]):
        yield type(op), type(following)
        for field in fields(op):
            kind = kind_of(getattr(op, field.name))
            if kind not in values:  # names differ in each layer
                yield type(op), field.name, kind


def kind_of(value: object) -> Hashable:
    """Return a value as far as it decides what is computed, rather than a size."""
    if isinstance(value, tuple):
        return tuple, len(value) > 0
    is_neutral = value is None or isinstance(value, str) or value in (0, 1)
    return value if is_neutral else type(value)


@pytest.mark.thorough
def test_a_sharded_checkpoint_gives_the_same_package_as_a_single_file(tmp_path, rng):
    model = make_model(TINY_MODELS[0], rng)
    for name, size in (("one", None), ("many", 500_000)):
        save_checkpoint(model, tmp_path / name / "model", shard_bytes=size)
        convert(tmp_path / name / "model", tmp_path / f"{name}-out")
    assert (tmp_path / "many/model/model.safetensors.index.json").exists()
    for path in (tmp_path / "one-out").iterdir():
        assert path.read_bytes() == (tmp_path / "many-out" / path.name).read_bytes()


def test_older_configurations_give_the_same_manifest(tmp_path, rng):
    """The configuration is replaced by one as published in 2025."""
    tiny = TINY_MODELS[-1]
    model = make_model(tiny, rng, num_hidden_layers=2)
    folder = save_checkpoint(model, tmp_path / "model")
    convert(folder, tmp_path / "newer")
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    bases = config.pop("rope_parameters")
    assert set(bases) == {"full_attention", "sliding_attention"}
    config.pop("layer_types")
    config.pop("_sliding_window_pattern", None)
    config.update(
        rope_theta=bases["full_attention"]["rope_theta"],
        rope_local_base_freq=bases["sliding_attention"]["rope_theta"],
        rope_scaling=None,
        sliding_window_pattern=2,
        torch_dtype=config.pop("dtype"),
    )
    path.write_text(json.dumps(config), encoding="utf-8")
    convert(folder, tmp_path / "older")
    older, newer = (tmp_path / name / "manifest.json" for name in ("older", "newer"))
    assert older.read_text(encoding="utf-8") == newer.read_text(encoding="utf-8")
