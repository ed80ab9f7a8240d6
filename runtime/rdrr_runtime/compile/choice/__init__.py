"""The choice of kernels: one decision with its reason for each op.

`hints` are what the user or the manifest asks for, and `preferences` what that means on an adapter.
`products`, `attention` and `experts` list the kernels that can serve an op, in order of preference,
and `storage` chooses the form of a matrix in GPU memory. `decision` takes the first kernel that can
run and that all hints accept, and records why.

`rdrr explain`, `--strict-hints`, `profile` and `tune` read the decisions and nothing else.
"""
