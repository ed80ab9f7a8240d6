"""`bench_modes.py` and `bench_ablations.py`: counters, equal token ids, and wrong usage."""

from __future__ import annotations

import pytest
from support.commands import error_line
from support.scripts import script

SHORT = ("--prompt-tokens", 4, "--tokens", 5, "--repeat", 1)


@pytest.mark.thorough
def test_modes_generate_the_same_ids_and_their_counters_are_exact(random_folder):
    modes = "webllm,webllm+cache+interval,ours-x4"
    answer = script("bench_modes", random_folder, *SHORT, "--mode", modes).json()
    assert list(answer["modes"]) == modes.split(",")
    assert answer["same_ids"] is True
    fresh, cached, ours = answer["modes"].values()
    assert fresh["tokens"] == fresh["forwards"] == 4
    assert fresh["work"]["submits"] == fresh["work"]["dispatches"] + 4
    assert fresh["work"]["uniform_creates"] == fresh["work"]["dispatches"]
    assert (
        cached["work"]["uniform_hits"] + cached["work"]["uniform_creates"]
        == (cached["work"]["dispatches"])
    )
    assert (cached["readbacks"], ours["readbacks"]) == (2, 2)  # one of them after the prompt
    assert ours["work"]["submits"] == 5
    assert "webllm+cache+interval over webllm" in [ratio["name"] for ratio in answer["ratios"]]
    if answer["software"]:
        gated = [ratio for ratio in answer["ratios"] if ratio["gate"] is not None]
        assert {matrix["verdict"] for matrix in gated} == {"software-adapter: P not gated"}


@pytest.mark.thorough
def test_ablations_give_both_sides_and_the_reason_when_they_did_not_run(random_folder):
    names = "command-batching,kv-f16,kv-cache,gate-up-fusion,subgroup-gemv"
    answer = script("bench_ablations", random_folder, *SHORT, "--ablation", names).json()
    batching, cache_type, cache, fusion, subgroups = answer["ablations"]
    slow, fast = (side["work_per_token"] for side in batching["sides"])
    assert slow["submits"] == slow["dispatches"] + 1
    assert fast["submits"] == 2
    assert all(side["gpu_decode_ms_per_token"] > 0 for side in batching["sides"])
    assert batching["same_ids"] == cache["same_ids"] == 1.0
    wide, narrow = (side["kv_bytes"] for side in cache_type["sides"])
    assert wide == 2 * narrow
    assert [side["forwards"] for side in cache["sides"]] == [4, 4]
    assert (
        cache["sides"][0]["work_per_token"]["bytes_written"] > 0
    )  # the whole sequence is written for each token
    assert "no package fused is given" in fusion["not_run"]
    assert "no matrices stored in scalars" in subgroups["not_run"]


@pytest.mark.parametrize(
    ("name", "words", "line"),
    [
        ("bench_modes", ("--mode", "webgpu"), "unknown mode"),
        ("bench_modes", ("--kernel-hint", "f16Matmul"), "expected KEY=VALUE"),
        ("bench_modes", ("--prompt-tokens", 400, "--tokens", 400), "no room"),
        ("bench_ablations", ("--ablation", "magic"), "unknown ablation"),
        ("bench_ablations", ("--ablation", "all", "--package", "fused"), "expected NAME=PATH"),
    ],
)
def test_wrong_usage_is_reported_in_one_line_with_exit_code_2(random_folder, name, words, line):
    done = script(name, random_folder, *words)
    assert line in error_line(done, 2)


def test_a_run_of_one_token_has_nothing_to_decode_and_is_refused(random_folder):
    done = script("bench_modes", random_folder, "--tokens", 1)
    assert done.code == 2
    assert "must be at least 2" in done.err
