// The partial results of split attention, combined: x[h] = sum_s e^(m_s - m) x[h, s] / sum_s e^(m_s - m) l_s, with
// (m_s, l_s) = stats[h, s] and m = max_s m_s.
const LOWEST = -3.0e38;
{% include "snippets/has_keys.wgsl" %}

// Elements 4 quad to 4 quad + 3 of a vector of K elements.
fn combined(vector: u32, quad: u32) -> vec4<f32> {
    let head = (vector * K + 4u * quad) / HEAD_DIM * SPLITS;
    let word = 4u * quad % HEAD_DIM / 4u;
{% if UNROLLED | default(0) %}
{% for s in range(UNROLLED) %}
    let stats{{ s }} = stats[head + {{ s }}u];
{% endfor %}
{% for s in range(UNROLLED) %}
    let part{{ s }} = {{ SPLIT_SUMS | default("x") }}[(head + {{ s }}u) * (HEAD_DIM / 4u) + word];
{% endfor %}
    var top = LOWEST;
{% for s in range(UNROLLED) %}
    top = max(top, select(LOWEST, stats{{ s }}.x, has_keys(stats{{ s }}.y)));
{% endfor %}
    var denominator = 0.0;
    var sum = vec4<f32>(0.0);
{% for s in range(UNROLLED) %}
    let weight{{ s }} = exp(stats{{ s }}.x - top);
    if (has_keys(stats{{ s }}.y)) {
        sum += weight{{ s }} * part{{ s }};
    }
    denominator += weight{{ s }} * stats{{ s }}.y;
{% endfor %}
{% else %}
    var top = LOWEST;
    for (var s = 0u; s < SPLITS; s++) {
        let split = stats[head + s];
        top = max(top, select(LOWEST, split.x, has_keys(split.y)));
    }
    var denominator = 0.0;
    var sum = vec4<f32>(0.0);
    for (var s = 0u; s < SPLITS; s++) {
        let split = stats[head + s];
        let weight = exp(split.x - top);
        let part = weight * {{ SPLIT_SUMS | default("x") }}[(head + s) * (HEAD_DIM / 4u) + word];
        // The sums of a split without keys are uninitialised.
        sum += select(vec4<f32>(0.0), part, has_keys(split.y));
        denominator += weight * split.y;
    }
{% endif %}
    return sum / denominator;
}
