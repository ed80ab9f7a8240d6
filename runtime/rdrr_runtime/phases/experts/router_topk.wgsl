// routes[r, s] = (expert, weight) of the TOP_K experts with the largest choice scores of row r, in descending
// order; ties go to the lower index. NaN is the largest, so that the weights of its row are not finite.
//
{% if SCORING == "sparsemixer" %}
//     choice(e)  the logit
//     weight     SCALE * softmax of the logits that are near the logit t of the expert, without those of the
//                experts before it; l is near if t - l <= MARGIN * max(|l|, t){{ ", * expert_scale[e]" if SCALED }}
{% else %}
//     score(e)   {{ "sigmoid(logit)" if SCORING == "sigmoid" else "softmax(logits)[e]" }}
//     choice(e)  score(e){{ " + selection_bias[e]" if BIASED }}{% if GROUP_SCORE %}, only in the TOP_GROUPS groups of consecutive experts with the
//                largest {{ "sums of their two largest choice scores" if GROUP_SCORE == "top2" else "choice scores" }}{% endif %}
//     weight     SCALE * score(e){% if NORMALIZE %} / sum of the scores of the selected experts{% endif %}{{ " * expert_scale[e]" if SCALED }}
{% endif %}
//
// logits          f32 [rows, EXPERTS]
{% if BIASED %}
// selection_bias  f32 [EXPERTS]
{% endif %}
{% if SCALED %}
// expert_scale    f32 [EXPERTS]
{% endif %}
// routes          Route [rows, TOP_K]
//
// One call for each row. Each thread computes the rank of an expert, the number of experts before it.
// Accumulates in f32.
{% set by_logits = not BIASED and GROUP_SCORE != "top2" %}
{% set probabilities = SCORING == "softmax" and not by_logits %}
{% set sums_all = SCORING == "softmax" and (probabilities or not NORMALIZE) %}
{% include "snippets/route.wgsl" %}
{% include "snippets/finite.wgsl" %}
{% if SCORING == "sigmoid" %}
{% include "snippets/sigmoid.wgsl" %}
{% endif %}
var<storage, read> logits: array<f32>;
{% if BIASED %}
var<storage, read> selection_bias: array<f32>;
{% endif %}
{% if SCALED %}
var<storage, read> expert_scale: array<f32>;
{% endif %}
var<storage, read_write> routes: array<Route>;

override EXPERTS: u32;
override TOP_K: u32;
{% if GROUP_SCORE %}
override GROUPS: u32;
override TOP_GROUPS: u32;
{% endif %}
override SCALE: f32;
{% if SCORING == "sparsemixer" %}
override MARGIN: f32;
{% endif %}

var<workgroup> scores: array<f32, EXPERTS>;   // logits, or their sigmoids
var<workgroup> choices: array<f32, EXPERTS>;  // {{ "the logits, which have the order of choice(e)" if by_logits else "choice(e)" }}
var<workgroup> chosen: array<u32, TOP_K>;     // 0 at first, and so always an expert, even with logits that are NaN
{% if GROUP_SCORE %}
var<workgroup> group_scores: array<f32, GROUPS>;

fn group_score(group: u32) -> f32 {
    let size = EXPERTS / GROUPS;
    var best = LOWEST;
    var second = LOWEST;
    for (var i = group * size; i < (group + 1u) * size; i++) {
        second = max(second, min(best, choices[i]));
        best = max(best, choices[i]);
    }
    return {{ "best + select(0.0, second, size > 1u)" if GROUP_SCORE == "top2" else "best" }};
}

fn is_selected(group: u32) -> bool {
    let own = group_scores[group];
    var before = 0u;
    for (var i = 0u; i < GROUPS; i++) {
        let other = group_scores[i];
        before += select(0u, 1u, other > own || (other == own && i < group));
    }
    return before < TOP_GROUPS;
}
{% endif %}

fn rank_of(expert: u32) -> u32 {
    let own = choices[expert];
    var before = 0u;
    for (var i = 0u; i < EXPERTS; i++) {
        let other = choices[i];
        before += select(0u, 1u, other > own || (other == own && i < expert));
    }
    return before;
}
{% if SCORING == "softmax" %}

// Exponents are relative to the largest logit of those that are summed.
struct ExpSum {
    largest: f32,
    sum: f32,
}

