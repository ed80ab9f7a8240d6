// The pairs of a head that rope rotates: elements i and i + PAIRS, or 2i and 2i + 1 if interleaved.
{% if INTERLEAVED %}
// Index of the first element of a pair.
fn first_of_pair(pair: u32) -> u32 {
    return 2u * pair;
}

// Index of the second element of the pair that begins at an element.
fn partner(first: u32) -> u32 {
    return first + 1u;
}
{% else %}
// Index of the first element of a pair.
fn first_of_pair(pair: u32) -> u32 {
    return pair;
}

// Index of the second element of the pair that begins at an element.
fn partner(first: u32) -> u32 {
    return first + PAIRS;
}
{% endif %}

// Rotate the pair (a, b) by an angle, given as (cos, sin).
fn rotated(a: f32, b: f32, angle: vec2<f32>) -> vec2<f32> {
    return vec2<f32>(a * angle.x - b * angle.y, b * angle.x + a * angle.y);
}
