"""`rdrr explain`: the kernel of every op and why, grouped by layers with the same kernels."""

from __future__ import annotations

import json

import pytest
import wgpu
from rdrr._explanation import Row, grouped
from rdrr_device.adapters import choose_adapter, list_adapters
from rdrr_runtime.compile.choice.decision import Decision
from rdrr_runtime.compile.pass_spec import EXPLAINED, PREFILL, PREFILLS
from support.commands import error_line, rdrr
from support.packages import LAYERS, llama_manifest, write_random_package

IN_SOFTWARE = choose_adapter(list_adapters(), None).software
SHOWN = (*EXPLAINED, *((PREFILL,) if IN_SOFTWARE else PREFILLS))


@pytest.fixture(autouse=True)
def no_configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def package(tmp_path, rng):
    return write_random_package(tmp_path / "package", llama_manifest("Q4_K", "row"), rng)


def _choices(*words) -> dict[tuple[str, str], dict]:
    output = rdrr("explain", *words, "--json").json()
    return {(choice["step"], choice["op"]): choice for choice in output["choices"]}


def test_every_op_of_every_step_has_a_kernel_and_a_reason(package):
    choices = _choices(package.where)
    for step in (spec.name for spec in SHOWN):
        ops = {op for step_of, op in choices if step_of == step}
        assert {"embed", "head"} <= ops
        assert {f"l{layer}.down_proj" for layer in range(LAYERS)} <= ops
    assert all(choice["kernel"] and choice["reason"] for choice in choices.values())
    assert all(choice["follows_hints"] for choice in choices.values())


def _described(folder, **changed):
    """Write the capabilities of the best adapter to a file, with some of them changed."""
    (adapter, *_) = rdrr("devices", "--json").json()["adapters"]
    path = folder / "device.json"
    path.write_text(json.dumps(adapter["capabilities"] | changed), encoding="utf-8")
    return path


def test_the_description_of_an_adapter_gives_the_kernels_of_the_adapter(package, tmp_path):
    path = _described(tmp_path)
    assert _choices(package.where, "--capabilities", path) == _choices(package.where)


def test_a_description_gives_the_kernels_of_a_device_that_is_not_there(package, tmp_path):
    path = _described(tmp_path, features=[], software=False)
    with pytest.MonkeyPatch.context() as patch:  # no adapter
        patch.setattr(wgpu.gpu, "request_adapter_sync", None)
        patch.setattr(wgpu.gpu, "enumerate_adapters_sync", None)
        planned = rdrr("explain", package.where, "--capabilities", path)
    assert "device.json" in planned.out.splitlines()[0]
    assert "int8 activations (auto on a hardware adapter)" in planned.out
    assert "hardware adapter" not in rdrr("explain", package.where).out or not IN_SOFTWARE


def test_a_description_that_cannot_be_read_is_named(package, tmp_path):
    path = tmp_path / "device.json"
    assert "device.json" in error_line(rdrr("explain", package.where, "--capabilities", path))
    path.write_text('{"features": ["warp"]}', encoding="utf-8")
    assert "warp" in error_line(rdrr("explain", package.where, "--capabilities", path))


def test_a_hint_changes_the_kernel_and_is_the_reason(package):
    before = _choices(package.where)["prefill", "l0.attn"]
    words = (package.where, "--kernel-hint", "attentionPrefill=tiled_small")
    after = _choices(*words)["prefill", "l0.attn"]
    assert "(auto)" in before["reason"]
    assert after["kernel"] != before["kernel"]
    assert "attentionPrefill=tiled_small (run flag)" in after["reason"]


def test_the_manifest_is_named_as_the_source(tmp_path, rng):
    manifest = llama_manifest("Q4_K", "row", hints={"q4kMatmul": "dequant_f16"})
    where = write_random_package(tmp_path / "hinted", manifest, rng).where
    assert rdrr("explain", where, "--json").json()["hints"] == {
        "q4kMatmul": {"value": "dequant_f16", "source": "manifest"}
    }
    assert _choices(where)["decode", "l0.down_proj"]["kernel"].startswith("matvec.f16")


def test_a_hint_that_is_not_honoured_fails_only_under_strict(package):
    asked = ("q4kMatmul=fused_q4k_int8", "computePrecision=f32")
    wrong = [word for hint in asked for word in ("--kernel-hint", hint)]
    output = rdrr("explain", package.where, *wrong, code=0)
    assert "q4kMatmul=fused_q4k_int8 is not honoured" in output.err
    assert rdrr("explain", package.where, *wrong, "--strict-hints").code == 1
    right = ("--kernel-hint", "computePrecision=f32", "--strict-hints")
    assert rdrr("explain", package.where, *right).code == 0


def test_layers_with_the_same_kernels_are_shown_once_unless_all_are_wanted(package):
    brief, whole = (rdrr("explain", package.where, *more).out for more in ((), ("--all",)))
    assert brief.count("down_proj") == len(SHOWN)
    assert whole.count("down_proj") == len(SHOWN) * LAYERS
    assert f"decode, layers 0-{LAYERS - 1}" in brief
    assert "decode, layer 1" in whole


def test_an_unknown_adapter_or_hint_is_refused_in_one_line(package):
    assert "no such adapter" in error_line(rdrr("explain", package.where, "--adapter", "abacus"))
    refused = rdrr("explain", package.where, "--kernel-hint", "q4kMatmul=fast")
    assert "no such value" in error_line(refused, 2)


def test_layers_that_differ_are_not_joined():
    kernels = ("a", "a", "b", "a")
    given = [
        Decision("decode", f"l{at}.up_proj", kernel, "why") for at, kernel in enumerate(kernels)
    ]
    first, second = grouped([*given, Decision("decode", "head", "a", "why")])[:2]
    assert (first.title, second.title) == ("decode, layers 0-1 3", "decode, layer 2")
    assert second.rows == (Row("up_proj", "b", "why"),)
