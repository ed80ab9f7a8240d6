"""Chromium runs our shaders, and runs our packages with DOPPLER.

Chromium's software adapter has no f16 in shaders and subgroups of 4. Without Chromium the tests are
skipped.
"""

from __future__ import annotations

import base64
import json
from functools import partial

import pytest
import rdrr
from rdrr_manifests.package import open_package
from rdrr_runtime.gpu import GpuBackend
from support.chromium import NOT_INSTALLED, find_chromium, run_module
from support.commands import EXAMPLE, ROOT
from support.dawn import FOLDER, NOT_SET_UP, is_set_up
from support.greedy_ids import check_greedy_ids, encode
from support.random_models import save_model
from support.recorded_run import RecordedRun

BROWSER, PLAYER = ROOT / "tests" / "browser", ROOT / "tests" / "dawn" / "player.mjs"
PROMPT = "In the beginning God created"
TOKENS = 24
HIDDEN = 96
"""Hidden size of the model that DOPPLER runs.

Its kernel rmsnorm has 256 threads and memory for the sums of 32 subgroups. With subgroups of 4
there are 64, so it is correct only up to a size of 124, where the others have nothing to add.
"""

pytestmark = pytest.mark.skipif(find_chromium() is None, reason=NOT_INSTALLED)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    qwen3 = save_model("qwen3", folder / "qwen3", tokenizer_from=EXAMPLE)
    return {"small-llama": EXAMPLE, "qwen3": qwen3}


def generate(package, ids, device):
    backend = GpuBackend(package, context=64, kv_dtype="f32", device=device)
    try:
        return backend.greedy(ids, 0, TOKENS)
    finally:
        backend.close()


@pytest.mark.parametrize(
    ("name", "features"),
    [("small-llama", frozenset()), ("qwen3", frozenset({"subgroup"}))],
    ids=["small-llama without subgroups", "qwen3 with subgroups"],
)
def test_a_recorded_run_gives_our_ids_in_chromium(checkpoints, tmp_path, name, features):
    rdrr.convert(checkpoints[name], tmp_path / "package")
    prompt = encode(tmp_path / "package", PROMPT)
    recorded = RecordedRun(
        partial(generate, open_package(tmp_path / "package"), prompt), features=features
    )
    (tmp_path / "recording.json").write_text(json.dumps(recorded.recording()), encoding="utf-8")
    served = {"player": PLAYER, "recording": tmp_path / "recording.json"}
    report = run_module(BROWSER / "replay.mjs", served)
    ids = recorded.ids([base64.b64decode(text) for text in report["read"]])
    assert len(ids) == TOKENS
    check_greedy_ids(tmp_path / "package", prompt, ids)


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
