"""`rdrr profile`: times that add up, and the trace."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from typing import Any

import pytest
from support.commands import error_line, rdrr
from support.packages import (
    HEAD_DIM,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    VOCAB,
    llama_manifest,
    write_random_package,
)
from support.seeds import generator_of

PROMPT, TOKENS = 11, 3


@dataclass(frozen=True)
class Measured:
    where: str
    output: dict[str, Any]
    events: list[dict[str, Any]]

    def kernels(self, step: str) -> dict[str, dict[str, Any]]:
        (found,) = [one for one in self.output["steps"] if one["step"] == step]
        return {one["kernel"]: one for one in found["kernels"]}


@pytest.fixture(scope="module")
def measured(request, tmp_path_factory) -> Measured:
    folder = tmp_path_factory.mktemp("profile")
    package = write_random_package(folder / "package", llama_manifest(), generator_of(request))
    trace = folder / "trace.json"
    words = ("--prompt-tokens", PROMPT, "--tokens", TOKENS, "--trace", trace, "--json")
    done = rdrr("profile", package.where, *words)
    assert done.code == 0, done.err
    return Measured(str(package.where), done.json(), json.loads(trace.read_text())["traceEvents"])


@pytest.mark.thorough
def test_the_times_of_the_kernels_add_up_to_the_step(measured):
    prefill, decode = measured.output["steps"]
    assert (prefill["step"], prefill["token_rows"]) == ("prefill", PROMPT)
    assert (decode["step"], decode["runs"], decode["token_rows"]) == ("decode", TOKENS, 1)
    for step in (prefill, decode):
        assert min(step["gpu_ms"], step["encode_ms"], step["sync_ms"]) > 0
        total = sum(one["total_ms"] for one in step["kernels"])
        assert total == pytest.approx(step["runs"] * step["gpu_ms_in_single_passes"])
        assert sum(one["share"] for one in step["kernels"]) == pytest.approx(1)
        assert all(one["total_ms"] > 0 for one in step["kernels"])
        assert all(one["calls"] == one["ops"] * step["runs"] for one in step["kernels"])


@pytest.mark.thorough
def test_every_dispatch_that_serves_an_op_is_measured(measured):
    chosen = rdrr("explain", measured.where, "--json").json()["choices"]
    for step in ("prefill", "decode"):
        ops = [one["kernel"] for one in chosen if one["step"] == step]
        found = measured.kernels(step)
        assert {kernel: found[kernel]["ops"] for kernel in found} == {
            kernel: ops.count(kernel) for kernel in ops
        }


def test_bandwidth_counts_the_bytes_that_must_be_moved(measured):
    decode = measured.kernels("decode")
    (head,) = [one for kernel, one in decode.items() if kernel.endswith(".best")]
    assert head["bytes"] == TOKENS * VOCAB * HIDDEN * 2
    (attention,) = [one for kernel, one in decode.items() if kernel.startswith("attention")]
    slots = sum(PROMPT + index + 1 + 1 for index in range(TOKENS))  # all read, and one written
    assert attention["bytes"] == LAYERS * slots * 2 * KV_HEADS * HEAD_DIM * 2
    copied = measured.output["copy"]["gigabytes_per_second"]
    for one in decode.values():
        speed = one["bytes"] / one["total_ms"] / 1e6
        assert one["gigabytes_per_second"] == pytest.approx(speed)
        assert one["share_of_copy"] == pytest.approx(speed / copied)


def test_the_trace_has_a_track_for_the_host_and_one_for_the_gpu(measured):
    tracks = {
        one["tid"]: one["args"]["name"]
        for one in measured.events
        if one["ph"] == "M" and one["name"] == "thread_name"
    }
    assert [name.split(":")[0] for name in tracks.values()] == ["CPU", "GPU"]
    spans = [one for one in measured.events if one["ph"] == "X"]
    assert len(spans) + 3 == len(measured.events)
    assert {one["tid"] for one in spans} == set(tracks)
    for one in spans:
        assert {"name", "cat", "pid", "tid", "ts", "dur"} <= set(one)
        assert one["ts"] >= 0
        assert one["dur"] >= 0
    for tid in tracks:
        track = [one for one in spans if one["tid"] == tid]
        ends = [one["ts"] + one["dur"] for one in track]
        begins = [one["ts"] for one in track]
        # A viewer nests spans that overlap; nothing here does, but for the rounding to ns.
        assert all(end <= begin + 0.01 for end, begin in zip(ends, begins[1:], strict=False))
    names = [one["name"] for one in spans]
    assert names.count("l1.down_proj") == TOKENS + measured.output["steps"][0]["runs"]


def test_no_gpu_work_ends_after_the_host_has_seen_its_end(measured):
    spans = [one for one in measured.events if one["ph"] == "X"]
    waits = [one["ts"] + one["dur"] for one in spans if one["cat"] == "sync"]
    wholes = [one["ts"] + one["dur"] for one in spans if one["cat"] == "one pass"]
    assert wholes
    assert all(whole <= seen + 0.01 for whole, seen in zip(wholes, waits[::2], strict=True))


@pytest.mark.thorough
def test_the_parts_of_a_pass_in_one_dispatch_are_measured(measured):
    words = ("--prompt-tokens", 2, "--tokens", 1, "--executor", "persistent")
    assert "one_dispatch" not in measured.output
    found = rdrr("profile", measured.where, *words, "--json").json()["one_dispatch"]
    assert found["workgroups"] == 1
    assert 0 < found["waits_ms"] < found["gpu_ms"]
    parts = {one["kernel"]: one["phases"] for one in found["parts"]}
    decode = {one["kernel"] for one in measured.output["steps"][1]["kernels"]}
    assert sum(parts.values()) == 1 + 5 * LAYERS + 1
    assert {one.partition(".")[0] for one in parts} <= {one.partition(".")[0] for one in decode}
    shown = rdrr("profile", measured.where, *words).out
    assert "waits alone" in shown


def test_a_trace_that_does_not_fit_on_the_disk_leaves_nothing(measured, tmp_path, monkeypatch):
    def refuse(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    trace = tmp_path / "trace.json"
    done = rdrr("profile", measured.where, "--prompt-tokens", 2, "--tokens", 1, "--trace", trace)
    assert done.code == 1
    assert f"error: {trace}: the disk is full" in error_line(done)
    assert list(tmp_path.iterdir()) == []


def test_a_trace_replaces_nothing_and_the_tokens_must_fit(measured, tmp_path):
    there = tmp_path / "trace.json"
    there.write_text("mine")
    refused = rdrr("profile", measured.where, "--trace", there)
    assert refused.code == 2
    assert "already exists" in error_line(refused)
    assert there.read_text() == "mine"
    refused = rdrr("profile", measured.where, "--prompt-tokens", 500, "--tokens", 13)
    assert refused.code == 2
    assert "500 + 13" in error_line(refused)
