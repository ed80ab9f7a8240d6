"""Mixture-of-experts models: groups of experts, from checkpoints with and without stacks."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_format.errors import SourceError
from rdrr_manifests.logical import RowReader, logical_tensors
from rdrr_manifests.package import open_package, validate
from safetensors.numpy import load_file, save_file
from support.checkpoints import make_checkpoint
from support.tiny_models import MORE_MODELS

MIXTRAL, QWEN2, QWEN3 = (
    next(tiny for tiny in MORE_MODELS if tiny.model_type == kind)
    for kind in ("mixtral", "qwen2_moe", "qwen3_moe")
)
GATES = ("gate_proj.weight", "w1.weight")
SMALL: dict[str, Any] = {"num_hidden_layers": 2, "intermediate_size": 256}


def manifest_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def stacked(folder: Path) -> None:
    """Rewrite a checkpoint with the stacked experts that transformers 5 has in memory."""
    path = folder / "model.safetensors"
    state = load_file(path)
    layers = {name.split(".experts.")[0] for name in state if ".experts." in name}
    for stem in layers:
        mixtral = stem.endswith("block_sparse_moe")
        gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
        new = stem.replace("block_sparse_moe", "mlp")
        count = sum(name.startswith(f"{stem}.experts.") for name in state) // 3

        def take(number: int, kind: str, stem: str = stem) -> np.ndarray:
            return state.pop(f"{stem}.experts.{number}.{kind}.weight")

        pairs = [np.concatenate([take(n, gate), take(n, up)]) for n in range(count)]
        state[f"{new}.experts.gate_up_proj"] = np.stack(pairs)
        state[f"{new}.experts.down_proj"] = np.stack([take(n, down) for n in range(count)])
        if mixtral:
            state[f"{new}.gate.weight"] = state.pop(f"{stem}.gate.weight")
    save_file(state, path)


@pytest.mark.parametrize("tiny", [MIXTRAL, QWEN2], ids=lambda tiny: tiny.model_type)
def test_stacked_experts_give_the_same_package(tmp_path, rng, tiny):
    folder = make_checkpoint(tiny, tmp_path / "model", rng, dtype="float32", **SMALL)
    convert(folder, tmp_path / "apart")
    stacked(folder)
    assert not any(".experts.0." in name for name in load_file(folder / "model.safetensors"))
    convert(folder, tmp_path / "stacked")
    for path in (tmp_path / "apart").iterdir():
        if path.name != "conversion-report.json":  # it names the source's tensors
            assert path.read_bytes() == (tmp_path / "stacked" / path.name).read_bytes()


def test_a_stack_with_a_wrong_shape_is_named(tmp_path, rng):
    folder = make_checkpoint(MIXTRAL, tmp_path / "model", rng, dtype="float32", **SMALL)
    stacked(folder)
    path = folder / "model.safetensors"
    state = load_file(path)
    name = "model.layers.1.mlp.experts.down_proj"
    state[name] = state[name][:3].copy()
    save_file(state, path)
    with pytest.raises(SourceError, match=r"layers\.1\.mlp\.experts\.down_proj.*\[4, 256, 256\]"):
        convert(folder, tmp_path / "out")


def test_every_expert_has_its_own_group(tmp_path, rng):
    folder = make_checkpoint(QWEN2, tmp_path / "model", rng, **SMALL)
    convert(folder, tmp_path / "out")
    assert validate(tmp_path / "out", deep=True).faults == ()
    manifest = manifest_of(tmp_path / "out")
    groups, moe = manifest["groups"], manifest["moeConfig"]
    assert [key for key in groups if ".expert." in key] == [f"layer.0.expert.{n}" for n in range(6)]
    expert = groups["layer.0.expert.4"]
    assert (expert["type"], expert["layerIndex"], expert["expertIndex"]) == ("expert", 0, 4)
    assert moe["expertTensors"]["0_4"] == expert["tensors"]
    assert moe["expertShardMap"]["0_4"] == expert["shards"]
    assert groups["layer.0.shared_expert"]["type"] == "shared"
    assert groups["layer.1"]["type"] == "layer"
    assert sum(len(group["tensors"]) for group in groups.values()) == len(manifest["tensors"])
    with open_package(tmp_path / "out") as package:
        for name, group in groups.items():
            data = b"".join(package.read(tensor).tobytes() for tensor in group["tensors"])
            assert hashlib.sha256(data).hexdigest() == group["hash"], name
            assert {manifest["tensors"][tensor]["group"] for tensor in group["tensors"]} == {name}
        sizes = [sum(package.tensor(n).size for n in e) for e in moe["expertTensors"].values()]
    assert moe["expertBytes"] == max(sizes)


def test_routers_stay_in_high_precision_and_experts_are_quantized(tmp_path, rng):
    folder = make_checkpoint(QWEN2, tmp_path / "model", rng, **SMALL)
    result = convert(folder, tmp_path / "out", transpose_weights=True)
    tensors = manifest_of(tmp_path / "out")["tensors"]
    by_role: dict[str, set[tuple[str, str | None]]] = {}
    for entry in tensors.values():
        by_role.setdefault(entry["role"], set()).add((entry["dtype"], entry.get("layout")))
    assert by_role["router"] == {("F32", None)}
    assert by_role["expert"] <= {("Q4_K_M", "column"), ("Q6_K", "column")}
    assert sum(entry["role"] == "router" for entry in tensors.values()) == 2
    assert result.plan.weights_transposed


def test_dense_models_have_no_groups(tmp_path, rng):
    dense = next(tiny for tiny in MORE_MODELS if tiny.model_type == "smollm3")
    convert(make_checkpoint(dense, tmp_path / "model", rng, **SMALL), tmp_path / "out")
    manifest = manifest_of(tmp_path / "out")
    assert manifest["moeConfig"] is None
    assert "groups" not in manifest


@pytest.mark.cover
@pytest.mark.parametrize("layout", ["row", "column"])
@pytest.mark.parametrize("tiny", [MIXTRAL, QWEN2], ids=lambda tiny: tiny.model_type)
def test_gate_and_up_of_each_expert_are_fused(tmp_path, rng, tiny, layout):
    options = {"q4k_layout": layout, "quantize": "q8_0"}
    folder = make_checkpoint(tiny, tmp_path / "model", rng, dtype="float32", **SMALL)
    convert(folder, tmp_path / "apart", **options)
    convert(folder, tmp_path / "fused", fuse_gate_up=True, **options)
    assert validate(tmp_path / "fused", deep=True).faults == ()
    with open_package(tmp_path / "apart") as apart, open_package(tmp_path / "fused") as fused:
        assert not any(name.endswith(GATES) for name in fused.manifest.tensors)
        stems = [name.rpartition(".")[0].rpartition(".")[0] for name in apart.manifest.tensors]
        gates = [name for name in apart.manifest.tensors if name.endswith(GATES)]
        assert len(fused.manifest.tensors) == len(apart.manifest.tensors) - len(gates)
        assert {f"{stem}.gate_up_proj.weight" for stem in stems if "mlp.experts.0" in stem} <= set(
            fused.manifest.tensors
        )
        logical = {tensor.name: tensor for tensor in logical_tensors(fused)}
        for tensor in logical_tensors(apart):
            theirs = RowReader(fused, logical[tensor.name]).values(0, tensor.rows)
            ours = RowReader(apart, tensor).values(0, tensor.rows)
            same = layout == "row" or tensor.rows % 32 == 0
            assert not same or np.array_equal(ours, theirs), tensor.name
    manifest = manifest_of(tmp_path / "fused")
    experts = manifest["moeConfig"]["expertTensors"].values()
    assert {len(tensors) for tensors in experts} == {2}


def test_dense_layers_and_shared_experts_are_fused_too(tmp_path, rng):
    folder = make_checkpoint(QWEN2, tmp_path / "model", rng, dtype="float32", **SMALL)
    result = convert(folder, tmp_path / "out", transpose_weights=True, fuse_gate_up=True)
    fused = [tensor.name for tensor in result.plan.tensors if "gate_up_proj" in tensor.name]
    assert "model.layers.0.mlp.shared_expert.gate_up_proj.weight" in fused
    assert "model.layers.1.mlp.gate_up_proj.weight" in fused
    assert result.plan.weights_transposed


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_experts", 10**9), ("num_experts_per_tok", 7), ("mlp_only_layers", 3)],
)
def test_impossible_expert_counts_are_refused_by_name(tmp_path, rng, key, value):
    folder = make_checkpoint(QWEN3, tmp_path / "model", rng, **SMALL)
    convert(folder, tmp_path / "control", dry_run=True)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["num_experts"] = config.pop("num_local_experts", config.get("num_experts"))
    path.write_text(json.dumps(config | {key: value}), encoding="utf-8")
    with pytest.raises(SourceError, match=r"expert|mlp_only_layers"):
        convert(folder, tmp_path / "out")
