"""Phases: the kernels of the runtime, each a WGSL function and the record of its parameters.

`rdrr_runtime.compile` decides which phase runs an op. Each package imports only packages above it:

    weights       the layout of matrices in GPU memory, and their upload
    rows, streams, norms, states, sampling
                  ops on single rows, and those with a state or a choice of tokens
    products      matrix products, and what they fuse
    cache         the key-value cache, recurrent states and hidden states of sequences
    attention, experts
                  attention over the cache, and mixtures of experts

All of them stand on the modules beside them: `phase` (a function with its buffers and its work),
`context` (the step and the device), `generation_state` (the token rows of a pass), `routes` (the
experts of its rows) and `launch` (a phase as one dispatch). A snippet of WGSL is in the package
that includes it or in one that it imports; `snippets` has those that packages share otherwise.
"""
