"""Fixtures that every test may use."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rdrr_device.adapters import list_adapters
from support.commands import EXAMPLE, rdrr
from support.cpu_time import noting
from support.dawn_device import driver_of_dawn, why_no_dawn
from support.isolation import isolate
from support.packages import llama_manifest, write_random_package
from support.seeds import VARIABLE, generator_of, seed_of_run
from support.selected_tests import is_covering, left_out, wanted_sample
from support.shallow import save_shallow

# Client libraries read their environment variables when they are imported, so this cannot be a
# fixture. Processes that tests start inherit it.
os.environ.setdefault(
    "OMP_WAIT_POLICY", "passive"
)  # as the command line sets it; tests share cores
seed_of_run()  # here, so that the workers of a run inherit it
isolate(os.environ, str(Path(tempfile.gettempdir()) / f"rdrr-tests-{os.getpid()}"))


def pytest_report_header() -> list[str]:
    """Print the seed of the run, and which tests run if not all do."""
    lines = [f"{VARIABLE}={seed_of_run()}"]
    if is_covering():
        lines.append("the tests of `make test`; `make test-all` runs all")
    sample = wanted_sample()
    if sample is not None:
        lines.append("sample of tests: {} of each file, seed {}".format(*sample))
    return lines


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests, if not all are to run."""
    others = left_out(items)
    config.hook.pytest_deselected(items=[item for item in items if item in others])
    items[:] = [item for item in items if item not in others]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Spare collections of garbage the modules and tests, which stay until the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note what a test costs, with its fixtures, if that is asked for."""
    with noting(item.nodeid):
        return (yield)


@pytest.fixture(autouse=True, scope="session")
def adapters_of_dawn() -> None:
    """Let Dawn find the adapters of its driver: it keeps what it finds first in a process."""
    if why_no_dawn() is None:
        with driver_of_dawn():
            list_adapters("dawn")


@pytest.fixture(autouse=True)
def reported_seed(request: pytest.FixtureRequest) -> None:
    """Report the seed of the run with a test that fails.

    `RDRR_TEST_SEED=N` repeats the test, with the same values in all fixtures.
    """
    text = f"{VARIABLE}={seed_of_run()} {request.node.nodeid}"
    request.node.add_report_section("setup", "seed", text)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Return the random generator of a test."""
    return generator_of(request)


@pytest.fixture(scope="session", autouse=True)
def recorded_shaders() -> Iterator[None]:
    """Record the kernels of the session into the folder that `RDRR_RECORD_SHADERS` names, if any.

    `.ci/run` compiles them with Tint afterwards.
    """
    folder = os.environ.get("RDRR_RECORD_SHADERS")
    if folder is None:
        yield
        return
    from support.dawn import recording

    with recording(Path(folder)):
        yield


@pytest.fixture(scope="session")
def shallow_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bundled checkpoint with one layer, which is loaded in less than half the time."""
    return save_shallow(tmp_path_factory.mktemp("shallow") / "small-llama")


@pytest.fixture(scope="session")
def shallow_package(shallow_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convert the shallow checkpoint as the demo does; tests must not change this package."""
    folder = tmp_path_factory.mktemp("made") / "small-llama"
    layout = ("--transpose-weights", "--fuse-gate-up", "--quiet")
    assert rdrr("convert", shallow_checkpoint, folder, *layout).code == 0
    return folder


@pytest.fixture(scope="module")
def random_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a package of a small Llama with random weights."""
    folder = tmp_path_factory.mktemp("random")
    write_random_package(folder, llama_manifest(), generator_of(request))
    return folder


@pytest.fixture(scope="session")
def made_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convert the bundled checkpoint as the demo does; tests must not change this package."""
    folder = tmp_path_factory.mktemp("made") / "small-llama"
    done = rdrr(
        "convert", EXAMPLE, folder, "--transpose-weights", "--fuse-gate-up", "--quiet", code=0
    )
    assert done.out == ""
    return folder
