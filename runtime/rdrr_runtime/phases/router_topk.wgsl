// routes[r, s] = (expert, share) of the TOP_K experts with the largest logits of a row, the largest
// first and ties to the lower number. share = softmax(logits)[expert]{% if NORMALIZE %}, divided by the sum of the shares{% endif %}.
//
// current  Step
// logits   f32 [rows, EXPERTS]
// routes   Route [rows, TOP_K]
//
// One workgroup a row. A thread finds an expert's rank: how many come before it. Sums are f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/route.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read_write> routes: array<Route>;

override WG: u32;
override EXPERTS: u32;
override TOP_K: u32;

var<workgroup> scores: array<f32, EXPERTS>;
var<workgroup> chosen: array<u32, TOP_K>;

fn rank_of(expert: u32) -> u32 {
    let own = scores[expert];
    var before = 0u;
    for (var i = 0u; i < EXPERTS; i++) {
        let other = scores[i];
        before += select(0u, 1u, other > own || (other == own && i < expert));
    }
    return before;
}

// Sum of the exponentials that the shares of a row are relative to.
fn mass(largest: f32) -> f32 {
    var sum = 0.0;
{% if NORMALIZE %}
    for (var s = 0u; s < TOP_K; s++) {
        sum += exp(scores[chosen[s]] - largest);
    }
{% else %}
    for (var i = 0u; i < EXPERTS; i++) {
        sum += exp(scores[i] - largest);
    }
{% endif %}
    return sum;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = wid.x;
    if (row >= current.rows) {
        return;
    }
    for (var i = thread; i < EXPERTS; i += WG) {
        scores[i] = logits[row * EXPERTS + i];
    }
    workgroupBarrier();
    for (var i = thread; i < EXPERTS; i += WG) {
        let rank = rank_of(i);
        if (rank < TOP_K) {
            chosen[rank] = i;
        }
    }
    workgroupBarrier();
    let largest = scores[chosen[0]];
    for (var s = thread; s < TOP_K; s += WG) {
        let expert = chosen[s];
        let share = exp(scores[expert] - largest) / mass(largest);
        routes[row * TOP_K + s] = Route(expert, share);
    }
}
