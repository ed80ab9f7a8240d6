{% include "snippets/finite.wgsl" %}

// A logit and its index. Equal logits are ordered by index, so the result does not depend on how the work
// is divided.
struct Candidate {
    value: f32,
    index: u32,
}

// A candidate as two words, the form in which phases leave it to each other.
fn words_of(candidate: Candidate) -> vec2<u32> {
    return vec2<u32>(bitcast<u32>(candidate.value), candidate.index);
}

fn candidate_of(words: vec2<u32>) -> Candidate {
    return Candidate(bitcast<f32>(words.x), words.y);
}

fn better(a: Candidate, b: Candidate) -> Candidate {
    if (b.value > a.value || (b.value == a.value && b.index < a.index)) {
        return b;
    }
    return a;
}

var<workgroup> candidates: array<Candidate, WG>;

// The best candidate of a workgroup of WG threads (a power of two); valid in thread 0.
fn best_of_workgroup(mine: Candidate, thread: u32) -> Candidate {
    candidates[thread] = mine;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) {
            candidates[thread] = better(candidates[thread], candidates[thread + half]);
        }
    }
    return candidates[0];
}

// Whether a sorts after b, in descending order of values.
fn comes_after(a: Candidate, b: Candidate) -> bool {
    return a.value < b.value || (a.value == b.value && a.index > b.index);
}

// Like `best_of_workgroup`, but valid in every thread; may be called repeatedly without a barrier.
fn best_for_all(mine: Candidate, thread: u32) -> Candidate {
    workgroupBarrier();  // other threads may still be reading the previous result
    _ = best_of_workgroup(mine, thread);
    workgroupBarrier();
    return candidates[0];
}
