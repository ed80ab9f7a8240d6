"""`bench_decode.py`: its arithmetic, and a whole run of a tiny shape without llama.cpp."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import bench_decode
import numpy as np
import pytest
from _runners import rates
from bench_decode import Times
from support.commands import ROOT, environment
from support.deadlines import HANGS


def test_a_rate_is_given_as_median_least_and_most_of_tokens_per_second():
    assert bench_decode.as_list(rates(100, [1.0, 4.0, 2.0])) == [50.0, 25.0, 100.0]


def test_ratios_are_to_the_fastest_peer_in_each_figure():
    def row(prefill, decode):
        return {"prefill": rates(1, [1 / prefill]), "decode": rates(1, [1 / decode])}

    rows = {"ours": row(300, 30), "peer a": row(100, 20), "peer b": row(200, 10)}
    assert bench_decode.ratios(rows, {"ours"}) == {"ours": {"prefill": 1.5, "decode": 1.5}}
    assert bench_decode.ratios({"ours": rows["ours"]}, {"ours"}) == {}


class Recorder:
    """A runner that records its calls in a log shared by all runners."""

    load_seconds = 0.0

    def __init__(self, name, log):
        self.name, self.log = name, log

    def prefill(self, ids):
        self.log.append((self.name, "prefill", len(ids)))
        return 1.0

    def decode(self, ids, length):
        self.log.append((self.name, f"decode at {length}", len(ids)))
        return 1.0


def test_runners_alternate_and_the_long_context_is_filled_before_it_is_measured():
    log = []
    options = SimpleNamespace(prompt=10, tokens=4, context=30, repeat=2, warm=0)
    runners = [Recorder("a", log), Recorder("b", log)]
    times = bench_decode.measure(runners, options, list(range(100)))
    calls = [("prefill", 10), ("decode at 10", 4)]
    warm_up = [(name, *call) for name in "ab" for call in calls]
    near = [(name, *call) for _ in range(2) for name in "ab" for call in calls]
    fill = [(name, "prefill", 30) for name in "ab"]
    far = [(name, "decode at 30", 4) for _ in range(2) for name in "ab"]
    assert log == warm_up + near + fill + far
    assert times["a"] == Times([1.0] * 2, [1.0] * 2, [1.0] * 2)


def test_the_logits_of_all_runners_are_compared_with_those_of_the_first(rng):
    first = rng.normal(size=50).astype(np.float32)
    runners = [
        SimpleNamespace(name=name, logits=lambda _, factor=factor: factor * first)
        for name, factor in (("first", 1.0), ("same", 1.0), ("other", 1.5))
    ]
    rates = bench_decode.agreement(runners, [1, 2])
    assert rates == {"same": 0.0, "other": pytest.approx(0.5, rel=1e-6)}


@pytest.mark.parametrize(("exchanged", "distance"), [(3, 0.0), (4, 1.0)])
def test_the_median_over_prompts_leaves_out_a_few_exchanged_experts(rng, exchanged, distance):
    rows = rng.normal(size=(12, 50)).astype(np.float32)
    first = SimpleNamespace(name="first", logits=lambda ids: rows[len(ids)])
    other = SimpleNamespace(
        name="other", logits=lambda ids: rows[len(ids)] * (2 if len(ids) > 11 - exchanged else 1)
    )
    assert bench_decode.AGREEMENT_PROMPTS == 7
    rates = bench_decode.agreement([first, other], [1] * 11)
    assert rates == {"other": pytest.approx(distance, rel=1e-6)}


def test_unknown_layouts_and_implementations_are_wrong_usage(capsys):
    assert bench_decode.parse(["--layouts", "row,column"]).layouts == "row,column"
    with pytest.raises(SystemExit) as stopped:
        bench_decode.parse(["--layouts", "row,diagonal"])
    assert stopped.value.code == 2
    assert "diagonal" in capsys.readouterr().err
    assert bench_decode.parse(["--webgpu", "wgpu,dawn"]).webgpu == "wgpu,dawn"
    with pytest.raises(SystemExit):
        bench_decode.parse(["--webgpu", "wgpu,metal"])
    assert "metal" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_run_without_llama_cpp_gives_the_reason_and_ends_with_one_json_object(tmp_path):
    sizes = {"prompt": 8, "tokens": 3, "repeat": 2, "warm": 0, "context": 12}
    words = [f"--{name}={value}" for name, value in sizes.items()]
    words += ["--shape=tiny", f"--peer={tmp_path / 'none.tgz'}"]
    done = subprocess.run(
        [sys.executable, "benchmarks/bench_decode.py", *words],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    assert document["peer"].startswith("not run: no libllama")
    assert document["ratios"] == {}
    rates = document["rates"]["rdrr, row"]
    for key in ("prefill", "decode", "far"):
        middle, least, most = rates[key]
        assert 0 < least <= middle <= most
