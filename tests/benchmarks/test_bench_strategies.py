"""`bench_strategies.py` on the CPU backend."""

from __future__ import annotations

import bench_strategies as bench
import pytest
from published.strategies.uncached import Uncached
from rdrr_runtime.decode.autoregressive import Autoregressive
from rdrr_runtime.engine import Engine
from rdrr_runtime.reference.backend import CpuBackend
from support.packages import VOCAB, llama_manifest, write_random_package


def test_ids_that_repeat_themselves_are_recognized():
    assert bench.compare_ids([1, 2, 3, 4, 5], [1, 2, 9, 4, 5]) == {
        "agrees": 2 / 5,
        "longest_run": 1,
        "repeats": 0.0,
    }
    assert bench.compare_ids([7] * 8, [7] * 8) == {
        "agrees": 1.0,
        "longest_run": 8,
        "repeats": 1 - 1 / 5,
    }


def test_all_strategies_run_and_passes_are_timed(tmp_path, rng, monkeypatch, capsys):
    monkeypatch.setattr(bench, "PASSES", 1)
    manifest = llama_manifest() | {"mask_token_id": 9}
    package = write_random_package(tmp_path, manifest, rng)
    backend = CpuBackend(package, context=64)
    prompt = rng.integers(0, VOCAB, 6).tolist()
    strategies = {
        "ar": Autoregressive(),
        "uncached": Uncached(),
        **bench.wedlm_strategies(package, ["0.4"], 4),
    }
    measured = bench.measure_strategies(Engine(backend, (), VOCAB), strategies, prompt, 8, 1)
    assert list(measured) == ["ar", "uncached", "wedlm tau 0.4"]
    assert measured["ar"]["over_ar"] == measured["uncached"]["over_uncached"] == 1.0
    assert measured["uncached"]["agrees"] == measured["ar"]["tokens_per_forward"] == 1.0
    assert measured["ar"]["forwards"] == 7
    assert measured["wedlm tau 0.4"]["tokens_per_forward"] == pytest.approx(8 / 9, abs=0.2)
    passes = bench.measure_passes(backend, prompt, 1)
    assert list(passes) == ["decode", *map(str, bench.ROWS)]
    bench.show("plain", measured)
    bench.show_passes(passes)
    shown = capsys.readouterr().out
    assert "prompt: plain" in shown
    assert "pass of 16" in shown


def test_prompts_are_selected_by_name_or_given_as_texts():
    assert list(bench.select_prompts([], None)) == ["plain", "low-entropy"]
    prompts = bench.select_prompts(["low-entropy", "Once upon"], None)
    assert [one.tokens for one in prompts.values()] == [24, 128]
    assert prompts["Once upon"].text == "Once upon"
    assert {prompt.tokens for prompt in bench.select_prompts([], 7).values()} == {7}
