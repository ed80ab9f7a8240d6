// ggml's search for the scale and minimum of 32 weights, one thread a group, in ggml's own order
// and rounding. WGSL lets a compiler join a product with the sum that follows, and rounds quotients
// and roots loosely; hence `apart`, `quotient` and `root`. A group outside of what they cover says
// so, and is left to the CPU.

struct Search {
    groups: u32,
    zero: u32, // always 0, which no compiler knows
    largest: f32, // code
    candidates: u32,
    numerators: array<vec4f, 16>, // of the candidates for the inverse scale
}

const GROUP = 32u;
const LANES = 64u;
const STRIDE = GROUP + 1u; // so that neighbours read different banks
const TINY = 1e-6; // sums of squares of smaller weights leave the range of normal numbers
const HUGE = 1e6;
const OUT_OF_RANGE = 4194303.0;

@group(0) @binding(0) var<storage, read> weights: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> found: array<vec4f>; // scale, minimum, inverse, low
@group(0) @binding(2) var<uniform> search: Search;

var<workgroup> tile: array<f32, LANES * STRIDE>;
var<private> odd: bool;

// A product that is rounded before anything is added to it.
fn apart(product: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(product) ^ search.zero);
}

// a / b rounded to nearest even, by long division of the mantissas.
fn quotient(a: f32, b: f32) -> f32 {
    let bits_a = bitcast<u32>(a);
    let bits_b = bitcast<u32>(b);
    let exponent_a = i32((bits_a >> 23u) & 255u);
    let exponent_b = i32((bits_b >> 23u) & 255u);
    if (bits_a & 0x7fffffffu) == 0u { return 0.0; }
    var rest = (bits_a & 0x7fffffu) | 0x800000u;
    let divisor = (bits_b & 0x7fffffu) | 0x800000u;
    var exponent = exponent_a - exponent_b + 127;
    if rest < divisor {
        rest <<= 1u;
        exponent -= 1;
    }
    var digits = 0u; // 24 and one to round by
    for (var i = 0; i < 25; i++) {
        let takes = rest >= divisor;
        rest = select(rest, rest - divisor, takes) << 1u;
        digits = (digits << 1u) | u32(takes);
    }
    let up = (digits & 1u) == 1u && (rest != 0u || (digits & 2u) == 2u);
    let mantissa = (digits >> 1u) + u32(up); // a carry moves into the exponent by itself
    if exponent_a == 0 || exponent_b == 0 || exponent < 1 || exponent > 253 {
        odd = true;
        return 1.0;
    }
    let sign = (bits_a ^ bits_b) & 0x80000000u;
    return bitcast<f32>(sign | ((u32(exponent) << 23u) + mantissa - 0x800000u));
}

// The square root of a normal number, rounded to nearest, digit by digit.
fn root(value: f32) -> f32 {
    let bits = bitcast<u32>(value);
    let exponent = i32(bits >> 23u) - 127;
    let is_odd = (exponent & 1) != 0;
    let mantissa = ((bits & 0x7fffffu) | 0x800000u) << select(0u, 1u, is_odd);
    // 25 digits of the root of mantissa * 2^25, two bits of which are taken at a time.
    var rest = 0u;
    var digits = 0u;
    for (var i = 0; i < 25; i++) {
        let shift = 23 - 2 * i;
        var next = 0u;
        if shift >= 0 { next = (mantissa >> u32(shift)) & 3u; }
        if shift == -1 { next = (mantissa << 1u) & 3u; }
        rest = (rest << 2u) | next;
        let trial = (digits << 2u) | 1u;
        let takes = rest >= trial;
        rest = select(rest, rest - trial, takes);
        digits = (digits << 1u) | u32(takes);
    }
    let rounded = (digits >> 1u) + (digits & 1u); // a root is never half way between two
    let half_exponent = (exponent - select(0, 1, is_odd)) / 2;
    return bitcast<f32>((u32(half_exponent + 127) << 23u) + rounded - 0x800000u);
}

fn code_of(x: f32, inverse: f32, low: f32) -> f32 {
    return clamp(round(inverse * (x - low)), 0.0, search.largest);
}

// The error that codes leave: the sum of w * (slope * code + floor - x)^2.
fn error_of(at: u32, spread: f32, inverse: f32, low: f32, slope: f32, floor: f32) -> f32 {
    var error = 0.0;
    for (var i = 0u; i < GROUP; i++) {
        let x = tile[at + i];
        let miss = apart(slope * code_of(x, inverse, low)) + floor - x;
        error += apart((spread + abs(x)) * (miss * miss));
    }
    return error;
}

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let first = (workgroup.y * workgroups.x + workgroup.x) * LANES;
    for (var i = lane; i < LANES * GROUP / 4u; i += LANES) {
        let four = weights[min(first * GROUP / 4u + i, arrayLength(&weights) - 1u)];
        let at = (i / 8u) * STRIDE + (i % 8u) * 4u;
        tile[at] = four.x;
        tile[at + 1u] = four.y;
        tile[at + 2u] = four.z;
        tile[at + 3u] = four.w;
    }
    workgroupBarrier();
    if first + lane < search.groups {
        found[first + lane] = search_group(lane * STRIDE);
    }
}

fn search_group(at: u32) -> vec4f {
    odd = false;
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
        return vec4f(0.0, -low, 0.0, 0.0);
    }
    let peak = max(abs(bottom), abs(top));
    if !(peak >= TINY && peak <= HUGE) {
        return vec4f(0.0, 0.0, -1.0, 0.0);
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
    var kept = quotient(search.largest, top - low);
    var kept_low = low;
    var scale = quotient(1.0, kept);
    var best = error_of(at, typical, kept, low, scale, low);
    for (var step = 0u; step < search.candidates; step++) {
        let numerator = search.numerators[step / 4u][step % 4u];
        let range = top - low;
        if !(range > 0.0) { odd = true; break; }
        let inverse = quotient(numerator, range);
        if abs(inverse * (bottom - low)) >= OUT_OF_RANGE { odd = true; break; }
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
        if !(spread > 0.0) { continue; }
        var slope = quotient(apart(sum_w * sum_xl) - apart(sum_x * sum_l), spread);
        var floor = quotient(apart(sum_l2 * sum_x) - apart(sum_l * sum_xl), spread);
        if floor > 0.0 {
            slope = quotient(sum_xl, sum_l2);
            floor = 0.0;
        }
        let error = error_of(at, typical, inverse, low, slope, floor);
        if error < best {
            best = error;
            scale = slope;
            kept = inverse;
            kept_low = low;
            low = floor;
        }
    }
    if odd {
        return vec4f(0.0, 0.0, -1.0, 0.0);
    }
    return vec4f(scale, -low, kept, kept_low);
}
