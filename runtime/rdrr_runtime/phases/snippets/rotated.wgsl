// Rotate the pair (a, b) by an angle, given as (cos, sin).
fn rotated(a: f32, b: f32, angle: vec2<f32>) -> vec2<f32> {
    return vec2<f32>(a * angle.x - b * angle.y, b * angle.x + a * angle.y);
}
