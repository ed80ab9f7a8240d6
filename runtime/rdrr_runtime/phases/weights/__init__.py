"""Matrices in GPU memory: their layout, their upload, and how shaders bind and read them.

`formats` describes the planes of each type and `gpu_weight` a matrix in them. `packing` uploads the
tensors of a package, and `repack` writes stored blocks into planes on the GPU. `binding` and
`snippets/weights.wgsl` are what every phase that reads a matrix stands on; `checks` says whether it
can.

`rdrr_runtime.compile.weights` allocates and uploads all matrices of a model when it is loaded. No
pattern leads here: only `repack` is a phase, and it runs once for each tensor.
"""
