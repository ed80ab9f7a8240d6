"""A WebGPU device: adapters, buffers, shaders, pipelines, submission and readback.

The converter and the runtime both need it. It knows nothing of tensors, models or packages.
"""
