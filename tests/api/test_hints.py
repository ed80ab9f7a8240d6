"""The sources of kernel hints, and messages about hints that the CPU backend does not honour."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from rdrr._backends import _unhonoured_on_cpu, open_backend, resolve_hints
from rdrr._configuration import configuration_path
from rdrr._load_options import LoadOptions
from rdrr_format.errors import DeviceError, UsageError
from rdrr_manifests.models import KernelHints
from rdrr_runtime.compile.choice.hints import resolve
from support.packages import llama_manifest, write_random_package


@pytest.fixture(autouse=True)
def configuration(tmp_path, monkeypatch) -> Path:
    """The user's configuration file, absent at first."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = configuration_path()
    path.parent.mkdir()
    return path


def _package(**stated: str) -> SimpleNamespace:
    hints = KernelHints.model_validate(stated)
    return SimpleNamespace(manifest=SimpleNamespace(kernel_hints=hints))


def test_a_flag_wins_over_the_configuration_and_that_over_the_manifest(configuration):
    stated = _package(q4kMatmul="fused_q4k", f16Matmul="gemv", attentionDecode="streaming")
    configuration.write_text(
        '[kernel_hints]\nq4kMatmul = "dequant_f16"\nf16Matmul = "tiled"\n', encoding="utf-8"
    )
    policy = resolve_hints(stated, {"q4kMatmul": "dequant_f32"})
    assert [str(hint) for hint in policy.hints.values()] == [
        "q4kMatmul=dequant_f32 (run flag)",
        "f16Matmul=tiled (runtime configuration)",
        "attentionDecode=streaming (manifest)",
    ]


def test_auto_sets_no_hint_and_does_not_override_later_sources():
    policy = resolve_hints(_package(q4kMatmul="fused_q4k"), {"q4kMatmul": "auto"})
    assert str(policy.get("q4kMatmul")) == "q4kMatmul=fused_q4k (manifest)"
    assert resolve_hints(_package(), {}).hints == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[kernel_hints]\nq4kMatmul = "fast"\n', "no such value"),
        ('[kernel_hints]\nmatmul = "auto"\n', "unknown kernel hint"),
        ("kernel_hints = 3\n", "not a table"),
        ("[kernel_hints\n", "cannot be read"),
    ],
)
def test_a_wrong_configuration_is_wrong_usage_and_names_the_file(configuration, text, said):
    configuration.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=said) as error:
        resolve_hints(_package(), {})
    assert str(configuration) in str(error.value)
    configuration.write_text('[kernel_hints]\nq4kMatmul = "fused_q4k"\n', encoding="utf-8")
    assert resolve_hints(_package(), {}).get("q4kMatmul")


def test_an_unknown_flag_is_wrong_usage():
    with pytest.raises(UsageError, match="unknown kernel hint"):
        resolve_hints(_package(), {"matmul": "fast"})


@pytest.mark.parametrize(
    ("followed", "ignored"),
    [
        ({"q4kMatmul": "dequant_f32"}, {"q4kMatmul": "fused_q4k"}),
        ({"computePrecision": "f32"}, {"computePrecision": "f16"}),
        ({}, {"attentionDecode": "streaming"}),
    ],
)
def test_a_hint_that_the_cpu_does_not_honour_is_named(followed, ignored):
    assert _unhonoured_on_cpu(resolve({"run flag": followed})) == ()
    (line,) = _unhonoured_on_cpu(resolve({"run flag": ignored}))
    key, value = next(iter(ignored.items()))
    assert f"{key}={value} is not honoured" in line
    assert "run flag" in line


@pytest.fixture
def open_with(tmp_path, rng):
    package = write_random_package(tmp_path / "package", llama_manifest(), rng)

    def opened(backend: str = "wgpu", *, kv_dtype: str = "f16", **hints: str):
        return open_backend(
            package,
            resolve({"run flag": hints}),
            LoadOptions(backend=backend, strict_hints=True, kv_dtype=kv_dtype),
            context=32,
        )

    return opened


@pytest.mark.parametrize(
    ("backend", "followed", "ignored"),
    [
        (
            "wgpu",
            {"computePrecision": "f16"},
            {"computePrecision": "f32", "q4kMatmul": "fused_q4k_int8"},
        ),
        ("cpu", {"q4kMatmul": "dequant_f32"}, {"q4kMatmul": "fused_q4k"}),
    ],
)
def test_under_strict_a_hint_that_is_not_honoured_is_an_error(
    open_with, backend, followed, ignored
):
    with pytest.raises(DeviceError, match=r"is not honoured.*`strict_hints`"):
        open_with(backend, **ignored)
    opened = open_with(backend, **followed)
    assert opened.unhonoured == ()
    opened.close()


@pytest.mark.parametrize("backend", ["wgpu", "cpu"])
def test_a_cache_type_that_is_not_there_is_wrong_usage(open_with, backend):
    with pytest.raises(UsageError, match="expected f16, f32, q8_0, found q4_0"):
        open_with(backend, kv_dtype="q4_0")
