// A step is one unit of K of 64 stored rows. Lanes beyond K hold weights other than zero in
// packages of other writers; they count for nothing because x is zero there.
fn steps() -> u32 {
    return UNITS;
}

fn stage_weights(tile: u32, unit: u32, j: u32) {
    let w = load_unit(min(tile * 64u + j, PART - 1u) * ROW_WORDS, unit);
    for (var i = 0u; i < 8u; i++) {
        for (var c = 0u; c < 4u; c++) {
            tile_w[(i * 4u + c) * 16u + j / 4u][j % 4u] = w[i][c];
        }
    }
}

fn stage_x(unit: u32, m: u32, row: u32) {
    for (var i = 0u; i < 8u; i++) {
        let k = unit_element(unit, i);
        var v = vec4<f32>(0.0);
        if (k < K) {
            v = x[(row * K + k) / 4u];
        }
        for (var c = 0u; c < 4u; c++) {
            tile_x[(i * 4u + c) * (TILE_M / 4u) + m / 4u][m % 4u] = v[c];
        }
    }
}

// N, beyond every output, where the part has no such row.
fn output_index(tile: u32, j: u32) -> u32 {
    let n = tile * 64u + j;
    return select(N, FIRST + n, n < PART);
}
