"""A package that an extra installs is imported, or one line says how to install it."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

import pytest
from rdrr_format.errors import StoreError, UsageError
from rdrr_format.extras import EXTRAS, import_extra, install_hint
from rdrr_format.remote_stores import FsspecStore

ROOT = Path(__file__).parents[2]
MEMBERS = (
    *("torch", "remote", "ray", "grammar", "dawn", "lm-eval"),
    *("serve", "serve-ray", "images", "parquet"),
)


def test_a_package_that_is_installed_is_returned():
    assert import_extra("json", "json", "the test") is sys.modules["json"]


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    with pytest.raises(UsageError) as raised:
        import_extra("no_such_package", "torch", "the CPU backend", where="file.bin")
    assert raised.value.line() == (
        "file.bin: the CPU backend needs the package no_such_package; pip install 'torch>=2.6'"
    )


@pytest.mark.parametrize("text", ["import no_such_package", "raise OSError('libcudart.so.13')"])
def test_a_package_that_cannot_be_imported_is_not_called_missing(tmp_path, monkeypatch, text):
    Path(tmp_path / "broken_package.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="installed but cannot be imported") as raised:
        import_extra("broken_package", "torch", "the CPU backend")
    assert raised.value.found


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [("s3://bucket/model", "s3fs", "s3"), ("gs://bucket/model", "gcsfs", "gs")],
)
def test_a_store_whose_client_is_missing_names_its_extra(monkeypatch, url, package, extra):
    loaded = importlib.import_module("fsspec.registry")._registry
    for scheme in ("s3", "s3a", "gs", "gcs"):  # other tests may have loaded the clients
        monkeypatch.delitem(loaded, scheme, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(StoreError) as raised:
        FsspecStore(url)
    assert raised.value.hint == f"pip install {package}" == install_hint(extra)


def test_the_packages_of_each_extra_are_those_of_the_project_file():
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: tuple(packages) for name, packages in stated["optional-dependencies"].items()}
    assert extras.pop("all") == (f"rdrr[{','.join(MEMBERS)}]",)
    assert extras == EXTRAS
