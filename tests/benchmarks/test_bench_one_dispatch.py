"""`bench_one_dispatch.py` compares both executors and leaves out each kind of phase."""

from __future__ import annotations

import numpy as np
import pytest
from support.packages import llama_manifest, write_random_package
from support.scripts import script


@pytest.mark.thorough
def test_both_executors_choose_the_same_tokens_and_every_part_is_timed(tmp_path):
    package = write_random_package(tmp_path, llama_manifest(), np.random.default_rng(5))
    words = ("--prompt-tokens", 8, "--tokens", 6, "--repeat", 1)
    answer = script("bench_one_dispatch", "--package", tmp_path, *words).json()
    assert set(answer["kinds"]) == {"greedy", "sampled", "alone in a batch", "constrained"}
    for kind in answer["kinds"].values():
        assert kind["equal_ids"] == 6
        assert set(kind["rates"]) == {"dispatches", "persistent"}
    assert answer["kernel"].startswith("one dispatch")
    kinds = set(answer["microseconds"]) - {"none", "all"}
    assert {kind.partition(".")[0] for kind in kinds} == {"embed", "matvec", "attention_decode"}
    assert package.manifest.architecture.num_layers == 2
