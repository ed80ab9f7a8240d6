"""`rdrr bench`: its JSON has the stated keys, its counts are exact, and wrong usage is said."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from rdrr.bench.speed import Speed
from support.commands import error_line, rdrr
from support.packages import llama_manifest, write_random_package

SHORT = ("--prompt-tokens", 4, "--tokens", 5, "--repeat", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("bench")
    write_random_package(made, llama_manifest(), np.random.default_rng())
    return made


def test_the_figures_of_a_package_have_stable_keys_and_exact_work(folder):
    done = rdrr("bench", folder, *SHORT, "--interval", 4, "--json")
    found = done.json()
    assert list(found) == [one.name for one in fields(Speed)]
    assert found["schema"] == 1
    assert set(found["ms_per_token"]) == {"p50", "p95", "p99"}
    work = found["work_per_token"]
    # Passes go two at a time, and the ids of all four are read in one submission more.
    assert (work["submits"], work["maps"], work["bytes_read"]) == (0.75, 0.25, 4.0)
    assert work["bytes_written"] == work["buffer_creates"] == work["bind_group_creates"] == 0
    assert found["peak_gpu_bytes"] > found["weights_bytes"] + found["kv_bytes"]
    assert found["gpu_decode_ms_per_token"] > 0
    host = found["host_ms_per_token"]
    assert host["upload"] == 0 < host["encode"] < host["encode"] + host["download"]
    assert found["decode_tokens_per_second"]["median"] > 0


def test_a_hint_that_is_not_followed_is_said(folder):
    words = ("bench", folder, *SHORT, "--kernel-hint")
    found = rdrr(*words, "f16Matmul=gemv", "--json").json()
    assert found["warnings"] == []
    other = rdrr(
        *words,
        "attentionDecode=streaming",
        "--kernel-hint",
        "computePrecision=f16",
        "--kernel-hint",
        "q4kMatmul=fused_q4k_int8",
        "--json",
    ).json()
    assert any("is not honoured" in line for line in other["warnings"])


def test_modes_take_turns_with_the_same_ids_and_say_what_they_did(folder):
    modes = "webllm,webllm+cache+interval,ours-x4"
    found = rdrr("bench", folder, *SHORT, "--mode", modes, "--json").json()
    assert list(found["modes"]) == modes.split(",")
    assert found["same_ids"] is True
    fresh, cached, ours = found["modes"].values()
    assert fresh["tokens"] == fresh["forwards"] == 4
    assert fresh["work"]["submits"] == fresh["work"]["dispatches"] + 4
    assert fresh["work"]["uniform_creates"] == fresh["work"]["dispatches"]
    assert (
        cached["work"]["uniform_hits"] + cached["work"]["uniform_creates"]
        == (cached["work"]["dispatches"])
    )
    assert (cached["readbacks"], ours["readbacks"]) == (2, 2)  # the prompt's is one of them
    assert ours["work"]["submits"] == 5
    assert "webllm+cache+interval over webllm" in [one["name"] for one in found["ratios"]]
    if found["software"]:
        gated = [one for one in found["ratios"] if one["gate"] is not None]
        assert {one["verdict"] for one in gated} == {"software-adapter: P not gated"}


def test_ablations_state_both_sides_and_say_what_did_not_run(folder):
    names = "command-batching,kv-f16,kv-cache,gate-up-fusion,subgroup-gemv"
    found = rdrr("bench", folder, *SHORT, "--ablation", names, "--json").json()
    batching, cache_type, cache, fusion, subgroups = found["ablations"]
    slow, fast = (side["work_per_token"] for side in batching["sides"])
    assert slow["submits"] == slow["dispatches"] + 1
    assert fast["submits"] == 2
    assert all(side["gpu_decode_ms_per_token"] > 0 for side in batching["sides"])
    assert batching["same_ids"] == cache["same_ids"] == 1.0
    wide, narrow = (side["kv_bytes"] for side in cache_type["sides"])
    assert wide == 2 * narrow
    assert [side["forwards"] for side in cache["sides"]] == [4, 4]
    assert cache["sides"][0]["work_per_token"]["bytes_written"] > 0  # the text, again and again
    assert "no package fused" in fusion["not_run"]
    assert "no matrices in scalars" in subgroups["not_run"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--mode", "webgpu"), "unknown mode"),
        (("--submit", "per-op"), "belong to --mode"),
        (("--ablation", "magic"), "unknown ablation"),
        (("--ablation", "all", "--mode", "all"), "two benchmarks"),
        (("--ablation", "all", "--package", "fused"), "not a named package"),
        (("--prompt-tokens", 400, "--tokens", 400), "no room"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(folder, words, said):
    done = rdrr("bench", folder, *words)
    assert done.code == 2
    assert said in error_line(done)


def test_pairs_of_kernels_are_compared_and_say_what_was_published():
    found = rdrr("bench", "kernels", "--repeat", 1, "--json").json()
    names = [one["name"].partition(":")[0] for one in found["ratios"]]
    assert {"tiled-matmul", "f16-weights", "int4-zero-points", "flash-attention"} <= set(names)
    assert all(one["median"] > 0 for one in found["ratios"])


def test_what_is_missing_for_llama_cpp_is_said_and_no_error():
    done = rdrr("bench", "external", "--json")
    found = done.json()
    assert done.code == 0
    assert found["runners"] == {}
    assert found["not_run"] == {
        "llama.cpp, GPU": "no --llama-cpp given; no --gguf given",
        "llama.cpp, CPU": "no --llama-cpp given; no --gguf given",
        "rdrr": "no --package given",
    }


def test_libraries_that_are_none_are_said_and_ours_runs_all_the_same(folder, tmp_path):
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    words = ("--llama-cpp", tmp_path, "--gguf", model, "--package", f"ours={folder}")
    found = rdrr("bench", "external", *SHORT, *words, "--json").json()
    assert list(found["runners"]) == ["rdrr"]
    assert "no libllama" in found["not_run"]["llama.cpp, GPU"]
    assert found["runners"]["rdrr"]["decode_tokens_per_second"]["median"] > 0
