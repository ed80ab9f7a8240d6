// records[at] = the record of the token just chosen: log of the sum of exp(logits), its own logit,
// and the TOP likeliest of all workgroups; `at` is the place of the ring where the token's id is.
//
// current    Step, already moved on
// tokens     u32 [max_rows]: the token chosen
// logits     f32 [WIDTH]
// parts      vec2<f32> [GROUPS]
// likeliest  (f32, u32) [GROUPS, TOP]
// records    f32 [RING, 2 + 2 TOP], ids as bits
{% include "snippets/step.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> tokens: array<u32>;
@group(0) @binding(2) var<storage, read> logits: array<f32>;
@group(0) @binding(3) var<storage, read> parts: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read> likeliest: array<Candidate>;
@group(0) @binding(5) var<storage, read_write> records: array<u32>;

override WG: u32;
override WIDTH: u32;
override TOP: u32;
override GROUPS: u32;
override RING: u32;

{% include "snippets/candidate.wgsl" %}

const LOWEST = -3.4028234663852886e38;

fn log_of_sum() -> f32 {
    var top = LOWEST;
    for (var g = 0u; g < GROUPS; g++) {
        top = max(top, parts[g].x);
    }
    var sum = 0.0;
    for (var g = 0u; g < GROUPS; g++) {
        sum += parts[g].y * exp(parts[g].x - top);
    }
    return top + log(sum);
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32) {
    let at = ((current.ring - 1u) % RING) * (2u + 2u * TOP);
    if (thread == 0u) {
        records[at] = bitcast<u32>(log_of_sum());
        records[at + 1u] = bitcast<u32>(logits[tokens[0]]);
    }
    var last = Candidate(-LOWEST, 0u);
    for (var t = 0u; t < TOP; t++) {
        var mine = Candidate(LOWEST, WIDTH);
        for (var i = thread; i < GROUPS * TOP; i += WG) {
            let one = likeliest[i];
            if (one.value < last.value || (one.value == last.value && one.index > last.index)) {
                mine = better(mine, one);
            }
        }
        workgroupBarrier();  // the last round's winner may still be read
        _ = best_of_workgroup(mine, thread);
        workgroupBarrier();
        last = candidates[0];
        if (thread == 0u) {
            records[at + 2u + 2u * t] = bitcast<u32>(last.value);
            records[at + 3u + 2u * t] = last.index;
        }
    }
}
