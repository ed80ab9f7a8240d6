"""Compilation: from a package's graph to the phases of a pass.

`patterns` finds ops that one kernel may serve together, `choice` decides which kernel serves an op
and why, `weights` uploads tensors, and `lowering` makes the phases. `pass_spec` lists the kinds of
pass. Nothing runs here; `rdrr_runtime.exec` binds and runs the phases.
"""
