"""`rdrr explain` says which kernel serves each step of a manifest's execution graph."""

from __future__ import annotations

import json

import pytest
import rdrr as api
from support.commands import EXAMPLE, rdrr


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explain") / "package"
    types = {"layers.1.self_attn.q_proj": "f16"}
    api.convert(EXAMPLE, folder, profile="doppler", tensor_types=types)
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def explained(folder, manifest):
    """Return the steps that are explained of a manifest without any other file."""
    path = folder / "alone.json"
    path.write_text(json.dumps(manifest), encoding="utf-8")
    return rdrr("explain", path, "--json").json()["execution_graph"]


def test_every_step_of_a_graph_is_served(tmp_path, manifest):
    steps = explained(tmp_path, manifest)
    graph = manifest["inference"]["execution"]
    stages = ("preLayer", "decode", "prefill", "postLayer")
    assert [entry["step"] for entry in steps] == [step[0] for of in stages for step in graph[of]]
    assert all(entry["served_by"] and entry["kernel"] and entry["entry"] for entry in steps)
    by_step = {(entry["stage"], entry["step"]): entry for entry in steps}
    # Attention takes the rope of decode with it, and prefill has a kernel for queries and keys.
    assert by_step["decode", "rope_q"]["served_by"] == by_step["decode", "attention"]["served_by"]
    for name in ("rope_q", "rope_k"):
        assert by_step["prefill", name]["served_by"] == ["norm_rope_store.f16"]
        assert by_step["prefill", name]["kernel"] == "rope.wgsl"
    types = {name.rpartition(".")[2] for name in by_step["prefill", "q_proj"]["served_by"]}
    assert types == {"q4_k", "f16"}, "a layer has another type, and so another kernel"


def test_steps_of_some_layers_unknown_steps_and_damaged_ones(tmp_path, manifest):
    changed = json.loads(json.dumps(manifest))
    graph = changed["inference"]["execution"]
    product = next(step for step in graph["prefill"] if step[0] == "q_proj")
    graph["prefill"] = [
        {"layers": [1], "steps": [product]},
        ["linear_attention", "rope"],
        ["q_proj", "no such kernel"],
        ["half a step"],
        7,
    ]
    steps = [line for line in explained(tmp_path, changed) if line["stage"] == "prefill"]
    assert [entry["step"] for entry in steps] == ["q_proj", "linear_attention", "q_proj"]
    only, unknown, unlisted = steps
    assert only["layers"] == [1]
    assert [name.rpartition(".")[2] for name in only["served_by"]] == ["f16"]
    assert (unknown["op"], unknown["served_by"]) == (None, [])
    assert (unlisted["kernel"], unlisted["entry"]) == (None, None)


def test_the_table_is_shown_and_only_where_there_is_a_graph(tmp_path, manifest):
    path = tmp_path / "alone.json"
    path.write_text(json.dumps(manifest), encoding="utf-8")
    assert "rmsnorm.wgsl:main" in rdrr("explain", path).out
    plain = json.loads(json.dumps(manifest))
    del plain["inference"]["execution"]
    path.write_text(json.dumps(plain), encoding="utf-8")
    done = rdrr("explain", path, code=0)
    assert "execution graph" not in done.out
