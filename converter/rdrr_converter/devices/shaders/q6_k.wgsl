{% include "shaders/common.wgsl" %}
// Q6_K: sixteen groups of 16 with an int8 scale each; as `_signed_search` and `q6_k` of the codecs,
// in ggml's order.

const GROUP = 16u;
const BLOCK_BYTES = 210u;
const SILENT = 1e-15; // a largest scale below it makes a block of zeros
const LOWEST = -32.0;
const HIGHEST = 31.0;

var<workgroup> scales: array<f32, LANES>;
var<workgroup> steps: array<u32, LANES>; // int8 scales
var<workgroup> halves: array<u32, BLOCKS>;

struct Choice {
    scale: f32,
    inverse: f32, // 0 for a group of zeros
}

fn encode(lane: u32) {
    let at = lane * STRIDE;
    let choice = search_group(at);
    scales[lane] = choice.scale;
    workgroupBarrier();
    let block = lane / BLOCK_LANES;
    var peak = 0.0;
    for (var i = 0u; i < BLOCK_LANES; i++) {
        let scale = scales[block * BLOCK_LANES + i];
        peak = select(peak, scale, abs(scale) > abs(peak)); // the first of equals
    }
    let silent = abs(peak) < SILENT;
    var d = 0u;
    var share = 0.0;
    if !silent {
        let inverse = quotient(-128.0, peak);
        d = half_of(quotient(1.0, inverse));
        share = min(round(inverse * choice.scale), 127.0);
    }
    steps[lane] = bitcast<u32>(i32(share)) & 255u;
    if lane % BLOCK_LANES == 0u {
        halves[block] = d;
    }
    take_codes(at, choice.inverse, of_half(d) * share, silent);
}

fn take_codes(at: u32, inverse: f32, step: f32, silent: bool) {
    for (var i = 0u; i < GROUP; i++) {
        let x = tile[at + i];
        var code = LOWEST;
        if step != 0.0 {
            code = clamp(nearest_quotient(x, step), LOWEST, HIGHEST);
        } else if inverse != 0.0 {
            code = clamp(round(inverse * x), LOWEST, HIGHEST);
        }
        tile[at + i] = select(code - LOWEST, 0.0, silent);
    }
}

struct Sums {
    xl: f32,
    l2: f32,
}

fn sums_of(at: u32, inverse: f32) -> Sums {
    var sums = Sums(0.0, 0.0);
    for (var i = 0u; i < GROUP; i++) {
        let x = tile[at + i];
        let w = x * x;
        let code = clamp(round(inverse * x), LOWEST, HIGHEST);
        sums.xl += apart(apart(w * x) * code);
        sums.l2 += apart(apart(w * code) * code);
    }
    return sums;
}

fn search_group(at: u32) -> Choice {
    var peak = 0.0;
    for (var i = 0u; i < GROUP; i++) {
        let x = tile[at + i];
        peak = select(peak, x, abs(x) > abs(peak)); // the first of equals
    }
    if odd || peak == 0.0 {
        return Choice(0.0, 0.0);
    }
    var kept = quotient(LOWEST, peak);
    let first = sums_of(at, kept);
    var scale = quotient(first.xl, first.l2);
    var best = scale * first.xl;
    for (var step = 0u; step < task.candidates; step++) {
        let inverse = quotient(numerator(step), peak);
        let sums = sums_of(at, inverse);
        if sums.l2 > 0.0 && apart(sums.xl * sums.xl) > apart(best * sums.l2) {
            scale = quotient(sums.xl, sums.l2);
            best = scale * sums.xl;
            kept = inverse;
        }
    }
    return Choice(scale, kept);
}

fn byte_of(block: u32, at: u32) -> u32 {
    if at < 128u { // low four bits of two codes
        let weight = at / 64u * 128u + at % 64u;
        return (code(block, weight) & 15u) | ((code(block, weight + 64u) & 15u) << 4u);
    }
    if at < 192u { // high two bits of four
        let weight = (at - 128u) / 32u * 128u + at % 32u;
        var bits = 0u;
        for (var run = 0u; run < 4u; run++) {
            bits |= (code(block, weight + 32u * run) >> 4u) << (2u * run);
        }
        return bits;
    }
    if at < 208u {
        return steps[block * BLOCK_LANES + at - 192u];
    }
    return (halves[block] >> (8u * (at - 208u))) & 255u;
}
