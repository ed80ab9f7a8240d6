"""Sequences on a GPU: which pass runs their rows, with which inputs, and how ids reach the host.

`step` holds the inputs of the next pass, `passes` selects the pass, `sampler` chooses tokens and
`feed` brings their ids to the host. A single sequence and a batch share all of this and differ only
in their passes.
"""
