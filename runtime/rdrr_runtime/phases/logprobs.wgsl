// parts[g] = largest logit m and sum of exp(logit - m) of workgroup g's share of the vocabulary;
// likeliest[g TOP ..] = its TOP largest logits, in order.
//
// logits     f32 [WIDTH]
// parts      vec2<f32> [GROUPS]
// likeliest  (f32, u32) [GROUPS, TOP]: value and index
//
// Threads stride over the logits, once for each of the likeliest; sums are f32.
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> parts: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> likeliest: array<Candidate>;

override WG: u32;
override WIDTH: u32;
override TOP: u32;

{% include "snippets/candidate.wgsl" %}

const LOWEST = -3.4028234663852886e38;

var<workgroup> sums: array<f32, WG>;

// The largest of this workgroup's logits that come after `last`; the same in every thread.
fn next(last: Candidate, first: u32, stride: u32, thread: u32) -> Candidate {
    var mine = Candidate(LOWEST, WIDTH);
    for (var i = first; i < WIDTH; i += stride) {
        let x = logits[i];
        if (x < last.value || (x == last.value && i > last.index)) {
            mine = better(mine, Candidate(x, i));
        }
    }
    workgroupBarrier();  // the last round's winner may still be read
    _ = best_of_workgroup(mine, thread);
    workgroupBarrier();
    return candidates[0];
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let first = wid.x * WG + thread;
    let stride = groups.x * WG;
    var top = LOWEST;
    for (var i = first; i < WIDTH; i += stride) {
        top = max(top, logits[i]);
    }
    _ = best_of_workgroup(Candidate(top, thread), thread);
    workgroupBarrier();
    top = candidates[0].value;
    var sum = 0.0;
    for (var i = first; i < WIDTH; i += stride) {
        sum += exp(logits[i] - top);
    }
    sums[thread] = sum;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) {
            sums[thread] += sums[thread + half];
        }
    }
    if (thread == 0u) {
        parts[wid.x] = vec2(top, sums[0]);
    }
    var last = Candidate(-LOWEST, 0u);
    for (var t = 0u; t < TOP; t++) {
        last = next(last, first, stride, thread);
        if (thread == 0u) {
            likeliest[wid.x * TOP + t] = last;
        }
    }
}
