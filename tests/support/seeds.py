"""The random generators of tests. All follow from one seed, which a failing test prints."""

from __future__ import annotations

import os
import secrets
import zlib

import numpy as np
import pytest

VARIABLE = "RDRR_TEST_SEED"


def seed_of_run() -> int:
    """Return the seed of this run: that of the environment, otherwise a fresh one.

    A fresh seed is kept in the environment, so that the processes of one run have the same.
    """
    return int(os.environ.setdefault(VARIABLE, str(secrets.randbits(32))))


def generator_of(request: pytest.FixtureRequest) -> np.random.Generator:
    """Return the generator of a fixture; it is the same whichever other tests run.

    Args:
        request: The request of the fixture, of any scope.
    """
    parameter = getattr(request, "param_index", "")
    name = f"{request.node.nodeid} {request.fixturename} {parameter}"
    return np.random.default_rng([seed_of_run(), zlib.crc32(name.encode())])
