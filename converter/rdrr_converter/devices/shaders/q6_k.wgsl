{% include "shaders/common.wgsl" %}
// Q6_K: blocks of sixteen groups of 16 weights, each with an int8 scale. The operations are those of
// the codecs `_signed_search` and `q6_k`, in the order of ggml's reference quantizer.

const GROUP = 16u;
const BLOCK_BYTES = 210u;
const ZERO_THRESHOLD = 1e-15; // blocks whose scales are all smaller are stored as zeros
const LOWEST = -32.0;
const HIGHEST = 31.0;

var<workgroup> scales: array<f32, LANES>;
var<workgroup> scale_codes: array<u32, LANES>; // int8 scales
var<workgroup> block_scales: array<u32, BLOCKS>;

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
        peak = select(peak, scale, abs(scale) > abs(peak)); // the first among equals
    }
    let is_zero = abs(peak) < ZERO_THRESHOLD;
    var d = 0u;
    var scale_code = 0.0;
    if !is_zero {
        let inverse = divide_rn(-128.0, peak);
        d = f16_bits(divide_rn(1.0, inverse));
        scale_code = min(round(inverse * choice.scale), 127.0);
    }
    scale_codes[lane] = bitcast<u32>(i32(scale_code)) & 255u;
    if lane % BLOCK_LANES == 0u {
        block_scales[block] = d;
    }
    write_codes(at, choice.inverse, f16_value(d) * scale_code, is_zero);
}

fn write_codes(at: u32, inverse: f32, step: f32, is_zero: bool) {
    for (var i = 0u; i < GROUP; i++) {
        let x = tile[at + i];
        var code = LOWEST;
        if step != 0.0 {
            code = clamp(divide_round(x, step), LOWEST, HIGHEST);
        } else if inverse != 0.0 {
            code = clamp(round(inverse * x), LOWEST, HIGHEST);
        }
        tile[at + i] = select(code - LOWEST, 0.0, is_zero);
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
        sums.xl += no_fma(no_fma(w * x) * code);
        sums.l2 += no_fma(no_fma(w * code) * code);
    }
    return sums;
}

fn search_group(at: u32) -> Choice {
    var peak = 0.0;
    for (var i = 0u; i < GROUP; i++) {
        let x = tile[at + i];
        peak = select(peak, x, abs(x) > abs(peak)); // the first among equals
    }
    if fallback || peak == 0.0 {
        return Choice(0.0, 0.0);
    }
    var best_inverse = divide_rn(LOWEST, peak);
    let first = sums_of(at, best_inverse);
    var scale = divide_rn(first.xl, first.l2);
    var best = scale * first.xl;
    for (var step = 0u; step < params.candidates; step++) {
        let inverse = divide_rn(numerator(step), peak);
        let sums = sums_of(at, inverse);
        if sums.l2 > 0.0 && no_fma(sums.xl * sums.xl) > no_fma(best * sums.l2) {
            scale = divide_rn(sums.xl, sums.l2);
            best = scale * sums.xl;
            best_inverse = inverse;
        }
    }
    return Choice(scale, best_inverse);
}

fn byte_of(block: u32, at: u32) -> u32 {
    if at < 128u { // low four bits of two codes each
        let weight = at / 64u * 128u + at % 64u;
        return (code(block, weight) & 15u) | ((code(block, weight + 64u) & 15u) << 4u);
    }
    if at < 192u { // high two bits of four codes each
        let weight = (at - 128u) / 32u * 128u + at % 32u;
        var bits = 0u;
        for (var run = 0u; run < 4u; run++) {
            bits |= (code(block, weight + 32u * run) >> 4u) << (2u * run);
        }
        return bits;
    }
    if at < 208u {
        return scale_codes[block * BLOCK_LANES + at - 192u];
    }
    return (block_scales[block] >> (8u * (at - 208u))) & 255u;
}
