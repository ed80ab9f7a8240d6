// A partial result of softmax and its entropy: the largest of some logits and its index (the lower of
// equal ones), and with d = logit - largest the sums z of exp(d) and s of d exp(d). No exponential
// exceeds 1, so none overflows.
struct Partial {
    value: f32,
    index: u32,
    z: f32,
    s: f32,
}

const LOWEST = -3.4028234663852886e38;

fn join(a: Partial, b: Partial) -> Partial {
    let b_first = b.value > a.value || (b.value == a.value && b.index < a.index);
    let high = select(a.value, b.value, b_first);
    let low = select(b.value, a.value, b_first);
    let index = select(a.index, b.index, b_first);
    let z = select(vec2<f32>(a.z, b.z), vec2<f32>(b.z, a.z), b_first);
    let s = select(vec2<f32>(a.s, b.s), vec2<f32>(b.s, a.s), b_first);
    let d = low - high;
    // Nothing of it would remain in f32; and a masked logit is -inf, whose product with 0 is NaN.
    if (d < -100.0) {
        return Partial(high, index, z.x, s.x);
    }
    let e = exp(d);
    return Partial(high, index, z.x + e * z.y, s.x + e * (s.y + d * z.y));
}

var<workgroup> shared_partials: array<Partial, WG>;

// All partial results of a workgroup of WG threads (a power of two); valid in thread 0.
fn join_workgroup(mine: Partial, thread: u32) -> Partial {
    shared_partials[thread] = mine;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) {
            shared_partials[thread] = join(shared_partials[thread], shared_partials[thread + half]);
        }
    }
    return shared_partials[0];
}
