"""The device fixtures of kernel tests."""

from support.devices import any_bench, bench, device, plain_bench, plain_device

__all__ = ["any_bench", "bench", "device", "plain_bench", "plain_device"]
