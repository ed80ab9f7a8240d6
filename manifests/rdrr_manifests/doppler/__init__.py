"""What the public runtime DOPPLER needs of a package, and which packages it computes correctly.

Everything here was tried with `doppler-gpu` 0.5.1: packages that pass were loaded there and gave
the token ids that rdrr gives (`tests/doppler`). These modules know manifests only, so that the
converter can write by them and `rdrr validate --profile doppler` can check by them.
"""

from rdrr_manifests.doppler.execution import SCHEMA, execution_graph, with_execution_graph
from rdrr_manifests.doppler.limits import TYPES, Obstacle, obstacles
from rdrr_manifests.doppler.session import SESSION
from rdrr_manifests.doppler.steps import ExecutionStep, execution_steps

__all__ = [
    "SCHEMA",
    "SESSION",
    "TYPES",
    "ExecutionStep",
    "Obstacle",
    "execution_graph",
    "execution_steps",
    "obstacles",
    "with_execution_graph",
]
