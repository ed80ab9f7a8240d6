// What the phases that select tokens for one row hand on. A search finds the score of the last token
// that top-k or top-p keeps, LEVELS times by eight bits of its key; a stage is one of these times.
const STAGES = 8u;
const LEVELS = 4u;
const BINS = 256u;  // and threads of a workgroup
const MAX_GROUPS = 64u;

// A threshold under search: tokens below `low` are out already; those between agree with `prefix`
// in the bits of the levels done. `remaining` of the weight above the threshold is still to be found.
struct Search {
    low: u32,
    prefix: u32,
    remaining: f32,
    pad: u32,
}

struct Selection {
    max_keys: array<u32, MAX_GROUPS>,      // largest key of each workgroup
    searches: array<Search, STAGES>,   // as each stage began
    bins: array<atomic<u32>, 2u * STAGES * BINS>,  // of each stage, in two words
}

var<workgroup> shared_keys: array<u32, BINS>;

// Largest of the keys of a workgroup's threads, valid in all of them.
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

// A score as a word of the same order; 0 is a token that must not be sampled.
fn key_of(score: f32) -> u32 {
    let bits = bitcast<u32>(score);
    return select(bits | 0x80000000u, ~bits, bits >> 31u == 1u);
}

fn score_of(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key ^ 0x80000000u, key >> 31u == 1u));
}
