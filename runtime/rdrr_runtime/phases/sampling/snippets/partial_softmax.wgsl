{% include "snippets/finite.wgsl" %}

// A partial result of softmax and its entropy over some logits: the largest logit and its index (the lower
// one in a tie), and with d = logit - largest, z = sum exp(d) and s = sum d exp(d). No exponential exceeds
// 1, so none overflows.
struct Partial {
    value: f32,
    index: u32,
    z: f32,
    s: f32,
}

fn join(a: Partial, b: Partial) -> Partial {
    let b_first = b.value > a.value || (b.value == a.value && b.index < a.index);
    let high = select(a.value, b.value, b_first);
    let low = select(b.value, a.value, b_first);
    let index = select(a.index, b.index, b_first);
    let z = select(vec2<f32>(a.z, b.z), vec2<f32>(b.z, a.z), b_first);
    let s = select(vec2<f32>(a.s, b.s), vec2<f32>(b.s, a.s), b_first);
    let d = low - high;
    // exp(d) vanishes in f32, and a masked logit of -inf times 0 would be NaN.
    if (d < -100.0) {
        return Partial(high, index, z.x, s.x);
    }
    let e = exp(d);
    return Partial(high, index, z.x + e * z.y, s.x + e * (s.y + d * z.y));
}

var<workgroup> shared_partials: array<Partial, WG>;

// Merge the partial results of a workgroup of WG threads (a power of two); valid in thread 0.
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
