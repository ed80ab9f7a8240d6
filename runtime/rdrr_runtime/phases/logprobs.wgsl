// partials[g] = largest logit m and sum of exp(logit - m) of the logits that are g mod GROUPS in blocks
// of WG; top[g] = the TOP largest of them, in order.
//
// logits    f32 [WIDTH]
// partials  vec2<f32> [GROUPS]
// top       (f32, u32) [GROUPS, TOP]: value and index
//
// An item is one g. Threads stride over its logits, once for each of the largest; sums are f32.
var<storage, read> logits: array<f32>;
var<storage, read_write> partials: array<vec2<f32>>;
var<storage, read_write> top: array<Candidate>;

override WIDTH: u32;
override TOP: u32;
override GROUPS: u32;

{% include "snippets/candidate.wgsl" %}

var<workgroup> sums: array<f32, WG>;

// The largest of this workgroup's logits that come after `last`; the same in every thread.
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
