// routes[r, s] = (expert, weight) of the TOP_K experts with the largest logits of row r, in descending
// order; ties go to the lower index. weight = softmax(logits)[expert]{% if NORMALIZE %}, divided by the sum of the weights
// of the selected experts{% endif %}.
//
// logits   f32 [rows, EXPERTS]
// routes   Route [rows, TOP_K]
//
// One call for each row. Each thread computes the rank of an expert, the number of experts before it.
// Accumulates in f32.
{% include "snippets/route.wgsl" %}
var<storage, read> logits: array<f32>;
var<storage, read_write> routes: array<Route>;

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

// Denominator of the routing weights: the exp sum over {{ "the selected experts" if NORMALIZE else "all experts" }}.
fn denominator(largest: f32) -> f32 {
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

fn phase(row: u32, thread: Thread) {
    for (var i = thread.index; i < EXPERTS; i += WG) {
        scores[i] = logits[row * EXPERTS + i];
    }
    workgroupBarrier();
    for (var i = thread.index; i < EXPERTS; i += WG) {
        let rank = rank_of(i);
        if (rank < TOP_K) {
            chosen[rank] = i;
        }
    }
    workgroupBarrier();
    let largest = scores[chosen[0]];
    for (var s = thread.index; s < TOP_K; s += WG) {
        let expert = chosen[s];
        let weight = exp(scores[expert] - largest) / denominator(largest);
        routes[row * TOP_K + s] = Route(expert, weight);
    }
}
