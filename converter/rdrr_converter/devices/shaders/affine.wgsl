// Q4_K and Q5_K: eight groups of 32 with a 6-bit scale and minimum each; as `_affine_search` and
// `_affine` of the codecs, in ggml's order. A type adds `LARGEST`, its largest code.

const GROUP = 32u;
const SIXTHS = 63.0; // the largest of six bits

var<workgroup> found: array<vec2f, LANES>; // scale and minimum of each group
var<workgroup> sixths: array<vec2u, LANES>; // their codes
var<workgroup> heads: array<u32, BLOCKS>; // the halves d and dmin of each block

struct Choice {
    scale: f32,
    minimum: f32,
    inverse: f32, // what codes are where the stored scale is 0
    low: f32,
}

fn encode(lane: u32) {
    let at = lane * STRIDE;
    let choice = search_group(at);
    found[lane] = vec2f(choice.scale, choice.minimum);
    workgroupBarrier();
    let block = lane / BLOCK_LANES;
    var largest = vec2f(0.0, 0.0);
    for (var i = 0u; i < BLOCK_LANES; i++) {
        largest = max(largest, found[block * BLOCK_LANES + i]);
    }
    let d = half_of(quotient(largest.x, SIXTHS));
    let dmin = half_of(quotient(largest.y, SIXTHS));
    let scale = sixth(choice.scale, largest.x);
    let minimum = sixth(choice.minimum, largest.y);
    sixths[lane] = vec2u(scale, minimum);
    if lane % BLOCK_LANES == 0u {
        heads[block] = d | (dmin << 16u);
    }
    take_codes(at, choice, of_half(d) * f32(scale), apart(of_half(dmin) * f32(minimum)));
}

fn sixth(value: f32, largest: f32) -> u32 {
    if !(largest > 0.0) {
        return 0u;
    }
    let scaled = quotient(SIXTHS, largest) * value;
    if !(abs(scaled) < OUT_OF_RANGE) {
        odd = true;
        return 0u;
    }
    // ggml keeps the code in a byte before it clips.
    return min(bitcast<u32>(i32(round(scaled))) & 255u, u32(SIXTHS));
}

fn take_codes(at: u32, choice: Choice, step: f32, offset: f32) {
    for (var i = 0u; i < GROUP; i++) {
        let x = tile[at + i];
        var code = 0.0;
        if step == 0.0 {
            code = code_of(x, choice.inverse, choice.low);
        } else {
            code = clamp(nearest_quotient(x + offset, step), 0.0, LARGEST);
        }
        tile[at + i] = code;
    }
}

fn code_of(x: f32, inverse: f32, low: f32) -> f32 {
    return clamp(round(inverse * (x - low)), 0.0, LARGEST);
}

// The error that codes leave: the sum of w * (slope * code + base - x)^2.
fn error_of(at: u32, spread: f32, inverse: f32, low: f32, slope: f32, base: f32) -> f32 {
    var error = 0.0;
    for (var i = 0u; i < GROUP; i++) {
        let x = tile[at + i];
        let miss = apart(slope * code_of(x, inverse, low)) + base - x;
        error += apart((spread + abs(x)) * (miss * miss));
    }
    return error;
}

fn search_group(at: u32) -> Choice {
    var squares = 0.0;
    var bottom = tile[at];
    var top = bottom;
    for (var i = 0u; i < GROUP; i++) {
        let x = tile[at + i];
        squares += apart(x * x);
        bottom = min(bottom, x);
        top = max(top, x);
    }
    var low = min(bottom, 0.0);
    if top <= low { // one value only
        return Choice(0.0, -low, 0.0, 0.0);
    }
    if odd {
        return Choice(0.0, 0.0, 0.0, 0.0);
    }
    let typical = root(squares * 0.03125);
    var sum_w = 0.0;
    var sum_x = 0.0;
    for (var i = 0u; i < GROUP; i++) {
        let x = tile[at + i];
        let w = typical + abs(x);
        sum_w += w;
        sum_x += apart(w * x);
    }
    var kept = quotient(LARGEST, top - low);
    var kept_low = low;
    var scale = quotient(1.0, kept);
    var best = error_of(at, typical, kept, low, scale, low);
    for (var step = 0u; step < task.candidates; step++) {
        let range = top - low;
        if range == 0.0 {
            odd = true;
            break;
        }
        let inverse = quotient(numerator(step), range);
        if !(abs(inverse * (bottom - low)) < OUT_OF_RANGE) {
            odd = true;
            break;
        }
        var sum_l = 0.0;
        var sum_l2 = 0.0;
        var sum_xl = 0.0;
        for (var i = 0u; i < GROUP; i++) {
            let x = tile[at + i];
            let code = code_of(x, inverse, low);
            let weighed = apart((typical + abs(x)) * code);
            sum_l += weighed;
            sum_l2 += apart(weighed * code);
            sum_xl += apart(weighed * x);
        }
        let spread = apart(sum_w * sum_l2) - apart(sum_l * sum_l);
        if !(spread > 0.0) {
            continue;
        }
        var slope = quotient(apart(sum_w * sum_xl) - apart(sum_x * sum_l), spread);
        var base = quotient(apart(sum_l2 * sum_x) - apart(sum_l * sum_xl), spread);
        if base > 0.0 {
            slope = quotient(sum_xl, sum_l2);
            base = 0.0;
        }
        let error = error_of(at, typical, inverse, low, slope, base);
        if error < best {
            best = error;
            scale = slope;
            kept = inverse;
            kept_low = low;
            low = base;
        }
    }
    return Choice(scale, -low, kept, kept_low);
}

// Byte 0 to 15 of a block: d, dmin, and the twelve bytes of `_scales`.
fn head_byte(block: u32, at: u32) -> u32 {
    if at < 4u {
        return (heads[block] >> (8u * at)) & 255u;
    }
    let group = block * BLOCK_LANES + at % 4u;
    let low = sixths[group];
    let high = sixths[group + 4u];
    if at < 8u {
        return low.x | ((high.x >> 4u) << 6u);
    }
    if at < 12u {
        return low.y | ((high.y >> 4u) << 6u);
    }
    return (high.x & 15u) | ((high.y & 15u) << 4u);
}

// Byte `at` of the 128 with the low four bits of the codes.
fn low_byte(block: u32, at: u32) -> u32 {
    let weight = at / 32u * 64u + at % 32u;
    return (code(block, weight) & 15u) | ((code(block, weight + 32u) & 15u) << 4u);
}
