"""Execution of a whole decode pass in one dispatch, by workgroups that stay until it is done.

`declarations` reads the shaders of the phases, `linking` joins them in one module, `schedule` lists
the calls and where they must wait for each other, `residency` tests whether an adapter can do this
at all, and `executor` runs the result.
"""
