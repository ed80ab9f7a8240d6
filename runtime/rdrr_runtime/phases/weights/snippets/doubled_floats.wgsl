// Convert 4-bit floats (a sign, two exponent bits, one mantissa bit), one in each byte, to int8 integers of
// twice their values: the magnitudes 0 to 7 become 0, 1, 2, 3, 4, 6, 8 and 12. No byte carries into another.
fn doubled_floats(codes: vec4<u32>) -> vec4<u32> {
    let ones = vec4<u32>(0x01010101u);
    let low = codes & vec4<u32>(0x03030303u);
    let last = low & (low >> vec4<u32>(1u)) & ones;  // of 3 and 7
    let upper = ((codes >> vec4<u32>(2u)) & ones) * 15u;  // all bits where the magnitude is 4 or more
    let magnitude = low + ((low + vec4<u32>(0x04040404u) + 2u * last) & upper);
    let some = magnitude + vec4<u32>(0x7f7f7f7fu);  // the top bit of each byte: whether it is not 0
    let negative = (codes >> vec4<u32>(3u)) & (some >> vec4<u32>(7u)) & ones;
    return (magnitude ^ (negative * 255u)) + negative;
}
