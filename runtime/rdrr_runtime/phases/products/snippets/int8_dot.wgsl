// Int8 dot products whose i32 sum is converted to f32 by a single subtraction. The sum starts at the bits
// of the f32 number 1.5 * 2^23: near it, adding an integer to the bits adds the integer to the value.
const MAGIC_BITS = 0x4b400000i;
const MAGIC = 12582912.0;  // the number itself

fn dot16(sum: i32, a: vec4<u32>, b: vec4<u32>) -> i32 {
    return sum + dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y)
        + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

fn magic_to_f32(sum: i32) -> f32 {
    return bitcast<f32>(sum) - MAGIC;
}

// The sum times a scale, in one multiply-add instead of two operations; `scaled` is MAGIC times the scale.
// A scale with at most 22 significant bits, as blocks have them, makes `scaled` exact. Where a device rounds the
// product before it adds, the error is within one unit of the sum, far less than the rounding of inputs to int8.
fn magic_times(sum: i32, scale: f32, scaled: f32) -> f32 {
    return fma(bitcast<f32>(sum), scale, -scaled);
}
