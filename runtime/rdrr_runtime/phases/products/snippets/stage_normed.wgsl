// Stage the inputs of all rows: quantized to int8 behind the norm, but not yet divided by the root mean square
// of their row, by which the sums of the products are divided. A row has WG / {{ ALL_ROWS }} threads, at least 16, each of
// which has up to {{ LOADS }} times 4 elements.
{% set ROW_THREADS = "(WG / %du)" % ALL_ROWS %}
override K: u32;
override EPS: f32;
override OFFSET: f32;
var<workgroup> squares: array<f32, WG>;  // one for 16 threads

{% set SHARING, LANES_TOGETHER, SUMMED = 8, 16, true %}
{% include "snippets/abs_max.wgsl" %}
{% include "products/snippets/quantize_quad.wgsl" %}

fn stage(row: u32, thread: Thread, subgroup_size: u32) {
    var t = thread.index;
{% if SUBGROUPS %}
    if (subgroup_size >= 16u) {
        t = thread.subgroup * subgroup_size + thread.lane;
    }
{% endif %}
    let r = t / {{ ROW_THREADS }};
    let exists = row + r < current.rows;
    let first = min(row + r, current.rows - 1u) * (K / 4u);
    var sum = 0.0;
{% for l in range(LOADS) %}
    let quad{{ l }} = t % {{ ROW_THREADS }} + {{ l }}u * {{ ROW_THREADS }};
    let at{{ l }} = min(quad{{ l }}, K / 4u - 1u);
    let gain{{ l }} = gain[at{{ l }}];
    let x{{ l }} = x[first + at{{ l }}];
{% endfor %}
{% for l in range(LOADS) %}
    var v{{ l }} = vec4<f32>(0.0);
    if (exists && 4u * quad{{ l }} < K) {
        v{{ l }} = x{{ l }};
    }
    sum += dot(v{{ l }}, v{{ l }});
    stage_quad(v{{ l }} * (OFFSET + gain{{ l }}), r, quad{{ l }}, t, subgroup_size);
{% endfor %}
{% for distance in (1, 2, 4, 8) %}
    sum += bitcast<f32>(of_other(bitcast<u32>(sum), {{ distance }}u, t, subgroup_size));
{% endfor %}
    if (t % 16u == 0u) {
        squares[t / 16u] = sum;
    }
    workgroupBarrier();
}

// Stage 4 elements of a row: one thread of four stores their codes, one of sixteen the scales of a unit.
fn stage_quad(v: vec4<f32>, r: u32, quad: u32, t: u32, subgroup_size: u32) {
    let rounded = quantized(v, t, subgroup_size);
    let codes = vec4<u32>(
        rounded.codes,
{% for i in range(1, 4) %}
        of_other(rounded.codes, {{ i }}u, t, subgroup_size),
{% endfor %}
    );
    let scale = bitcast<u32>(rounded.scale);
    let product = bitcast<u32>(rounded.scale * f32(rounded.sum));
    let next = vec2<u32>(of_other(scale, 8u, t, subgroup_size), of_other(product, 8u, t, subgroup_size));
    let unit = quad / 16u;
    if (unit < UNITS) {
        if (quad % 4u == 0u) {
            staged[(5u * r + quad % 16u / 4u) * UNITS + unit] = codes;
        }
        if (quad % 16u == 0u) {
            staged[(5u * r + 4u) * UNITS + unit] = vec4<u32>(scale, product, next);
        }
    }
}

// 1 / root mean square of a row.
fn row_factor(r: u32) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < {{ ROW_THREADS }} / 16u; i++) {
        sum += squares[r * ({{ ROW_THREADS }} / 16u) + i];
    }
    return inverseSqrt(sum / f32(K) + EPS);
}
