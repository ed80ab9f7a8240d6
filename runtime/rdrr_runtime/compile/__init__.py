"""Compilation: from a package's graph to the phases of a pass.

`weights` uploads tensors, `patterns` finds ops that one kernel may serve together, `products`,
`attention` and `experts` choose kernels, and `lower*` make the phases. Nothing runs here;
`rdrr_runtime.exec` binds and runs the phases.
"""
