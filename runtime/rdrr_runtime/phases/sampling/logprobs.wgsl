// Log-probabilities, first phase: partials[g] = the largest logit m of group g and its sum of
// exp(logit - m); top[g] = the TOP largest logits of group g, in descending order.
//
// logits    f32 [WIDTH]
// partials  vec2<f32> [GROUPS]
// top       (f32, u32) [GROUPS, TOP]: value and index
//
// An item is one group: every GROUPS-th run of WG consecutive logits. The threads stride over its
// logits, once for the sum and once for each of the TOP largest. Accumulates in f32.
var<storage, read> logits: array<f32>;
var<storage, read_write> partials: array<vec2<f32>>;
var<storage, read_write> top: array<Candidate>;

override WIDTH: u32;
override TOP: u32;
override GROUPS: u32;

{% include "snippets/candidate.wgsl" %}

var<workgroup> sums: array<f32, WG>;

// The largest logit of this workgroup that comes after `last`; the same in every thread.
fn next(last: Candidate, first: u32, thread: u32) -> Candidate {
    var mine = Candidate(LOWEST, WIDTH);
    for (var i = first; i < WIDTH; i += GROUPS * WG) {
        let one = Candidate(logits[i], i);
        if (comes_after(one, last)) {
            mine = better(mine, one);
        }
    }
    return best_for_all(mine, thread);
}

fn phase(item: u32, thread: Thread) {
    let t = thread.index;
    let first = item * WG + t;
    var largest = LOWEST;
    for (var i = first; i < WIDTH; i += GROUPS * WG) {
        largest = max(largest, logits[i]);
    }
    largest = best_for_all(Candidate(largest, t), t).value;
    var sum = 0.0;
    for (var i = first; i < WIDTH; i += GROUPS * WG) {
        sum += exp(logits[i] - largest);
    }
    sums[t] = sum;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (t < half) {
            sums[t] += sums[t + half];
        }
    }
    if (t == 0u) {
        partials[item] = vec2(largest, sums[0]);
    }
    var last = Candidate(-LOWEST, 0u);
    for (var k = 0u; k < TOP; k++) {
        last = next(last, first, t);
        if (t == 0u) {
            top[item * TOP + k] = last;
        }
    }
}
