// The input of a product with one token row, four elements at a time: unchanged, or multiplied by the gain
// of its norm (the inverse root mean square is applied to the sums), or after LayerNorm, or combined from the partial results
// of attention, or normed head by head; the latter two may be multiplied by gates.
{% if INPUT == "combine" %}
{% include "snippets/has_keys.wgsl" %}
const NO_SCORE = -3.4028234663852886e38;
var<workgroup> split_stats: array<vec2<f32>, PARTIALS>;

// Load the statistics of all splits, each by one thread: that takes no longer than those of one split.
fn load_stats(t: u32) {
    for (var i = t; i < PARTIALS; i += WG) {
        split_stats[i] = stats[i];
    }
    workgroupBarrier();
}
{% endif %}

{% if INPUT_GATE %}
{% include "snippets/sigmoid.wgsl" %}

// Activated gates of inputs 4 i to 4 i + 3.
fn gates_of(i: u32) -> vec4<f32> {
    let width = HEAD_DIM / 4u;
    let first = GATE_FIRST + i / width * GATE_STRIDE + 4u * (i % width);
    let g = vec4<f32>(
        f32(gates[first]), f32(gates[first + 1u]), f32(gates[first + 2u]), f32(gates[first + 3u])
    );
    let s = vec4<f32>(sigmoid(g.x), sigmoid(g.y), sigmoid(g.z), sigmoid(g.w));
    return {{ "g * s" if INPUT_GATE == "silu" else "s" }};
}
{% endif %}

{% if INPUT == "layer_norm" %}
var<private> row_mean: f32;
var<private> row_factor: f32;  // 1 / standard deviation

// Sums over this thread's part of the row of x - x[0] and of its squares: relative to an element of the
// row, the variance loses no digits to a large mean.
fn moments(t: u32) -> vec2<f32> {
    var sums = vec4<f32>(0.0);
    var squares = vec4<f32>(0.0);
    let origin = f32(x[0].x);
    for (var i = t; i < K / 4u; i += WG) {
        let v = vec4<f32>(x[i]) - origin;
        sums += v;
        squares += v * v;
    }
    return vec2<f32>(dot(sums, vec4<f32>(1.0)), dot(squares, vec4<f32>(1.0)));
}

fn set_moments(total: vec2<f32>) {
    let mean = total.x / f32(K);
    row_mean = f32(x[0].x) + mean;
    row_factor = inverseSqrt(max(total.y / f32(K) - mean * mean, 0.0) + EPS);
}
{% endif %}

{% if INPUT != "quantized" %}
// Inputs 4 i to 4 i + 3. With a norm, adds up their squares and does not apply the inverse root mean square.
fn input(i: u32, square_sum: ptr<function, f32>) -> vec4<f32> {
{% if not COLUMN %}
    if (4u * i >= K) {
        return vec4<f32>(0.0);
    }
{% endif %}
{% if INPUT == "norm" and ADDED_NORMED %}
    let v = stream_at(i);
    *square_sum += dot(v, v);
    var g = held_next_gain;
{% if not WHOLE %}
    if (i != held_at) {
        g = gain[K / 4u + i];
    }
{% endif %}
    return v * (OFFSET + g);
{% elif INPUT == "norm" %}
    let g = gain[i];  // first: it comes from memory, and the input may not be there yet
    let v = {{ "stream_at(i)" if ADDED else "vec4<f32>(x[i])" }};
    *square_sum += dot(v, v);
    return v * (OFFSET + g);
{% elif INPUT == "layer_norm" %}
    let v = (vec4<f32>(x[i]) - row_mean) * row_factor;
    return v{{ " * (OFFSET + gain[i])" if INPUT_GAIN }}{{ " + shift[i]" if INPUT_BIAS }};
{% elif INPUT == "combine" %}
    let width = HEAD_DIM / 4u;
    let first = i / width * SPLITS;
    var top = NO_SCORE;
    var sum = vec4<f32>(0.0);
    var total = 0.0;
    // Four splits at a time, so that their loads overlap. Splits without keys are the last ones, and nobody writes
    // their sums.
    for (var s = 0u; s < SPLITS && has_keys(split_stats[first + s].y); s += 4u) {
{% for j in range(4) %}
        let at{{ j }} = first + min(s + {{ j }}u, SPLITS - 1u);
        let split{{ j }} = x[at{{ j }} * width + i % width];
{% endfor %}
{% for j in range(4) %}
        let stat{{ j }} = split_stats[at{{ j }}];
        let counts{{ j }} = s + {{ j }}u < SPLITS && has_keys(stat{{ j }}.y);
{% endfor %}
        let old_top = top;
{% for j in range(4) %}
        top = max(top, select(NO_SCORE, stat{{ j }}.x, counts{{ j }}));
{% endfor %}
        let kept = exp(old_top - top);
        sum *= kept;
        total *= kept;
{% for j in range(4) %}
        if (counts{{ j }}) {
            let factor{{ j }} = exp(stat{{ j }}.x - top);
            total += factor{{ j }} * stat{{ j }}.y;
            sum += factor{{ j }} * split{{ j }};
        }
{% endfor %}
    }
    return sum / total{{ " * gates_of(i)" if INPUT_GATE }};
{% elif INPUT == "gated" %}
    let width = HEAD_DIM / 4u;
    var sum = 0.0;
    for (var block = 0u; block < BLOCKS; block++) {
        sum += squares[i / width * BLOCKS + block];
    }
    let scale = inverseSqrt(sum / f32(HEAD_DIM) + EPS);
    return vec4<f32>(x[i]) * scale * (OFFSET + gain[i % width]) * gates_of(i);
{% elif ADDED %}
    return stream_at(i);
{% else %}
    return vec4<f32>(x[i]);
{% endif %}
}

{% include "snippets/abs_max.wgsl" %}
{% endif %}
