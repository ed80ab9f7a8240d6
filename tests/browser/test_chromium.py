"""Chromium runs our packages with DOPPLER.

Chromium's software adapter has no f16 in shaders and subgroups of 4. Without Chromium the tests are
skipped.
"""

from __future__ import annotations

import json

import pytest
import rdrr
from support.chromium import NOT_INSTALLED, find_chromium, run_module
from support.commands import EXAMPLE, ROOT
from support.dawn import FOLDER, NOT_SET_UP, is_set_up
from support.greedy_ids import check_greedy_ids, encode
from support.random_models import save_model

BROWSER = ROOT / "tests" / "browser"
PROMPT = "In the beginning God created"
TOKENS = 24
HIDDEN = 96
"""Hidden size of the model that DOPPLER runs.

Its kernel rmsnorm has 256 threads and memory for the sums of 32 subgroups. With subgroups of 4
there are 64, so it is correct only up to a size of 124, where the others have nothing to add.
"""

pytestmark = pytest.mark.skipif(find_chromium() is None, reason=NOT_INSTALLED)


@pytest.mark.thorough
def test_doppler_generates_our_ids_in_chromium(tmp_path):
    if not is_set_up():
        pytest.skip(NOT_SET_UP)
    source, package = tmp_path / "source", tmp_path / "package"
    sizes = {"hidden_size": HIDDEN, "initializer_range": 0.13}
    save_model("qwen3", source, tokenizer_from=EXAMPLE, **sizes)
    rdrr.convert(source, package, profile="doppler", quantize="f16")
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"prompt": PROMPT, "tokens": TOKENS}), encoding="utf-8")
    doppler = FOLDER / "node_modules" / "doppler-gpu"
    served = {"doppler": doppler, "package": package, "request": request}
    report = run_module(BROWSER / "doppler.mjs", served)
    assert report["prompt"] == encode(package, PROMPT)
    assert len(report["ids"]) == TOKENS
    check_greedy_ids(package, report["prompt"], report["ids"])
