"""A WebGPU device: adapters, buffers, shaders, pipelines, submission and readback.

The converter and the runtime both use it. It knows nothing about tensors, models or packages.
"""
