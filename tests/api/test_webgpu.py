"""The option `webgpu`: wgpu by default, Dawn by name or where it was measured to be faster."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import rdrr as front
from rdrr import _webgpu
from rdrr._tune import compare_webgpu
from rdrr._tuned import profile_path
from rdrr._webgpu import Compared, decide, keep, preferred
from rdrr.bench import speed
from rdrr_device import adapters, implementations
from rdrr_device.adapters import AdapterInfo, list_adapters
from rdrr_format.errors import DeviceError, UsageError
from rdrr_format.extras import install_hint
from rdrr_manifests.package import open_package
from support.commands import error_line, rdrr
from support.dawn_device import driver_of_dawn, why_no_dawn

FASTER = Compared("small", {"wgpu": 2.0, "dawn": 1.5})
SAME = Compared("small", {"wgpu": 2.0, "dawn": 1.97})


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rdrr"


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(implementations, "is_installed", lambda _: True)
    monkeypatch.setattr(_webgpu, "_version", lambda package: f"{package} 1")


@pytest.fixture
def info() -> AdapterInfo:
    return adapters.choose("wgpu")


def test_nothing_is_looked_for_until_a_comparison_is_kept(monkeypatch):
    monkeypatch.setattr(adapters, "list_adapters", None)
    assert decide("auto", None).name == "wgpu"
    assert "--compare-webgpu" in str(decide("auto", None))
    assert str(decide("dawn", None)) == "dawn: `webgpu` is dawn"


@pytest.mark.usefixtures("installed")
def test_auto_takes_what_was_faster_on_the_adapter_by_more_than_noise(info):
    other = replace(info, name="another")
    keep(info, FASTER)
    assert decide("auto", None).name == preferred(info).name == "dawn"
    assert "1.5 s, the other one 2 s, for small (measured, auto)" in decide("auto", None).reason
    assert decide("wgpu", None).name == preferred(other).name == "wgpu"
    assert preferred(replace(info, driver="as Dawn has it", implementation="dawn")).name == "dawn"
    keep(info, SAME)
    assert decide("auto", None).name == "wgpu"
    assert "2 s, the other one 1.97 s" in decide("auto", None).reason


@pytest.mark.parametrize("changed", ["adapter", "kernels", "wgpu", "wgpudawn", "format"])
@pytest.mark.usefixtures("installed")
def test_what_was_measured_with_something_else_is_not_used(info, changed):
    path = keep(info, FASTER)
    assert preferred(info).name == "dawn"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["for"][changed] = "another"
    path.write_text(json.dumps(data), encoding="utf-8")
    assert preferred(info).reason == _webgpu.UNMEASURED


@pytest.mark.parametrize("text", ["", "[]", '{"for": 3}'])
def test_a_damaged_file_is_no_preference(info, text):
    keep(info, FASTER).write_text(text, encoding="utf-8")
    assert preferred(info).name == "wgpu"


def test_without_dawn_its_preference_is_not_followed(info, installed, monkeypatch):
    del installed
    keep(info, FASTER)
    monkeypatch.setattr(implementations, "is_installed", lambda _: False)
    assert "not installed any more" in preferred(info).reason


def test_the_device_of_a_model_is_opened_through_the_chosen_one(
    shallow_package, info, installed, monkeypatch
):
    del installed
    asked = []

    def refusing(webgpu, adapter, *, hardware_only=None):
        if hardware_only is None:  # only to look up what is kept for the adapter
            return info
        asked.append((adapter, webgpu, hardware_only))
        raise DeviceError("refused")

    monkeypatch.setattr(adapters, "choose", refusing)
    for options in ({"webgpu": "dawn"}, {"webgpu": "wgpu", "backend": "wgpu"}):
        with pytest.raises(DeviceError, match="refused"):  # no torch instead of what was named
            front.load(shallow_package, **options)
    keep(info, FASTER)
    with pytest.raises(DeviceError, match="refused"):
        front.load(shallow_package, backend="wgpu")
    assert asked == [(None, "dawn", False), (None, "wgpu", False), (None, "dawn", False)]


def test_wrong_uses_are_refused(shallow_package):
    with pytest.raises(UsageError, match="`webgpu` is only for GPUs"):
        front.load(shallow_package, backend="cpu", webgpu="dawn")
    with pytest.raises(UsageError, match="auto, wgpu, dawn"):
        front.load(shallow_package, webgpu="metal")
    assert front.load(shallow_package, backend="cpu", webgpu="auto").close() is None


def test_each_implementation_has_a_tuned_profile_of_its_own(info):
    paths = {profile_path(replace(info, implementation=name)) for name in ("wgpu", "dawn")}
    assert len(paths) == 2


@pytest.mark.usefixtures("installed")
def test_a_comparison_measures_both_and_keeps_the_result(shallow_package, info, monkeypatch):
    measured = []

    def measure(*_, adapter, webgpu, options):
        measured.append((adapter, webgpu, options.kv_dtype, options.executor))
        rate = {"wgpu": 100.0, "dawn": 127.0}[webgpu]
        return SimpleNamespace(
            time_to_first_token_ms=SimpleNamespace(median=500.0),
            decode_tokens_per_second=SimpleNamespace(median=rate),
        )

    monkeypatch.setattr(speed, "measure", measure)
    monkeypatch.setattr(adapters, "choose", lambda *_: info)
    package = open_package(shallow_package)
    compared, path = compare_webgpu(package, adapter=None, hints={}, kv_dtype="f16")
    assert [each[1] for each in measured] == ["wgpu", "dawn"]
    assert {each[2:] for each in measured} == {("f16", "auto")}
    assert compared.seconds == {"wgpu": 0.5 + 1.27, "dawn": 1.5}
    assert path.is_file()
    assert decide("auto", None).name == "dawn"
    done = rdrr("tune", shallow_package, "--compare-webgpu", "--json")
    assert done.json()["name"] == "dawn"


def test_dawn_that_accepts_no_adapter_says_so(shallow_package, monkeypatch):
    monkeypatch.setattr(adapters, "list_adapters", lambda webgpu: [] if webgpu == "dawn" else None)
    done = rdrr("generate", shallow_package, "--prompt", "a", "--webgpu", "dawn")
    assert "Dawn accepts no adapter" in error_line(done, 1)
    assert "--webgpu wgpu" in error_line(done)


def test_devices_and_explain_name_the_implementation(shallow_package):
    why = why_no_dawn()
    if why is not None:
        pytest.skip(f"{why} ({install_hint('dawn')})")
    with driver_of_dawn():
        listed = rdrr("devices", "--json").json()["adapters"]
        shown = rdrr("devices").out
        through = rdrr("explain", shallow_package, "--webgpu", "dawn", "--json").json()
    usual = rdrr("explain", shallow_package, "--json").json()
    assert {facts["webgpu"] for facts in listed} == {"wgpu", "dawn"}
    assert all(facts["autoTakes"]["name"] == "wgpu" for facts in listed)
    assert shown.count("auto takes") == len(listed)
    assert through["webgpu"] == {"name": "dawn", "reason": "`webgpu` is dawn"}
    assert usual["webgpu"]["name"] == "wgpu"
    assert list_adapters()[0].implementation == "wgpu"
