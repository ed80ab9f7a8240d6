// out[r, h, :] = V_h in[r, h, :], where the matrix V_h is the last VALUE_DIM of the KEY_DIM + VALUE_DIM rows of head h.
//
{% set AHEAD = 16 %}
{% if COMBINE %}
// in combines the partial results of split attention: with (m_s, l_s) = stats[r, h, s] and m = max_s m_s,
// in[r, h, :] = sum_s e^(m_s - m) sums[r, h, s, :] / sum_s e^(m_s - m) l_s; splits without keys are the last ones.
//
{% endif %}
// current  Step
{% if COMBINE %}
// sums     f32 [rows, HEADS, SPLITS, LATENT]
// stats    f32 [rows, HEADS, SPLITS, 2]: maximum score m_s, exp sum l_s, which is 0 for a split without keys
{% else %}
// latents  {{ VALUE }} [rows, HEADS, LATENT], which is in
{% endif %}
// weight0  [HEADS (KEY_DIM + VALUE_DIM), LATENT], layout as in formats.py
// out      {{ VALUE }} [rows, HEADS, VALUE_DIM]
//
// An item is WG / UNITS outputs of a head of {{ ROWS ~ " rows" if ROWS > 1 else "a row" }}; UNITS threads share an output. Accumulates in
// f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
var<storage, read> current: Step;
{% if COMBINE %}
var<storage, read> sums: array<vec4<f32>>;
var<storage, read> stats: array<vec2<f32>>;
{% else %}
var<storage, read> latents: array<vec4<{{ VALUE }}>>;
{% endif %}
var<storage, read> weight0: array<vec4<u32>>;
var<storage, read_write> out: array<{{ VALUE }}>;

override HEADS: u32;
override KEY_DIM: u32;
override VALUE_DIM: u32;
override LATENT: u32;
override UNITS: u32;  // half units (32 weights) of a row

{% set DEQUANTIZED = true %}
{% include "weights/snippets/weights.wgsl" %}

override WORDS = LATENT / 4u;
override EACH = WG / UNITS;  // outputs of an item
override STAGED = {{ 9 * ROWS }}u * UNITS;
override ITEMS = (VALUE_DIM + EACH - 1u) / EACH;

// in, [{{ ROWS }}, UNITS, 9]: the ninth word of a unit is padding, so that threads read from different banks.
var<workgroup> staged: array<vec4<f32>, STAGED>;
var<workgroup> parts: array<vec4<f32>, WG>;  // a number of each row

fn staged_at(r: u32, word: u32) -> u32 {
    return (r * UNITS + word / 8u) * 9u + word % 8u;
}

{% if COMBINE %}
override SPLITS: u32;
const LANES = {{ LANES }}u;  // threads that share a word of in
var<workgroup> maxima: array<f32, SPLITS>;
// For each split e^(m_s - m), and that times l_s; the latter is 0 without keys.
var<workgroup> factors: array<vec2<f32>, SPLITS>;

{% include "snippets/has_keys.wgsl" %}

fn load_factors(at: u32, t: u32) {
    for (var s = t; s < SPLITS; s += WG) {
        factors[s] = stats[at * SPLITS + s];
        maxima[s] = factors[s].x;
    }
    workgroupBarrier();
    for (var s = t; s < SPLITS; s += WG) {
        var top = -3.0e38;
        for (var i = 0u; i < SPLITS; i++) {
            top = max(top, maxima[i]);
        }
        let factor = exp(maxima[s] - top);
        factors[s] = vec2<f32>(factor, factor * factors[s].y);
    }
    workgroupBarrier();
}

// Sums over every LANES-th split from `lane` on: a word of in times the exp sum of all splits.
fn combined(at: u32, word: u32, lane: u32) -> vec4<f32> {
    var sum = vec4<f32>(0.0);
    // Several splits at a time, so that their loads overlap.
    for (var s = lane; s < SPLITS; s += {{ AHEAD }}u * LANES) {
        if (!has_keys(factors[s].y)) {
            break;
        }
{% for j in range(AHEAD) %}
        let split{{ j }} = min(s + {{ j }}u * LANES, SPLITS - 1u);
        let x{{ j }} = sums[(at * SPLITS + split{{ j }}) * WORDS + word];
{% endfor %}
{% for j in range(AHEAD) %}
        if (s + {{ j }}u * LANES < SPLITS && has_keys(factors[split{{ j }}].y)) {  // without keys x may be NaN
            sum += factors[split{{ j }}].x * x{{ j }};
        }
{% endfor %}
    }
    return sum;
}

// The exp sum of all splits.
fn exp_sum() -> f32 {
    var total = 0.0;
    for (var s = 0u; s < SPLITS; s++) {
        total += factors[s].y;
    }
    return total;
}

fn stage(r: u32, at: u32, t: u32) {
    load_factors(at, t);
    let lane = t / WORDS;
    let total = exp_sum();
    var own = vec4<f32>(0.0);
    if (lane < LANES) {
        for (var word = t % WORDS; word < WORDS; word += WG) {
            own = combined(at, word, lane) / total;
            if (lane + 1u == LANES) {
                staged[staged_at(r, word)] = own;
            }
        }
    }
{% if LANES == 2 %}
    workgroupBarrier();
    if (lane == 0u) {
        staged[staged_at(r, t)] += own;
    }
{% endif %}
    workgroupBarrier();
}
{% else %}
fn stage(r: u32, at: u32, t: u32) {
    for (var word = t; word < WORDS; word += WG) {
        staged[staged_at(r, word)] = vec4<f32>(latents[at * WORDS + word]);
    }
}
{% endif %}

fn phase(item: u32, row: u32, thread: Thread) {
    let t = thread.index;
    let head = item / ITEMS;
    let output = (item % ITEMS) * EACH + t / UNITS;
    let unit = t % UNITS;
    let is_live = t / UNITS < EACH && output < VALUE_DIM;
    let w = weights0(head * (KEY_DIM + VALUE_DIM) + KEY_DIM + min(output, VALUE_DIM - 1u), unit);
{% for r in range(ROWS) %}
    stage({{ r }}u, min(row + {{ r }}u, current.rows - 1u) * HEADS + head, t);
{% endfor %}
    workgroupBarrier();
    var acc = vec4<f32>(0.0);
    if (is_live) {
{% for i in range(8) %}
        if (32u * unit + {{ 4 * i }}u < LATENT) {
{% for r in range(ROWS) %}
            acc[{{ r }}] += dot(w[{{ i }}], staged[({{ r }}u * UNITS + unit) * 9u + {{ i }}u]);
{% endfor %}
        }
{% endfor %}
    }
    parts[t] = acc;
    workgroupBarrier();
    if (is_live && unit == 0u) {
        var sum = vec4<f32>(0.0);
        for (var i = 0u; i < UNITS; i++) {
            sum += parts[t + i];
        }
{% for r in range(ROWS) %}
        if (row + {{ r }}u < current.rows) {
            out[((row + {{ r }}u) * HEADS + head) * VALUE_DIM + output] = value(sum[{{ r }}]);
        }
{% endfor %}
    }
}
