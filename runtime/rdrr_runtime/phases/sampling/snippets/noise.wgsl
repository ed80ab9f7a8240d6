// Gumbel noise for a token; `rdrr_runtime/sampling/randomness.py` computes the same on the host.
fn mixed(v: vec4<u32>) -> vec4<u32> {
    var m = v;
    m.x += m.y * m.w;
    m.y += m.z * m.x;
    m.z += m.x * m.y;
    m.w += m.y * m.z;
    return m;
}

// pcg4d of Jarzynski and Olano, "Hash Functions for GPU Rendering" (2020).
fn random_word(seed: vec2<u32>, step: u32, id: u32) -> u32 {
    var v = mixed(vec4(seed, step, id) * 1664525u + 1013904223u);
    v ^= v >> vec4(16u);
    return mixed(v).x;
}

fn gumbel(word: u32) -> f32 {
    let uniform_number = min((f32(word) + 0.5) * 0x1p-32, 1.0 - 0x1p-24);
    // For small u, 1 - u would lose bits of u; there log(1 - u) is computed by its series.
    let u = uniform_number;
    let series = u * (1.0 + u * (0.5 + u * (1.0 / 3.0 + u * 0.25)));
    return -log(select(-log(1.0 - u), series, u < 0.01));
}
