"""`rdrr tune`: a profile in the user's cache folder, and its use or rejection by later runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from rdrr import load
from rdrr_runtime.measure.tuned import Tuned
from support.commands import error_line, rdrr
from support.packages import llama_manifest, write_random_package
from support.seeds import generator_of

CONTEXT = ("--context", 16)


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    for name in ("CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return tmp_path


@pytest.fixture(scope="module")
def package(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune") / "package"
    return write_random_package(folder, llama_manifest(), generator_of(request)).where


def _tune(package, *more):
    done = rdrr(
        "tune", package, *CONTEXT, "--op", "dequant", "--rounds", 3, "--json", *more, code=0
    )
    return done.json()


def _explain(package):
    return rdrr("explain", package, *CONTEXT, "--json").json()


@pytest.fixture(scope="module")
def first(package, tmp_path_factory):
    """What a first run prints; its profile stays in a folder that no test uses."""
    folder = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CONFIG", "CACHE"):
            patch.setenv(f"XDG_{name}_HOME", str(folder))
        output = _tune(package)
    (path,) = (folder / "rdrr" / "tuning").iterdir()
    assert output["profile"] == str(path)
    return output


@pytest.fixture
def known(first, folders):
    """Path of the profile of the first run, in the test's cache folder."""
    path = folders / "cache" / "rdrr" / "tuning" / Path(first["profile"]).name
    path.parent.mkdir(parents=True)
    return Path(shutil.copy(first["profile"], path))


@pytest.fixture
def stored(known):
    """Path of a profile in which an embedding has other tuning parameters than the default."""
    path = known
    data = json.loads(path.read_text(encoding="utf-8"))
    for key in data["entries"]:
        data["entries"][key]["params"] = {"workgroup": 8}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.mark.usefixtures("known")
def test_a_second_run_measures_nothing_unless_forced(package, first):
    assert first["known"] == 0
    assert (
        first["trials"]
        == sum(len(tuning_key["trials"]) for tuning_key in first["tuning_keys"])
        >= 4
    )
    assert {tuning_key["op"] for tuning_key in first["tuning_keys"]} == {"dequant"}
    for tuning_key in first["tuning_keys"]:
        assert tuning_key["chosen_us"] <= tuning_key["default_us"]
        assert 1 + len(tuning_key["trials"]) >= 3
    second = _tune(package)
    assert (second["trials"], second["tuning_keys"], second["passes"]) == (0, [], [])
    assert second["known"] == len(first["tuning_keys"])
    assert _tune(package, "--force")["trials"] == first["trials"]


def test_explain_says_what_is_tuned(package, stored):
    output = _explain(package)
    assert output["tuned_profile"]["path"] == str(stored)
    reasons = {choice["op"]: choice["reason"] for choice in output["choices"]}
    assert reasons["embed"].endswith("dequant tuned: workgroup 8")
    assert "tuned" not in reasons["final norm"]
    shown = rdrr("explain", package, *CONTEXT).out
    assert str(stored) in shown


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda text: text[: len(text) // 2], "cannot be read"),
        (lambda _: "[]", "not a tuned profile"),
        (
            lambda text: text.replace('"driver": "', '"driver": "other '),
            "another adapter or driver",
        ),
        (lambda text: text.replace('"kernels": "', '"kernels": "0'), "other kernels"),
        (lambda text: text.replace('"workgroup": 8', '"workgroup": "8"'), "damaged"),
    ],
)
def test_a_profile_that_cannot_be_used_is_ignored_with_a_note(package, stored, spoil, said):
    stored.write_text(spoil(stored.read_text(encoding="utf-8")), encoding="utf-8")
    output = _explain(package)
    assert said in output["tuned_profile"]["note"]
    assert not any("tuned" in choice["reason"] for choice in output["choices"])
    assert said in rdrr("explain", package, *CONTEXT).out


def test_parameters_that_no_kernel_offers_are_not_used(package, stored):
    stored.write_text(
        stored.read_text(encoding="utf-8").replace('"workgroup": 8', '"workgroup": 4096'),
        encoding="utf-8",
    )
    assert not any("tuned" in choice["reason"] for choice in _explain(package)["choices"])


def test_an_unknown_op_is_wrong_usage(package):
    done = rdrr("tune", package, "--op", "speed")
    assert "no such op" in error_line(done, 2)


@pytest.mark.thorough
def test_the_decode_pass_is_compared_with_one_dispatch(package, monkeypatch):
    none = Tuned((), (), 0)  # the parameters of kernels are not what this test is about
    monkeypatch.setattr("rdrr_runtime.measure.tuner.tune", lambda *_: none)
    words = ("tune", package, *CONTEXT, "--pass", "decode", "--rounds", 3, "--json")
    output = rdrr(*words).json()
    executor = output["executor"]
    assert executor["dispatches_us"] > 0
    assert executor["trials"]
    path = Path(output["profile"])
    data = json.loads(path.read_text(encoding="utf-8"))
    ((name, entry),) = data["entries"].items()
    assert name.startswith("decode pass ")
    assert rdrr(*words).json()["executor"] is None  # known

    def explained():
        choices = _explain(package)["choices"]
        return [choice["kernel"] for choice in choices if choice["op"] == "decode pass"]

    for params, kernel in (
        ({"threads": 0, "groups": 0}, "dispatches"),
        ({"threads": 128, "groups": 1}, "one dispatch, 1 workgroups of 128 threads"),
    ):
        entry["params"] = params
        path.write_text(json.dumps(data), encoding="utf-8")
        assert explained() == [kernel]
        with load(package, context=16, backend="wgpu") as model:
            used = [
                decision.kernel for decision in model.info.decisions if decision.op == "decode pass"
            ]
        assert used == ([kernel] if params["groups"] else [])
