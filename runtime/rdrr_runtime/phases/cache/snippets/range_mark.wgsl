// f16 bits of the NaN that stands for numbers whose magnitudes, given by their bits, are beyond the range of a cache.
// Its lowest 8 bits are the exponent of the number, from which range_check.py tells how large it was.
fn range_marks(magnitude: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(0x7e00u) | (magnitude >> vec4<u32>(23u));
}
