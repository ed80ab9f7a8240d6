// Log-probabilities, second phase: records[at] = the record of the token just sampled, where `at` is the
// ring index of its id: log(sum(exp(logits))), the logit of the token, and the TOP largest logits.
//
// current   Step, already advanced
// logits    f32 [WIDTH]
// partials  vec2<f32> [GROUPS], see logprobs.wgsl
// top       (f32, u32) [GROUPS, TOP], see logprobs.wgsl
// records   f32 [RING, 2 + 2 TOP], with ids as u32 bits
//
// One call for the pass. Accumulates in f32.
{% include "snippets/step.wgsl" %}
var<storage, read> current: Step;
var<storage, read> logits: array<f32>;
var<storage, read> partials: array<vec2<f32>>;
var<storage, read> top: array<Candidate>;
var<storage, read_write> records: array<u32>;

override WIDTH: u32;
override TOP: u32;
override GROUPS: u32;
override RING: u32;

{% include "snippets/candidate.wgsl" %}

fn log_of_sum() -> f32 {
    var largest = LOWEST;
    for (var g = 0u; g < GROUPS; g++) {
        largest = max(largest, partials[g].x);
    }
    var sum = 0.0;
    for (var g = 0u; g < GROUPS; g++) {
        sum += partials[g].y * exp(partials[g].x - largest);
    }
    return largest + log(sum);
}

fn phase(thread: Thread) {
    let at = ((current.sampled - 1u) % RING) * (2u + 2u * TOP);
    if (thread.index == 0u) {
        records[at] = bitcast<u32>(log_of_sum());
        records[at + 1u] = bitcast<u32>(logits[current.row[0].token]);
    }
    var last = Candidate(-LOWEST, 0u);
    for (var k = 0u; k < TOP; k++) {
        var mine = Candidate(LOWEST, WIDTH);
        for (var i = thread.index; i < GROUPS * TOP; i += WG) {
            if (comes_after(top[i], last)) {
                mine = better(mine, top[i]);
            }
        }
        last = best_for_all(mine, thread.index);
        if (thread.index == 0u) {
            records[at + 2u + 2u * k] = bitcast<u32>(last.value);
            records[at + 3u + 2u * k] = last.index;
        }
    }
}
