// f16 bits of the scale of the 32 elements that begin at vector i of {{ NAME }}.
fn {{ NAME }}_scale(i: u32) -> u32 {
    var largest = 0u;
    for (var j = 0u; j < 8u; j++) {
        largest = max(largest, bits_of_abs_max({{ VECTOR }}));
    }
    return scale_bits(largest);
}
