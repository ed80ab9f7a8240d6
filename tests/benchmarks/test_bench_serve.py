"""`bench_serve.py` on a tiny model."""

from __future__ import annotations

import json

import bench_serve
import pytest


@pytest.mark.thorough
def test_clients_of_a_server_are_measured_beside_a_batch(monkeypatch, capsys):
    words = ["--shape", "tiny", "--clients", "1", "2", "--texts", "1", "--tokens", "5"]
    monkeypatch.setattr("sys.argv", ["bench_serve.py", *words])
    assert bench_serve.main() == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["texts"] for row in record["rows"]] == [1, 2]
    for row in record["rows"]:
        assert min(row["rate"], row["batch"], *row["first"]) > 0
