fn byte_at(base: u32, byte: u32) -> u32 {
    return (stored[base + byte / 4u] >> (8u * (byte % 4u))) & 255u;
}

// The code of an element, 0 to 63; 32 stands for zero.
fn code(k: u32, n: u32) -> u32 {
    if (k >= INPUTS) {
        return 32u;
    }
    let base = k * ROW_WORDS + n / 256u * 54u;
    let half = n % 256u / 128u;
    let quarter = n % 128u / 32u;
    let low = byte_at(base, 64u * half + 32u * (quarter % 2u) + n % 32u) >> (quarter / 2u * 4u);
    let high = byte_at(base, 128u + 32u * half + n % 32u) >> (2u * quarter);
    return (low & 15u) | ((high & 3u) << 4u);
}

// 8 words of nibbles as for Q4_K; then 4 of high bits, 16 elements each: bits 2 t of byte i are
// those of element 4 t + i.
fn code_word(n: u32, k: u32, word: u32) -> u32 {
    var bits = 0u;
    if (word < 8u) {
        let first = k + word / 4u * 32u + word % 4u * 4u;
        for (var i = 0u; i < 4u; i++) {
            let both = (code(first + i, n) & 15u) | ((code(first + 16u + i, n) & 15u) << 4u);
            bits |= both << (8u * i);
        }
        return bits;
    }
    for (var i = 0u; i < 16u; i++) {
        let high = code(k + 16u * (word - 8u) + i, n) >> 4u;
        bits |= high << (8u * (i % 4u) + 2u * (i / 4u));
    }
    return bits;
}

// d: K words; then of each 16 outputs a word of int8 scales for 4 k.
fn factor_word(word: u32) -> u32 {
    let block = word / (5u * K);
    let at = word % (5u * K);
    if (at < K) {
        return select(0u, stored[min(at, INPUTS - 1u) * ROW_WORDS + block * 54u + 52u], at < INPUTS);
    }
    let group = (at - K) / (K / 4u);
    let first = (at - K) % (K / 4u) * 4u;
    var bits = 0u;
    for (var i = 0u; i < 4u; i++) {
        if (first + i < INPUTS) {
            bits |= byte_at((first + i) * ROW_WORDS + block * 54u, 192u + group) << (8u * i);
        }
    }
    return bits;
}
