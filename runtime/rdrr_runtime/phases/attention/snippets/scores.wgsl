// The attention mask (which slots a row attends to), the softcap of scores, and sinks: logits that take part
// in the softmax without a value. A softmax begins with the sink as its maximum and 1 as its sum.
override HEADS: u32;
override SCALE: f32;
override WINDOW: u32;   // sliding window: slots that a row attends to, its own included; 0 for all
override SOFTCAP: f32;  // 0 for none
override CHUNK: u32 = 0u;  // length of the chunks of slots that a row attends within; 0 for none

{% if SINKS %}
var<storage, read> sinks: array<f32>;  // [HEADS]

{% endif %}
const LOWEST = -3.0e38;  // finite, so that no difference of scores is NaN

// Maximum and sum with which the softmax of a head begins.
fn initial_max(head: u32) -> f32 {
    return {{ "sinks[head]" if SINKS else "LOWEST" }};
}

const INITIAL_SUM = {{ "1.0" if SINKS else "0.0" }};

// The slots that a row at `slot` attends to: from x up to, but not including, y.
{% if BIDIRECTIONAL %}
// They end with the slot of the last row of the pass, and the window lies on both sides.
fn attended_slots(slot: u32) -> vec2<u32> {
    let last = min(current.row[current.rows - 1u].slot + 1u, CONTEXT);
    let chunk = slot / max(CHUNK, 1u) * CHUNK;
    let first = max(chunk, select(0u, slot + 1u - min(slot + 1u, WINDOW), WINDOW > 0u));
    let end = min(select(last, slot + WINDOW, WINDOW > 0u), select(last, chunk + CHUNK, CHUNK > 0u));
    return vec2<u32>(first, min(last, end));
}
{% else %}
fn attended_slots(slot: u32) -> vec2<u32> {
    let end = min(slot + 1u, CONTEXT);
    let first = select(0u, end - min(end, WINDOW), WINDOW > 0u);
    return vec2<u32>(max(first, select(0u, (end - 1u) / max(CHUNK, 1u) * CHUNK, CHUNK > 0u)), end);
}
{% endif %}

{% include "snippets/float_bits.wgsl" %}

// SOFTCAP tanh(score / SOFTCAP), or the score where SOFTCAP is 0. NaN and infinity stay as they are: the clamp
// would hide them, and no logit would show that a query or key is broken.
fn softcapped(score: f32) -> f32 {
    if (SOFTCAP > 0.0 && is_finite(score)) {
        return SOFTCAP * tanh(clamp(score / SOFTCAP, -15.0, 15.0));
    }
    return score;
}
