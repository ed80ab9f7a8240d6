// Q4_K and Q5_K: blocks of eight groups of 32 weights, each with a 6-bit scale and a 6-bit minimum.
// The operations are those of the codecs `_affine_search` and `affine`, in the order of ggml's
// reference quantizer. The including file defines `LARGEST`, the largest code of the type.

const GROUP = 32u;
const MAX_6BIT = 63.0; // largest 6-bit code

var<workgroup> group_scales: array<vec2f, LANES>; // scale and minimum of each group
var<workgroup> codes_6bit: array<vec2u, LANES>; // their 6-bit codes
var<workgroup> block_scales: array<u32, BLOCKS>; // d and dmin of each block, in float16

struct Choice {
    scale: f32,
    minimum: f32,
    inverse: f32, // with `low`, gives the codes where the stored scale is 0
    low: f32,
}

fn encode(lane: u32) {
    let at = lane * STRIDE;
    let choice = search_group(at);
    group_scales[lane] = vec2f(choice.scale, choice.minimum);
    workgroupBarrier();
    let block = lane / BLOCK_LANES;
    var largest = vec2f(0.0, 0.0);
    for (var i = 0u; i < BLOCK_LANES; i++) {
        largest = max(largest, group_scales[block * BLOCK_LANES + i]);
    }
    let d = f16_bits(divide_rn(largest.x, MAX_6BIT));
    let dmin = f16_bits(divide_rn(largest.y, MAX_6BIT));
    let scale = quantize_6bit(choice.scale, largest.x);
    let minimum = quantize_6bit(choice.minimum, largest.y);
    codes_6bit[lane] = vec2u(scale, minimum);
    if lane % BLOCK_LANES == 0u {
        block_scales[block] = d | (dmin << 16u);
    }
    write_codes(at, choice, f16_value(d) * f32(scale), no_fma(f16_value(dmin) * f32(minimum)));
}

fn quantize_6bit(value: f32, largest: f32) -> u32 {
    if !(largest > 0.0) {
        return 0u;
    }
    let scaled = divide_rn(MAX_6BIT, largest) * value;
    if !(abs(scaled) < ROUNDING_LIMIT) {
        fallback = true;
        return 0u;
    }
    // ggml stores the code in a byte before it clamps it.
    return min(bitcast<u32>(i32(round(scaled))) & 255u, u32(MAX_6BIT));
}

fn write_codes(at: u32, choice: Choice, step: f32, offset: f32) {
    for (var i = 0u; i < GROUP; i++) {
        let x = tile[at + i];
        var code = 0.0;
        if step == 0.0 {
            code = code_of(x, choice.inverse, choice.low);
        } else {
            code = clamp(divide_round(x + offset, step), 0.0, LARGEST);
        }
        tile[at + i] = code;
    }
}

fn code_of(x: f32, inverse: f32, low: f32) -> f32 {
    return clamp(round(inverse * (x - low)), 0.0, LARGEST);
}

// The weighted squared error of a candidate: the sum of w * (slope * code + intercept - x)^2, where
// w = typical + |x|.
fn error_of(at: u32, typical: f32, inverse: f32, low: f32, slope: f32, intercept: f32) -> f32 {
    var error = 0.0;
    for (var i = 0u; i < GROUP; i++) {
        let x = tile[at + i];
        let residual = no_fma(slope * code_of(x, inverse, low)) + intercept - x;
        error += no_fma((typical + abs(x)) * (residual * residual));
    }
    return error;
}

fn search_group(at: u32) -> Choice {
    var squares = 0.0;
    var bottom = tile[at];
    var top = bottom;
    for (var i = 0u; i < GROUP; i++) {
        let x = tile[at + i];
        squares += no_fma(x * x);
        bottom = min(bottom, x);
        top = max(top, x);
    }
    var low = min(bottom, 0.0);
    if top <= low { // all values are equal
        return Choice(0.0, -low, 0.0, 0.0);
    }
    if fallback {
        return Choice(0.0, 0.0, 0.0, 0.0);
    }
    let typical = sqrt_rn(squares * 0.03125);
    var sum_w = 0.0;
    var sum_x = 0.0;
    for (var i = 0u; i < GROUP; i++) {
        let x = tile[at + i];
        let w = typical + abs(x);
        sum_w += w;
        sum_x += no_fma(w * x);
    }
    var best_inverse = divide_rn(LARGEST, top - low);
    var best_inverse_low = low;
    var scale = divide_rn(1.0, best_inverse);
    var best = error_of(at, typical, best_inverse, low, scale, low);
    for (var step = 0u; step < params.candidates; step++) {
        let range = top - low;
        if range == 0.0 {
            fallback = true;
            break;
        }
        let inverse = divide_rn(numerator(step), range);
        if !(abs(inverse * (bottom - low)) < ROUNDING_LIMIT) {
            fallback = true;
            break;
        }
        var sum_l = 0.0;
        var sum_l2 = 0.0;
        var sum_xl = 0.0;
        for (var i = 0u; i < GROUP; i++) {
            let x = tile[at + i];
            let code = code_of(x, inverse, low);
            let weighted = no_fma((typical + abs(x)) * code);
            sum_l += weighted;
            sum_l2 += no_fma(weighted * code);
            sum_xl += no_fma(weighted * x);
        }
        let determinant = no_fma(sum_w * sum_l2) - no_fma(sum_l * sum_l);
        if !(determinant > 0.0) {
            continue;
        }
        var slope = divide_rn(no_fma(sum_w * sum_xl) - no_fma(sum_x * sum_l), determinant);
        var intercept = divide_rn(no_fma(sum_l2 * sum_x) - no_fma(sum_l * sum_xl), determinant);
        if intercept > 0.0 {
            slope = divide_rn(sum_xl, sum_l2);
            intercept = 0.0;
        }
        let error = error_of(at, typical, inverse, low, slope, intercept);
        if error < best {
            best = error;
            scale = slope;
            best_inverse = inverse;
            best_inverse_low = low;
            low = intercept;
        }
    }
    return Choice(scale, -low, best_inverse, best_inverse_low);
}

// Byte `at` (0 to 15) of a block: d, dmin, and the twelve bytes with the 6-bit codes.
fn head_byte(block: u32, at: u32) -> u32 {
    if at < 4u {
        return (block_scales[block] >> (8u * at)) & 255u;
    }
    let group = block * BLOCK_LANES + at % 4u;
    let low = codes_6bit[group];
    let high = codes_6bit[group + 4u];
    if at < 8u {
        return low.x | ((high.x >> 4u) << 6u);
    }
    if at < 12u {
        return low.y | ((high.y >> 4u) << 6u);
    }
    return (high.x & 15u) | ((high.y & 15u) << 4u);
}

// Byte `at` of the 128 bytes that hold the low four bits of the codes.
fn low_byte(block: u32, at: u32) -> u32 {
    let weight = at / 32u * 64u + at % 32u;
    return (code(block, weight) & 15u) | ((code(block, weight + 32u) & 15u) << 4u);
}
