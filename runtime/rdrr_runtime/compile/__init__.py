"""From a graph to dispatches: hints, the choice of a kernel and its reason, fusion, weights.

Nothing here runs; `rdrr_runtime.exec` binds and runs what this package returns.
"""
