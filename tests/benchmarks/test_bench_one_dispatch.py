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
    found = script("bench_one_dispatch", "--package", tmp_path, *words).json()
    assert set(found["kinds"]) == {"greedy", "sampled", "alone in a batch", "constrained"}
    for one in found["kinds"].values():
        assert one["equal_ids"] == 6
        assert set(one["rates"]) == {"dispatches", "persistent"}
    assert found["kernel"].startswith("one dispatch")
    kinds = set(found["microseconds"]) - {"none", "all"}
    assert {one.partition(".")[0] for one in kinds} == {"embed", "matvec", "attention_decode"}
    assert package.manifest.architecture.num_layers == 2
