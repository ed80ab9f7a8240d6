"""A server of the bundled model, in this process, and a client that nobody here wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import rdrr
from rdrr.serve.worker import Worker
from support.serving import TOOLS_TEMPLATE, Running, serving

CONTEXT = 320


def working(package: Path, backend: str) -> Iterator[Worker]:
    started = Worker(
        lambda: rdrr.load(package, backend=backend, context=CONTEXT), slots=2, queue=14
    )
    started.start()
    yield started
    started.stop(60)


@pytest.fixture(scope="session")
def worker(shallow_package) -> Iterator[Worker]:
    """A worker on the backend `cpu`: what is said over HTTP does not depend on the backend."""
    yield from working(shallow_package, "cpu")


@pytest.fixture(scope="module")
def gpu_worker(shallow_package) -> Iterator[Worker]:
    """A worker on the backend `wgpu`, whose software adapter takes many times as long."""
    yield from working(shallow_package, "wgpu")


@pytest.fixture(scope="session")
def server(worker) -> Iterator[Running]:
    with serving(worker) as running:
        yield running


@pytest.fixture(scope="session")
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0
    ) as opened:
        yield opened


@pytest.fixture(scope="session")
def tools_template(tmp_path_factory) -> Path:
    """A chat template that writes tools and reasoning."""
    file = tmp_path_factory.mktemp("templates") / "tools.jinja"
    file.write_text(TOOLS_TEMPLATE, encoding="utf-8")
    return file
