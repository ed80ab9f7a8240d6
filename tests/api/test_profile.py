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
    VOCAB,
    llama_manifest,
    write_random_package,
)
from support.seeds import generator_of

LAYERS, PROMPT, TOKENS = 1, 11, 3
SIZES = ("--prompt-tokens", PROMPT, "--tokens", TOKENS)


@dataclass(frozen=True)
class Measured:
    where: str
    output: dict[str, Any]
    events: list[dict[str, Any]]

    def kernels(self, step: str) -> dict[str, dict[str, Any]]:
        (profiled,) = [entry for entry in self.output["steps"] if entry["step"] == step]
        return {kernel["kernel"]: kernel for kernel in profiled["kernels"]}


@pytest.fixture(scope="module")
def measured(request, tmp_path_factory) -> Measured:
    folder = tmp_path_factory.mktemp("profile")
    package = write_random_package(
        folder / "package", llama_manifest("Q8_0", layers=LAYERS), generator_of(request)
    )
    trace = folder / "trace.json"
    words = (*SIZES, "--trace", trace, "--json")
    done = rdrr("profile", package.where, *words, code=0)
    return Measured(
        str(package.where),
        done.json(),
        json.loads(trace.read_text(encoding="utf-8"))["traceEvents"],
    )


@pytest.mark.thorough
def test_the_times_of_the_kernels_add_up_to_the_step(measured):
    prefill, decode = measured.output["steps"]
    assert (prefill["step"], prefill["token_rows"]) == ("prefill", PROMPT)
    assert (decode["step"], decode["runs"], decode["token_rows"]) == ("decode", TOKENS, 1)
    for step in (prefill, decode):
        assert min(step["gpu_ms"], step["encode_ms"], step["sync_ms"]) > 0
        total = sum(kernel["total_ms"] for kernel in step["kernels"])
        assert total == pytest.approx(step["runs"] * step["gpu_ms_in_single_passes"])
        assert sum(kernel["share"] for kernel in step["kernels"]) == pytest.approx(1)
        assert all(kernel["total_ms"] > 0 for kernel in step["kernels"])
        assert all(kernel["calls"] == kernel["ops"] * step["runs"] for kernel in step["kernels"])


@pytest.mark.thorough
def test_every_dispatch_that_serves_an_op_is_measured(measured):
    chosen = rdrr("explain", measured.where, "--json").json()["choices"]
    for step in ("prefill", "decode"):
        ops = [choice["kernel"] for choice in chosen if choice["step"] == step]
        kernels = measured.kernels(step)
        assert {kernel: kernels[kernel]["ops"] for kernel in kernels} == {
            kernel: ops.count(kernel) for kernel in ops
        }


@pytest.mark.thorough
def test_bandwidth_counts_the_bytes_that_must_be_moved(measured):
    decode = measured.kernels("decode")
    (head,) = [times for kernel, times in decode.items() if kernel.endswith(".best")]
    assert head["bytes"] == TOKENS * VOCAB * HIDDEN * 2
    (attention,) = [times for kernel, times in decode.items() if kernel.startswith("attention")]
    slots = sum(PROMPT + index + 1 + 1 for index in range(TOKENS))  # all read, and one written
    assert attention["bytes"] == LAYERS * slots * 2 * KV_HEADS * HEAD_DIM * 2
    copied = measured.output["copy"]["gigabytes_per_second"]
    for kernel_times in decode.values():
        speed = kernel_times["bytes"] / kernel_times["total_ms"] / 1e6
        assert kernel_times["gigabytes_per_second"] == pytest.approx(speed)
        assert kernel_times["share_of_copy"] == pytest.approx(speed / copied)


def test_the_trace_has_a_track_for_the_host_and_one_for_the_gpu(measured):
    tracks = {
        event["tid"]: event["args"]["name"]
        for event in measured.events
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    assert [name.split(":")[0] for name in tracks.values()] == ["CPU", "GPU"]
    spans = [event for event in measured.events if event["ph"] == "X"]
    assert len(spans) + 3 == len(measured.events)
    assert {span["tid"] for span in spans} == set(tracks)
    for span in spans:
        assert {"name", "cat", "pid", "tid", "ts", "dur"} <= set(span)
        assert span["ts"] >= 0
        assert span["dur"] >= 0
    for tid in tracks:
        track = [span for span in spans if span["tid"] == tid]
        ends = [event["ts"] + event["dur"] for event in track]
        begins = [event["ts"] for event in track]
        # A viewer nests spans that overlap; nothing here does, but for the rounding to ns.
        assert all(end <= begin + 0.01 for end, begin in zip(ends, begins[1:], strict=False))
    names = [span["name"] for span in spans]
    assert names.count("l0.down_proj") == TOKENS + measured.output["steps"][0]["runs"]


def test_no_gpu_work_ends_after_the_host_has_seen_its_end(measured):
    spans = [event for event in measured.events if event["ph"] == "X"]
    waits = [span["ts"] + span["dur"] for span in spans if span["cat"] == "sync"]
    wholes = [span["ts"] + span["dur"] for span in spans if span["cat"] == "one pass"]
    assert wholes
    assert all(whole <= seen + 0.01 for whole, seen in zip(wholes, waits[::2], strict=True))


@pytest.mark.thorough
def test_the_parts_of_a_pass_in_one_dispatch_are_measured(measured):
    words = ("--prompt-tokens", 2, "--tokens", 1, "--executor", "persistent")
    assert "one_dispatch" not in measured.output
    one_dispatch = rdrr("profile", measured.where, *words, "--json").json()["one_dispatch"]
    assert one_dispatch["workgroups"] == 1
    assert 0 < one_dispatch["waits_ms"] < one_dispatch["gpu_ms"]
    parts = {part["kernel"]: part["phases"] for part in one_dispatch["parts"]}
    decode = {kernel["kernel"] for kernel in measured.output["steps"][1]["kernels"]}
    assert sum(parts.values()) == 1 + 5 * LAYERS + 1
    assert {part.partition(".")[0] for part in parts} <= {kind.partition(".")[0] for kind in decode}
    shown = rdrr("profile", measured.where, *words).out
    assert "waits alone" in shown


@pytest.mark.thorough
def test_a_trace_that_does_not_fit_on_the_disk_leaves_nothing(measured, tmp_path, monkeypatch):
    def refuse(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    trace = tmp_path / "trace.json"
    done = rdrr("profile", measured.where, *SIZES, "--trace", trace)
    assert f"error: {trace}: the disk is full" in error_line(done, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_trace_replaces_nothing_and_the_tokens_must_fit(measured, tmp_path):
    there = tmp_path / "trace.json"
    there.write_text("mine", encoding="utf-8")
    refused = rdrr("profile", measured.where, "--trace", there)
    assert "already exists" in error_line(refused, 2)
    assert there.read_text(encoding="utf-8") == "mine"
    refused = rdrr("profile", measured.where, "--prompt-tokens", 500, "--tokens", 13)
    assert "500 + 13" in error_line(refused, 2)
