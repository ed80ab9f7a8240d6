// What is known of some logits: the largest and its index (the lower of equal ones), and relative to
// it the sums z of exp(d) and s of d exp(d). No exponential exceeds 1, so none overflows.
struct Part {
    value: f32,
    index: u32,
    z: f32,
    s: f32,
}

const LOWEST = -3.4028234663852886e38;

override WG: u32;

fn join_parts(a: Part, b: Part) -> Part {
    let b_first = b.value > a.value || (b.value == a.value && b.index < a.index);
    let high = select(a.value, b.value, b_first);
    let low = select(b.value, a.value, b_first);
    let index = select(a.index, b.index, b_first);
    let z = select(vec2<f32>(a.z, b.z), vec2<f32>(b.z, a.z), b_first);
    let s = select(vec2<f32>(a.s, b.s), vec2<f32>(b.s, a.s), b_first);
    let d = low - high;
    // Nothing of it would remain in f32; and a masked logit is -inf, whose product with 0 is NaN.
    if (d < -100.0) {
        return Part(high, index, z.x, s.x);
    }
    let e = exp(d);
    return Part(high, index, z.x + e * z.y, s.x + e * (s.y + d * z.y));
}

var<workgroup> shared_parts: array<Part, WG>;

// All parts of a workgroup of WG threads (a power of two); valid in thread 0.
fn join_workgroup(mine: Part, thread: u32) -> Part {
    shared_parts[thread] = mine;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) {
            shared_parts[thread] = join_parts(shared_parts[thread], shared_parts[thread + half]);
        }
    }
    return shared_parts[0];
}
