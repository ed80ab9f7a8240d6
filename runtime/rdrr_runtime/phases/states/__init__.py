"""Ops with a recurrent state: linear attention, state spaces and short convolutions.

`delta_rule` and `state_space` run row by row or in chunks of rows computed in parallel; `tiles`
says how they divide a state. `short_convolution` convolves along the tokens. `delta_step` computes
convolution, norms, gates and the delta rule of one row in one phase.

The pattern `rdrr_runtime.compile.patterns.linear_attention` leads to `delta_step`; all other phases
are emitted by `rdrr_runtime.compile.lowering.states`, one op at a time.
"""
