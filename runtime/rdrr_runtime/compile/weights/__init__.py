"""The tensors of a package on their way to GPU memory.

`upload` allocates and fills all matrices and vectors of a model. `rows` reads their rows in the
type and layout that `rdrr_runtime.compile.choice.storage` chose, `padding` adds zeros for graphs
with padded widths, and `read_ahead` reads in threads while earlier rows are uploaded.

The layout in GPU memory itself is that of `rdrr_runtime.phases.weights`.
"""
