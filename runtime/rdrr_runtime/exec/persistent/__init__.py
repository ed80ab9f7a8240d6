"""Execution of a whole decode pass in one dispatch, by workgroups that stay until it is done.

`declarations` reads the shaders of the phases, and `handover` says which values they can hand to
each other word by word; where they cannot, `schedule` lists where all workgroups must wait.
`linking` joins the phases in one module, with the functions that `units` describes and whose texts
`renaming`, `elements` and `wait_insertion` rewrite. `occupancy` tests whether an adapter can do
this at all, `executor` runs the result, `choice` decides at load, and `comparing` while a process
decodes.
"""
