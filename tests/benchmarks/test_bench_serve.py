"""`bench_serve.py` on a tiny model."""

from __future__ import annotations

import json
from argparse import Namespace

import bench_serve
import pytest


def test_prompts_share_as_many_ids_as_asked_for():
    first, second = (bench_serve.prompts(20, 1000, seed, shared=100) for seed in (1, 2))
    for text, other in zip(first, second, strict=True):
        length = min(100, len(text) - 1, len(other) - 1)
        assert text[:length] == other[:length]
        assert text[100:] != other[100:] or len(text) <= 101
    apart = [prompts[0] for prompts in (bench_serve.prompts(1, 1000, seed) for seed in (1, 2))]
    assert apart[0][:64] != apart[1][:64]


def test_batches_have_the_prompts_that_the_clients_send():
    options = Namespace(texts=3, shared=0)
    batches = bench_serve.batches(2, options, 1000)
    assert [len(batch) for batch in batches] == [2, 2, 2]
    for client, prompts in enumerate(zip(*batches, strict=True)):
        sent = bench_serve.prompts_of(client, options, 1000)
        assert [*prompts] == sent[bench_serve.WARM_TEXTS :]


@pytest.mark.thorough
def test_clients_of_a_server_are_measured_beside_a_batch(monkeypatch, capsys):
    words = ["--shape", "tiny", "--clients", "1", "2", "--texts", "1", "--tokens", "5"]
    monkeypatch.setattr("sys.argv", ["bench_serve.py", *words])
    assert bench_serve.main() == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["texts"] for row in record["rows"]] == [1, 2]
    for row in record["rows"]:
        assert min(row["rate"], row["batch"], *row["first"]) > 0
