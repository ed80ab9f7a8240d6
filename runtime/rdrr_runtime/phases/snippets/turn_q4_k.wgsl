{% set S = 0 %}
{% set SEGMENTS = ["q4_k"] %}
{% include "snippets/q4_k_header.wgsl" %}

fn code(k: u32, n: u32) -> u32 {
    if (k >= INPUTS) {
        return 0u;
    }
    let element = n % 256u;
    let byte = element / 64u * 32u + element % 32u;
    let word = stored[k * ROW_WORDS + n / 256u * 36u + 4u + byte / 4u];
    return (word >> (8u * (byte % 4u) + element / 32u % 2u * 4u)) & 15u;
}

// Bytes with 4 elements in their low halves and those 16 further in their high ones.
fn code_word(n: u32, k: u32, word: u32) -> u32 {
    let first = k + word / 4u * 32u + word % 4u * 4u;
    var bits = 0u;
    for (var i = 0u; i < 4u; i++) {
        bits |= (code(first + i, n) | (code(first + 16u + i, n) << 4u)) << (8u * i);
    }
    return bits;
}

// d, dmin: K words each; then of each 32 outputs a word of scales and one of minimums for 4 k.
fn factor_word(word: u32) -> u32 {
    let block = word / (6u * K);
    let at = word % (6u * K);
    if (at < 2u * K) {
        let k = at % K;
        if (k >= INPUTS) {
            return 0u;
        }
        let pair = half_scales(stored[k * ROW_WORDS + block * 36u]);
        return bitcast<u32>(select(pair.x, pair.y, at >= K));
    }
    let group = (at - 2u * K) / (K / 2u);
    let pair = (at - 2u * K) % (K / 2u);
    var bits = 0u;
    for (var i = 0u; i < 4u; i++) {
        let k = pair / 2u * 4u + i;
        if (k < INPUTS) {
            let base = k * ROW_WORDS + block * 36u + 1u;
            let s = scale_pairs(
                vec3<u32>(stored[base], stored[base + 1u], stored[base + 2u]), group / 2u * 2u
            );
            let both = select(s.xz, s.yw, group % 2u == 1u);
            bits |= u32(select(both.x, both.y, pair % 2u == 1u)) << (8u * i);
        }
    }
    return bits;
}
