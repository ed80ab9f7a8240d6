// Sums in fixed point, to which workgroups add in any order with the same result: words of 2^-23 [N], then words
// of quarters [N], to which only values of a quarter or more add. Values out of range are added as f32 to
// [N] more. Before these are four words, of which the first says whether there are quarters or f32.
const PARTS = 8388608.0;         // 2^23
const QUARTER = 0.25;            // 1,000 parts below it do not overflow
const RANGE = 524288.0;          // nor do the quarters of 1,000 values below it

fn from_fixed_point(parts: vec4<u32>, quarters: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(bitcast<vec4<i32>>(parts)) / PARTS + QUARTER * vec4<f32>(bitcast<vec4<i32>>(quarters));
}
