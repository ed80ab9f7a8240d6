// A step is one unit of K of 64 stored rows. Lanes beyond K hold weights other than zero in
// packages of other writers; they count for nothing because x is zero there.
fn steps() -> u32 {
    return UNITS;
}

fn stage_weights(tile: u32, unit: u32, j: u32) {
    let w = load_unit(min(tile * 64u + j, PART - 1u) * ROW_WORDS, unit);
{% for i in range(8) %}
{% for c in range(4) %}
    tile_w[{{ (i * 4 + c) * 16 }}u + j / 4u][j % 4u] = w[{{ i }}][{{ c }}];
{% endfor %}
{% endfor %}
}

fn stage_x(unit: u32, m: u32, row: u32) {
{% for i in range(8) %}
    let k{{ i }} = unit_element(unit, {{ i }}u);
    var v{{ i }} = vec4<f32>(0.0);
    if (k{{ i }} < K) {
        v{{ i }} = x[(row * K + k{{ i }}) / 4u];
    }
{% for c in range(4) %}
    tile_x[{{ i * 4 + c }}u * (TILE_M / 4u) + m / 4u][m % 4u] = v{{ i }}[{{ c }}];
{% endfor %}
{% endfor %}
}

// N, beyond every output, where the part has no such row.
fn output_index(tile: u32, j: u32) -> u32 {
    let n = tile * 64u + j;
    return select(N, FIRST + n, n < PART);
}
