"""Parse the C types that calls into wgpu-native need, all at once.

wgpu-py names C types by strings such as `WGPULimits *`. cffi parses each string on first use, and
each time has its C parser read the names of all types of the header before it, which takes 12 ms.
Opening a device and running a first program needs 45 types, half a second. As parameters of one
function type they are parsed in one go.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

TYPES = (
    "WGPUAdapterInfo *",
    "WGPUBindGroupDescriptor *",
    "WGPUBindGroupEntry *",
    "WGPUBindGroupLayoutDescriptor *",
    "WGPUBindGroupLayoutEntry *",
    "WGPUBufferBindingLayout *",
    "WGPUBufferDescriptor *",
    "WGPUBufferMapCallbackInfo *",
    "WGPUChainedStruct *",
    "WGPUChainedStruct * ",
    "WGPUCommandBufferDescriptor *",
    "WGPUCommandEncoderDescriptor *",
    "WGPUComputePassDescriptor *",
    "WGPUComputePipelineDescriptor *",
    "WGPUComputeState *",
    "WGPUConstantEntry *",
    "WGPUDeviceDescriptor *",
    "WGPUDeviceExtras *",
    "WGPUDeviceLostCallbackInfo *",
    "WGPUInstanceDescriptor *",
    "WGPULimits *",
    "WGPUNativeLimits *",
    "WGPUPipelineLayoutDescriptor *",
    "WGPUQueueDescriptor *",
    "WGPURequestDeviceCallbackInfo *",
    "WGPUShaderModuleDescriptor *",
    "WGPUShaderSourceWGSL *",
    "WGPUStringView *",
    "WGPUSubmissionIndex *",
    "WGPUUncapturedErrorCallbackInfo *",
    "intptr_t",
    "uint8_t *",
    "uintptr_t",
)
ARRAYS = (
    "WGPUAdapter[]",
    "WGPUBindGroupEntry[]",
    "WGPUBindGroupLayoutEntry[]",
    "WGPUBindGroupLayout[]",
    "WGPUCommandBuffer[]",
    "WGPUConstantEntry[]",
    "WGPUFeatureName[]",
    "char []",
    "char[]",
    "uint8_t []",
)
FUNCTIONS = (
    "void(WGPUDevice const *, WGPUDeviceLostReason, WGPUStringView, void *, void *)",
    "void(WGPUDevice const *, WGPUErrorType, WGPUStringView, void *, void *)",
    "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)",
    "void(WGPURequestDeviceStatus, WGPUDevice, WGPUStringView, void *, void *)",
)
"""The strings that wgpu-py 0.32 and `wgpu.py` here use; others are parsed one by one."""


def parse_types(
    ffi: Any,
    types: Iterable[str] = TYPES,
    arrays: Iterable[str] = ARRAYS,
    functions: Iterable[str] = FUNCTIONS,
) -> bool:
    """Parse C types together and put them where cffi looks for parsed types.

    This needs internals of cffi (tested with 2.0).

    Args:
        ffi: The cffi instance that has the declarations.
        types: Types that a function can take as they are, such as pointers.
        arrays: Types of arrays without a length.
        functions: Types of functions, each returning void.

    Returns:
        Whether it worked; if not, the types are parsed on first use, as without this call.
    """
    plain, elements = [*types], [array.replace("[]", "*") for array in arrays]
    callbacks = [function.replace("void(", "void(*)(", 1) for function in functions]
    names = [*plain, *arrays, *functions]
    try:
        known = ffi._parsed_types
        if all(name in known for name in names):
            return True
        parameters = ", ".join([*plain, *elements, *callbacks])
        parsed = list(ffi.typeof(f"void(*)({parameters})").args)
        for index in range(len(plain), len(plain) + len(elements)):
            parsed[index] = ffi._backend.new_array_type(parsed[index], None)
        for name, ctype in zip(names, parsed, strict=True):
            known.setdefault(name, (ctype, name in functions))
    except (AttributeError, TypeError, ValueError, import_module("cffi").CDefError):
        return False
    return True
