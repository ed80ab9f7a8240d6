// The gates of a row and value head in the delta rule.
{% include "states/snippets/delta_gates.wgsl" %}

fn log_decay(row: u32, head: u32) -> f32 {
    return log_decay_of(f32(decay[row * HEADS + head]) + rates[HEADS + head], rates[head]);
}

fn write_strength(row: u32, head: u32) -> f32 {
    return sigmoid(f32(strength[row * HEADS + head]));
}
