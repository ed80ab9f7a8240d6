fn code_word(n: u32, k: u32, word: u32) -> u32 {
    var bits = 0u;
    for (var i = 0u; i < 4u; i++) {
        let at = k + 4u * word + i;
        if (at < INPUTS) {
            let stored_word = stored[at * ROW_WORDS + n / 32u * 9u + 1u + n % 32u / 4u];
            bits |= ((stored_word >> (8u * (n % 4u))) & 255u) << (8u * i);
        }
    }
    return bits;
}

// d: K words for each 32 outputs.
fn factor_word(word: u32) -> u32 {
    let k = word % K;
    return select(0u, stored[min(k, INPUTS - 1u) * ROW_WORDS + word / K * 9u], k < INPUTS);
}