{% if sums_all %}
{% include "snippets/reduce_max.wgsl" %}
{% include "snippets/reduce_sum.wgsl" %}

fn exp_sum_of_all(thread: Thread) -> ExpSum {
    var own = LOWEST;
    for (var i = thread.index; i < EXPERTS; i += WG) {
        own = max(own, scores[i]);
    }
    let largest = reduce_max(own, thread);
    var sum = 0.0;
    for (var i = thread.index; i < EXPERTS; i += WG) {
        sum += exp(scores[i] - largest);
    }
    return ExpSum(largest, reduce_sum(vec4<f32>(sum, 0.0, 0.0, 0.0), thread).x);
}
{% endif %}

fn exp_sum_of_chosen() -> ExpSum {
    var largest = LOWEST;
    for (var s = 0u; s < TOP_K; s++) {
        largest = max(largest, scores[chosen[s]]);
    }
    var sum = 0.0;
    for (var s = 0u; s < TOP_K; s++) {
        sum += exp(scores[chosen[s]] - largest);
    }
    return ExpSum(largest, sum);
}
{% endif %}

// The weight of the s-th of the chosen experts.
fn routing_weight(s: u32{{ ", over: ExpSum" if SCORING == "softmax" }}) -> f32 {
    let expert = chosen[s];
{% if SCORING == "sparsemixer" %}
    let top = scores[expert];
    var sum = 0.0;
    for (var i = 0u; i < EXPERTS; i++) {
        var left = true;
        for (var earlier = 0u; earlier < s; earlier++) {
            left = left && chosen[earlier] != i;
        }
        if (left && top - scores[i] <= MARGIN * max(abs(scores[i]), top)) {
            sum += exp(scores[i] - top);
        }
    }
    return SCALE / sum;
{% elif SCORING == "softmax" %}
    return SCALE * exp(scores[expert] - over.largest) / over.sum;
{% elif NORMALIZE %}
    var sum = 0.0;
    for (var other = 0u; other < TOP_K; other++) {
        sum += scores[chosen[other]];
    }
    // All sigmoids may be zero in f32.
    return SCALE * scores[expert] / max(sum, 1e-20);
{% else %}
    return SCALE * scores[expert];
{% endif %}
}

fn phase(row: u32, thread: Thread) {
    for (var i = thread.index; i < EXPERTS; i += WG) {
        let logit = logits[row * EXPERTS + i];
{% if SCORING == "sigmoid" %}
        scores[i] = sigmoid(logit);
{% else %}
        scores[i] = logit;
{% endif %}
{% if by_logits %}
        // Scores grow with the logits, but different logits may have the same score in f32.
        choices[i] = ranked(logit);
{% elif not probabilities %}
        choices[i] = ranked(scores[i]{{ " + selection_bias[i]" if BIASED }});
{% endif %}
    }
    workgroupBarrier();
{% if sums_all %}
    let all = exp_sum_of_all(thread);
{% endif %}
{% if probabilities %}
    for (var i = thread.index; i < EXPERTS; i += WG) {
        let probability = exp(scores[i] - all.largest) / all.sum;
        choices[i] = ranked(probability{{ " + selection_bias[i]" if BIASED }});
        // A logit that is NaN may not be among those chosen, but makes all probabilities NaN.
        scores[i] = select(scores[i], probability, is_nan(probability));
    }
    workgroupBarrier();
{% endif %}
{% if GROUP_SCORE %}
    for (var i = thread.index; i < GROUPS; i += WG) {
        group_scores[i] = group_score(i);
    }
    workgroupBarrier();
    for (var i = thread.index; i < EXPERTS; i += WG) {
        if (!is_selected(i / (EXPERTS / GROUPS))) {
            choices[i] = LOWEST;
        }
    }
    workgroupBarrier();
{% endif %}
    for (var i = thread.index; i < EXPERTS; i += WG) {
        let rank = rank_of(i);
        if (rank < TOP_K) {
            chosen[rank] = i;
        }
    }
    workgroupBarrier();
{% set over = "" if SCORING != "softmax" else ", exp_sum_of_chosen()" if NORMALIZE else ", all" %}
    for (var s = thread.index; s < TOP_K; s += WG) {
        let weight = routing_weight(s{{ over }}){{ " * expert_scale[chosen[s]]" if SCALED }};
        routes[row * TOP_K + s] = Route(chosen[s], weight);
    }
}
