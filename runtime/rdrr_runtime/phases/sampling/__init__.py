"""The end of a pass: the choice of the next tokens, and the advance to the next step.

`argmax` chooses the most probable token, `sample` one by the parameters of a generation, and
`argmax_entropy` reports the most probable token of each row of a window with its entropy.
`logprobs` adds log-probabilities. `batch_advance` writes the next step of several sequences, and
`fill_masks` that of a window with masks. `sample_buffers` lays out what the host writes.

No pattern leads here: `rdrr_runtime.compile.lowering.head` ends a greedy pass, and
`rdrr_runtime.sequences` appends the phases that depend on the options of a generation.
"""
