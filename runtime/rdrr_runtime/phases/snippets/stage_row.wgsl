// A step is one unit of K of {{ TILE_N }} stored rows. Lanes beyond K hold weights other than zero in
// packages of other writers; they count for nothing because x is zero there.
fn steps() -> u32 {
    return UNITS;
}

{% include "snippets/row_unit.wgsl" %}

fn fetch_weights(tile: u32, unit: u32, j: u32) -> array<vec4<f32>, 8> {
    return load_row_unit(min(tile * {{ TILE_N }}u + j, PART - 1u), unit);
}

fn put_weights(j: u32, w: array<vec4<f32>, 8>) {
{% for i in range(8) %}
{% for c in range(4) %}
    tile_w[{{ (i * 4 + c) * (TILE_N // 4) }}u + j / 4u][j % 4u] = w[{{ i }}][{{ c }}];
{% endfor %}
{% endfor %}
}

// Half a unit of inputs of a token row.
fn fetch_x(unit: u32, row: u32, half: u32) -> array<vec4<f32>, 4> {
    var v: array<vec4<f32>, 4>;
{% for i in range(4) %}
    let k{{ i }} = unit_element(unit, 4u * half + {{ i }}u);
    let inside{{ i }} = k{{ i }} < K;
    let v{{ i }} = vec4<f32>(x[(row * K + select(0u, k{{ i }}, inside{{ i }})) / 4u]);
    v[{{ i }}] = select(vec4<f32>(0.0), v{{ i }}, inside{{ i }});
{% endfor %}
    return v;
}

// N, beyond every output, where the part has no such row.
fn output_index(tile: u32, j: u32) -> u32 {
    let n = tile * {{ TILE_N }}u + j;
    return select(N, FIRST + n, n < PART);
}
