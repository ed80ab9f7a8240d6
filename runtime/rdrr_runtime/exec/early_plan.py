"""A plan that is made while its device is being opened: drivers take as long as lowering does."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass

from rdrr_device.arena import DeviceArena
from rdrr_device.capabilities import Capabilities
from rdrr_device.device import Device
from rdrr_device.late_device import LateDevice
from rdrr_device.tuning import Tuning
from rdrr_format.errors import DeviceError
from rdrr_manifests.package import Package

from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.exec.plan import Plan


@dataclass(frozen=True)
class EarlyPlan:
    """A plan whose buffers are created once its device is open.

    Attributes:
        plan: The plan, without weights; its passes can be lowered.
        arena: Owner of its buffers.
    """

    plan: Plan
    arena: DeviceArena

    @staticmethod
    def make(
        package: Package,
        capabilities: Capabilities,
        policy: Policy,
        *,
        context: int,
        kv_dtype: str,
        tuning: Tuning | None = None,
    ) -> EarlyPlan:
        """Return the plan of a package for a device of these capabilities, see `Plan`.

        Raises:
            FormatError: No kernel can read a matrix.
            DeviceError: The device will not be able to bind a buffer.
            UsageError: The KV dtype is unknown, or the model does not support it.
        """
        arena = DeviceArena(LateDevice(capabilities), package.manifest.model_id)
        plan = Plan(
            package,
            arena,
            policy,
            context=context,
            kv_dtype=kv_dtype,
            tuning=tuning,
            upload=False,
        )
        return EarlyPlan(plan, arena)

    def on(self, device: Device) -> Plan | None:
        """Create the buffers on a device and return the plan.

        Returns:
            None if the device has other capabilities, or too little memory: a plan that is made on
            it says what is wrong where it asks for the buffer.
        """
        if self.plan.capabilities != device.capabilities:
            return None
        device.build_ahead(self.plan.weights.kernels())
        with ExitStack() as undo:
            undo.callback(self.arena.dispose)
            with suppress(DeviceError):
                self.arena.late.opened(device)
                undo.pop_all()
                return self.plan
        return None
