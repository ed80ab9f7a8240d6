// State that the sampling phases pass on for each row. The key of a score is `ordered(score)`, an unsigned
// integer that sorts like it; the key 0 marks a token that must not be sampled. A search is a radix select for
// the smallest key that top-k or top-p keeps. It has LEVELS levels of 8 bits of the key each; each level is one
// stage.
{% include "snippets/ordered.wgsl" %}
const STAGES = 8u;
const LEVELS = 4u;
const BINS = 256u;  // bins of a histogram; also the threads of a workgroup
const MAX_GROUPS = 64u;

// A radix select in progress. Keys below `low` have been excluded by an earlier search. `prefix` has the
// bits of the threshold that are known so far. `remaining` is the weight that the keys to keep must still
// add up to, among the keys that match the prefix.
struct Search {
    low: u32,
    prefix: u32,
    remaining: f32,
    pad: u32,
}

struct Selection {
    max_keys: array<u32, MAX_GROUPS>,      // largest key of each workgroup
    searches: array<Search, STAGES>,   // state of the search at the start of each stage
    bins: array<atomic<u32>, 2u * STAGES * BINS>,  // histogram of each stage, two words for each bin
}

var<workgroup> shared_keys: array<u32, BINS>;

// Largest key over the threads of a workgroup; valid in every thread.
fn workgroup_max_key(mine: u32, thread: u32) -> u32 {
    shared_keys[thread] = mine;
    for (var half = BINS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) {
            shared_keys[thread] = max(shared_keys[thread], shared_keys[thread + half]);
        }
    }
    workgroupBarrier();
    return shared_keys[0];
}
