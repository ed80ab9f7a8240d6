"""Timers around the stages of a load, for `bench_load.py`.

Each stage is one function of the product, which is wrapped for the length of a `with` block. The
seconds of calls in different threads add up, and a stage may contain another, so the stages do not
add up to the total.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from importlib import import_module
from typing import Any
from unittest.mock import patch

STAGES = (
    ("device", "rdrr_device.device", "open_adapter"),
    ("package", "rdrr_manifests.package", "open_package"),
    ("allocate", "rdrr_runtime.exec.plan", "allocate_weights"),
    ("upload", "rdrr_runtime.exec.plan", "Plan.upload"),
    ("lower", "rdrr_runtime.exec.plan", "Plan.lower"),
    ("compile", "rdrr_device.pipelines", "Pipelines._build"),
    ("hashes", "rdrr_manifests.loading", "_Check.finish"),
)
"""Name, module and function of each stage; `hashes` is the wait for hashes at the end of a load."""


@contextmanager
def stages() -> Iterator[dict[str, float]]:
    """Yield the seconds of each stage, which grow while the block runs."""
    seconds = {name: 0.0 for name, _, _ in STAGES}
    lock = threading.Lock()
    with ExitStack() as undo:
        for name, module, path in STAGES:
            *owners, function = path.split(".")
            owner: Any = import_module(module)
            for attribute in owners:
                owner = getattr(owner, attribute)
            timed = _timed(getattr(owner, function), name, seconds, lock)
            undo.enter_context(patch.object(owner, function, timed))
        yield seconds


def _timed(
    run: Callable[..., Any], name: str, seconds: dict[str, float], lock: threading.Lock
) -> Callable[..., Any]:
    @wraps(run)
    def timed(*arguments: Any, **keywords: Any) -> Any:
        start = time.perf_counter()
        try:
            return run(*arguments, **keywords)
        finally:
            with lock:
                seconds[name] += time.perf_counter() - start

    return timed
