"""`bench_real.py`: its bounds on the figures, and a run on a tiny model without llama.cpp."""

from __future__ import annotations

import json

import bench_real
import numpy as np
import pytest
from bench_real import FEW, MANY, SINGLE, Recorded, Row, bounds
from rdrr.evaluate import Comparison, Perplexity
from support.checkpoints import write_tokenizer
from support.gguf_files import write_gguf
from support.safetensor_files import llama_tensors, write_llama


def row(model: str, passes: str, *, ratio: float, divergence: float, same: float = 0.999) -> Row:
    base = Perplexity(100, 1, 3.0)
    side = Perplexity(100, 1, 3.0 + float(np.log(ratio)))
    return Row(model, passes, Comparison(side, base, divergence, divergence, same, 0.0, 0.0))


def broken(*rows: Row) -> list[str]:
    return [bound.name for bound in bounds(rows) if not bound.holds]


def test_figures_within_their_bounds_break_none():
    assert not broken(
        row("rows", MANY, ratio=1.002, divergence=0.004),
        row("transposed, fused", MANY, ratio=0.998, divergence=0.005),
        row("F16", MANY, ratio=1.0001, divergence=1e-6),
        row("llama.cpp, CPU", MANY, ratio=1.01, divergence=0.004, same=0.9),
    )


def test_each_figure_beyond_its_bound_is_named():
    found = broken(
        row("rows", MANY, ratio=1.004, divergence=0.004),
        row("rows", SINGLE, ratio=1.0, divergence=0.004),
        row("transposed, fused", SINGLE, ratio=1.0, divergence=0.0053),
        row("F16", FEW, ratio=1.0003, divergence=1e-6, same=0.99),
        row("llama.cpp, CPU", MANY, ratio=1.0, divergence=0.0039),
    )
    assert found == [
        "rows, many tokens: change of perplexity",
        "rows, many tokens: divergence beside llama.cpp",
        "transposed, fused, one token: divergence beside rows",
        "F16, 8 tokens: change of perplexity",
        "F16, 8 tokens: same top token",
    ]


def test_logits_of_a_window_are_computed_once():
    class Model:
        package = encode = None

    calls = []
    recorded = Recorded(Model(), lambda ids: calls.append(ids) or np.zeros((len(ids), 3)))
    for ids in ([1, 2], [1, 2], [3]):
        assert len(recorded.logits(ids, stepwise=True)) == len(ids)
    assert calls == [[1, 2], [3]]


@pytest.mark.thorough
def test_every_package_is_compared_in_each_kind_of_pass(tmp_path, rng, capsys):
    folder = write_llama(tmp_path / "llama", llama_tensors(rng))
    write_tokenizer(folder)
    model = write_gguf(folder, tmp_path / "m.gguf", "Q4_1")
    text = tmp_path / "text"
    text.write_text("In the beginning was the word. " * 40, encoding="utf-8")
    words = ["--model", str(model), "--text", str(text), "--tokens", "24", "--window", "12"]
    assert bench_real.main([*words, "--llama-cpp", str(tmp_path / "nowhere")]) == 0
    printed = capsys.readouterr().out.splitlines()
    result = json.loads(printed[-1])
    kinds = {(one["model"], one["passes"]) for one in result["rows"]}
    assert kinds >= {(name, kind) for name in bench_real.PACKAGES for kind in (MANY, FEW, SINGLE)}
    assert set(result["not_run"]) == set(bench_real.PEERS)
    assert all(one["same_top"] > 0.9 for one in result["rows"])
