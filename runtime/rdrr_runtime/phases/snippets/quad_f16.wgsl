// F16: four weights from two words. Needs no shader-f16.
fn quad(a: u32, b: u32) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(a), unpack2x16float(b));
}
