// Sampling parameters of a sequence (`SAMPLER` in records.py), which `pack_params` writes.
//
// The numbers are those of `SamplingParams.numbers`. seed_low, seed_high and sampled, the count of
// tokens sampled so far, are inputs of the random numbers. noisy is 1 to add Gumbel noise, 0 to take
// the largest score; masked is 1 to sample only tokens whose bit is set in the mask.
struct Params {
{{ SAMPLER }}}
