// The attention mask (which slots a row attends to), the softcap of scores, and sinks: logits that take part
// in the softmax without a value. A softmax begins with the sink as its maximum and 1 as its sum.
override HEADS: u32;
override SCALE: f32;
override WINDOW: u32;   // sliding window: slots that a row attends to, its own included; 0 for all
override SOFTCAP: f32;  // 0 for none
override CHUNK: u32 = 0u;  // length of the chunks of slots that a row attends within; 0 for none
// A token from this on is that of an image whose rows attend to all of it: this and the slot behind the image.
override IMAGES: u32 = 0xffffffffu;

{% if SINKS %}
var<storage, read> sinks: array<f32>;  // [HEADS]

{% endif %}
const LOWEST = -3.0e38;  // finite, so that no difference of scores is NaN

// Maximum and sum with which the softmax of a head begins.
fn initial_max(head: u32) -> f32 {
    return {{ "sinks[head]" if SINKS else "LOWEST" }};
}

const INITIAL_SUM = {{ "1.0" if SINKS else "0.0" }};

{% if SEGMENTS %}
{% include "snippets/segment.wgsl" %}

{% endif %}
{% if BUCKETS %}
var<storage, read> bias: array<f32>;  // [buckets, HEADS]

// The bias of a head on the score of the slots `own` and `other`: half of the buckets, which come after the
// others, are those of later slots.
fn bias_of(head: u32, own: u32, other: u32) -> f32 {
    let distance = max(own, other) - min(own, other);
    var bucket = min(distance, {{ BUCKETS[0] }}u){% for first in BUCKETS[2:] %} + u32(distance >= {{ first }}u){% endfor %};
    bucket += select(0u, {{ BUCKETS[1] }}u, other > own);
    return bias[bucket * HEADS + head];
}

{% elif ALIBI %}
// The bias of a head on the score of the slots `own` and `other` (ALiBi): slopes fall with the head, and heads
// beyond the last power of two have slopes between those of the others.
fn bias_of(head: u32, own: u32, other: u32) -> f32 {
    let power = 1u << firstLeadingBit(HEADS);
    let step = select(f32(head - power) + 0.5, f32(head + 1u), head < power);
    let distance = max(own, other) - min(own, other);
    return -f32(distance) * exp2(-step * {{ ALIBI }} / f32(power));
}

{% endif %}
// The slots that a row attends to: from x up to, but not including, y.
{% if SEGMENTS %}
// They are those of its text, and the window lies on both sides.
fn attended_slots(row: Row) -> vec2<u32> {
    let slot = row.slot;
    let text = segments[min(slot, CONTEXT - 1u)];
    let chunk = (slot - text.first) / max(CHUNK, 1u) * CHUNK;
    let first = max(text.first + chunk, select(0u, slot + 1u - min(slot + 1u, WINDOW), WINDOW > 0u));
    let end = min(select(text.end, slot + WINDOW, WINDOW > 0u), select(text.end, text.first + chunk + CHUNK, CHUNK > 0u));
    return vec2<u32>(first, min(min(text.end, end), CONTEXT));
}
{% else %}
fn attended_slots(row: Row) -> vec2<u32> {
    let end = min(row.slot + 1u, CONTEXT);
    let first = select(0u, end - min(end, WINDOW), WINDOW > 0u);
    let last = select(end, min(row.token - IMAGES, CONTEXT), row.token >= IMAGES);
    return vec2<u32>(max(first, select(0u, (end - 1u) / max(CHUNK, 1u) * CHUNK, CHUNK > 0u)), last);
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
