"""`rdrr bench`: its JSON has the documented keys, its counts are exact, wrong usage is refused."""

from __future__ import annotations

from dataclasses import fields

import pytest
from rdrr.bench.speed import Speed
from support.commands import ROOT, error_line, rdrr

SHORT = ("--prompt-tokens", 4, "--tokens", 5, "--repeat", 1)


def test_the_figures_of_a_package_have_stable_keys_and_exact_work(random_folder):
    done = rdrr("bench", random_folder, *SHORT, "--interval", 4, "--json")
    answer = done.json()
    assert list(answer) == [field_.name for field_ in fields(Speed)]
    assert answer["schema"] == 1
    assert set(answer["ms_per_token"]) == {"p50", "p95", "p99"}
    work = answer["work_per_token"]
    # One pass is submitted so that the GPU starts, then two, then the last one; one more submission
    # reads the ids of all four.
    assert (work["submits"], work["maps"], work["bytes_read"]) == (1.0, 0.25, 4.0)
    assert work["bytes_written"] == work["buffer_creates"] == work["bind_group_creates"] == 0
    assert answer["peak_gpu_bytes"] > answer["weights_bytes"] + answer["kv_bytes"]
    assert answer["gpu_decode_ms_per_token"] > 0
    host = answer["host_ms_per_token"]
    assert host["upload"] == 0 < host["encode"] < host["encode"] + host["download"]
    assert answer["decode_tokens_per_second"]["median"] > 0


@pytest.mark.thorough
def test_a_hint_that_is_not_honoured_is_reported(random_folder):
    words = ("bench", random_folder, *SHORT, "--kernel-hint")
    answer = rdrr(*words, "f16Matmul=gemv", "--json").json()
    assert answer["warnings"] == []
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


@pytest.mark.parametrize(("place", "has_rows"), [("kept", True), ("shared", False)])
def test_a_package_is_measured_as_it_is_loaded(made_package, place, has_rows):
    words = ("bench", made_package, *SHORT, "--kernel-hint", "q4kMatmul=fused_q4k_int8", "--json")
    answer = rdrr(*words, "--rounded-weights", place).json()
    stored = sum(path.stat().st_size for path in made_package.glob("*.bin"))
    assert (answer["weights_bytes"] > 1.5 * stored) is has_rows


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("kernels",), "bench_kernels.py"),
        (("kernels", "--shape", "llama-1b"), "bench_kernels.py"),
        (("external", "--llama-cpp", "x", "--gguf", "y"), "bench_llama_cpp.py"),
        (("{folder}", "--mode", "all"), "bench_modes.py"),
        (("{folder}", "--submit", "per-op"), "bench_modes.py"),
        (("{folder}", "--sampler", "cpu"), "bench_modes.py"),
        (("{folder}", "--ablation", "all"), "bench_ablations.py"),
        (("{folder}", "--package", "fused=x"), "bench_ablations.py"),
        (("{folder}", "--shape", "llama-1b"), "bench_kernels.py"),
        (("{folder}", "--llama-cpp", "x"), "bench_llama_cpp.py"),
        (("{folder}", "--gguf", "x"), "bench_llama_cpp.py"),
    ],
    ids=" ".join,
)
def test_a_moved_option_is_refused_and_its_script_is_named(random_folder, words, named):
    done = rdrr("bench", *(str(random_folder) if word == "{folder}" else word for word in words))
    assert f"benchmarks/{named}" in error_line(done, 2)
    assert (ROOT / "benchmarks" / named).is_file()


def test_the_help_lists_no_option_that_has_moved():
    text = rdrr("bench", "--help").out
    assert "--interval" in text
    assert not [
        option for option in ("--mode", "--ablation", "--gguf", "--shape") if option in text
    ]


def test_wrong_usage_is_one_line_and_exit_code_2(random_folder):
    done = rdrr("bench", random_folder, "--prompt-tokens", 400, "--tokens", 400)
    assert "no room" in error_line(done, 2)
