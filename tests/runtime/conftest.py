"""The device fixtures of kernel tests, and a model for those that do not depend on its sizes."""

from collections.abc import Iterator

import pytest
from rdrr_manifests.package import Package
from rdrr_runtime.gpu import GpuBackend
from support.devices import any_bench, bench, device, plain_bench, plain_device
from support.packages import CONTEXT, SMALL, llama_manifest, write_random_package
from support.seeds import generator_of

__all__ = ["any_bench", "bench", "device", "plain_bench", "plain_device"]


@pytest.fixture(scope="module")
def package(request, tmp_path_factory) -> Package:
    """A model of one layer: the time to compile a pass as one kernel grows with the layers."""
    folder = tmp_path_factory.mktemp("small")
    return write_random_package(folder, llama_manifest(**SMALL), generator_of(request))


@pytest.fixture(scope="module")
def backend(request, device, package) -> Iterator[GpuBackend]:
    """The backend of the module's package, with the module's context if it has one of its own."""
    context = getattr(request.module, "CONTEXT", CONTEXT)
    gpu_backend = GpuBackend(package, context=context, kv_dtype="f32", device=device)
    yield gpu_backend
    gpu_backend.close()
