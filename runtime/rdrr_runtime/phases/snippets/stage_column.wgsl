// A step is 32 stored rows (inputs), {{ TILE_N // 32 }} units of outputs each.
fn steps() -> u32 {
    return (PART + 31u) / 32u;
}

fn fetch_weights(tile: u32, s: u32, j: u32) -> array<vec4<f32>, 8> {
    let k = s * 32u + j / {{ TILE_N // 32 }}u;
    let unit = tile * {{ TILE_N // 32 }}u + j % {{ TILE_N // 32 }}u;
    return load_unit(min(k, PART - 1u) * ROW_WORDS, min(unit, UNITS - 1u));
}

fn put_weights(j: u32, w: array<vec4<f32>, 8>) {
{% for i in range(8) %}
    tile_w[(j / {{ TILE_N // 32 }}u) * {{ TILE_N // 4 }}u + (j % {{ TILE_N // 32 }}u) * 8u + {{ i }}u] = w[{{ i }}];
{% endfor %}
}

// Half of a step's inputs of a token row; those beyond the part count for nothing as zeros.
fn fetch_x(s: u32, row: u32, half: u32) -> array<vec4<f32>, 4> {
    var v: array<vec4<f32>, 4>;
{% for i in range(4) %}
    let k{{ i }} = s * 32u + half * 16u + {{ 4 * i }}u;
    let inside{{ i }} = k{{ i }} < PART;
    let v{{ i }} = vec4<f32>(x[(row * K + FIRST + select(0u, k{{ i }}, inside{{ i }})) / 4u]);
    v[{{ i }}] = select(vec4<f32>(0.0), v{{ i }}, inside{{ i }});
{% endfor %}
    return v;
}

// N, beyond every output, where the stored row has no such unit.
fn output_index(tile: u32, j: u32) -> u32 {
    let unit = tile * {{ TILE_N // 32 }}u + j / 32u;
    return select(N, unit_element(unit, (j % 32u) / 4u) + j % 4u, unit < UNITS);
}
