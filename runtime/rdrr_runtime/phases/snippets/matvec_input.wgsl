// The input of a product with one token row, four elements at a time: unchanged, or multiplied by the gain
// of its norm (the inverse root mean square is applied to the sums), or combined from the partial results
// of attention, or normed head by head; the latter two may be multiplied by gates.
{% if INPUT == "combine" %}
var<workgroup> split_max: array<f32, PARTIALS>;  // maximum score of each split of each head
var<workgroup> split_sum: array<f32, PARTIALS>;
var<workgroup> split_factor: array<f32, PARTIALS>;
var<workgroup> live_splits: u32;  // splits that have keys; the same number for all heads of a token

// Whether a split has keys: its sum is not 0. Bits are compared, so that a sum that is NaN counts too.
fn has_keys(sum: f32) -> bool {
    return bitcast<u32>(sum) != 0u;
}

// Compute the factor of each split. The whole workgroup waits for this, so each thread makes few reads of
// memory and the only loop is over the splits of a head.
fn load_split_factors(t: u32) {
    for (var i = t; i < PARTIALS; i += WG) {
        let found = stats[i];
        split_max[i] = found.x;
        split_sum[i] = found.y;
    }
    workgroupBarrier();
    for (var i = t; i < PARTIALS; i += WG) {
        let first = i / SPLITS * SPLITS;
        var max_score = -3.0e38;
        for (var s = 0u; s < SPLITS; s++) {
            max_score = max(max_score, select(-3.0e38, split_max[first + s], has_keys(split_sum[first + s])));
        }
        var sum = 0.0;
        var count = 0u;
        for (var s = 0u; s < SPLITS; s++) {
            let is_live = has_keys(split_sum[first + s]);
            sum += select(0.0, exp(split_max[first + s] - max_score) * split_sum[first + s], is_live);
            count = select(count, s + 1u, is_live);
        }
        split_factor[i] = select(0.0, exp(split_max[i] - max_score) / sum, has_keys(split_sum[i]));
        if (i == 0u) {
            live_splits = count;
        }
    }
    workgroupBarrier();
}
{% endif %}

{% if INPUT_GATE %}
// Activated gates of inputs 4 i to 4 i + 3.
fn gates_of(i: u32) -> vec4<f32> {
    let width = HEAD_DIM / 4u;
    let first = GATE_FIRST + i / width * GATE_STRIDE + 4u * (i % width);
    let g = vec4<f32>(
        f32(gates[first]), f32(gates[first + 1u]), f32(gates[first + 2u]), f32(gates[first + 3u])
    );
    let s = vec4<f32>(1.0) / (vec4<f32>(1.0) + exp(-clamp(g, vec4<f32>(-80.0), vec4<f32>(80.0))));
    return {{ "g * s" if INPUT_GATE == "silu" else "s" }};
}
{% endif %}

{% if INPUT != "quantized" %}
// Inputs 4 i to 4 i + 3. With a norm, adds their squares to totals.x and does not apply the inverse root
// mean square.
fn input(i: u32, totals: ptr<function, vec2<f32>>) -> vec4<f32> {
    if (4u * i >= K) {
        return vec4<f32>(0.0);
    }
{% if INPUT == "norm" %}
    let v = vec4<f32>(x[i]);
    (*totals).x += dot(v, v);
    return v * (OFFSET + gain[i]);
{% elif INPUT == "combine" %}
    let width = HEAD_DIM / 4u;
    let first = i / width * SPLITS;
    var sum = vec4<f32>(0.0);
    // Four splits at a time, so that their loads overlap. Splits without keys are last; their factor is 0.
    for (var s = 0u; s < live_splits; s += 4u) {
{% for j in range(4) %}
        let factor{{ j }} = split_factor[first + min(s + {{ j }}u, SPLITS - 1u)];
        let split{{ j }} = x[(first + min(s + {{ j }}u, SPLITS - 1u)) * width + i % width];
{% endfor %}
{% for j in range(4) %}
        if (s + {{ j }}u < live_splits) {
            sum += factor{{ j }} * split{{ j }};
        }
{% endfor %}
    }
    return {{ "sum * gates_of(i)" if INPUT_GATE else "sum" }};
{% elif INPUT == "gated" %}
    let width = HEAD_DIM / 4u;
    var sum = 0.0;
    for (var block = 0u; block < BLOCKS; block++) {
        sum += squares[i / width * BLOCKS + block];
    }
    let scale = inverseSqrt(sum / f32(HEAD_DIM) + EPS);
    return vec4<f32>(x[i]) * scale * (OFFSET + gain[i % width]) * gates_of(i);
{% else %}
    return vec4<f32>(x[i]);
{% endif %}
}

// The bits of max|v|. As integers they have the order of the numbers, and NaN is the largest, so the scale
// of a group that holds NaN is NaN.
fn bits_of_abs_max(v: vec4<f32>) -> u32 {
    let a = bitcast<vec4<u32>>(abs(v));
    return max(max(a.x, a.y), max(a.z, a.w));
}
{% endif %}
