// A step is 32 stored rows (inputs), two units of outputs each.
fn steps() -> u32 {
    return (PART + 31u) / 32u;
}

fn stage_weights(tile: u32, s: u32, j: u32) {
    let k = s * 32u + j / 2u;
    let unit = tile * 2u + j % 2u;
    let w = load_unit(min(k, PART - 1u) * ROW_WORDS, min(unit, UNITS - 1u));
{% for i in range(8) %}
    tile_w[(j / 2u) * 16u + (j % 2u) * 8u + {{ i }}u] = w[{{ i }}];
{% endfor %}
}

// Inputs beyond the part count for nothing because x is zero there.
fn stage_x(s: u32, m: u32, row: u32) {
{% for i in range(8) %}
    let k{{ i }} = s * 32u + {{ 4 * i }}u;
    var v{{ i }} = vec4<f32>(0.0);
    if (k{{ i }} < PART) {
        v{{ i }} = x[(row * K + FIRST + k{{ i }}) / 4u];
    }
{% for c in range(4) %}
    tile_x[{{ i * 4 + c }}u * (TILE_M / 4u) + m / 4u][m % 4u] = v{{ i }}[{{ c }}];
{% endfor %}
{% endfor %}
}

// N, beyond every output, where the stored row has no such unit.
fn output_index(tile: u32, j: u32) -> u32 {
    let unit = tile * 2u + j / 32u;
    return select(N, unit_element(unit, (j % 32u) / 4u) + j % 4u, unit < UNITS);
}
