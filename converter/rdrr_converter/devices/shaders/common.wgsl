// The part that the shaders of all types share: it loads weights into workgroup memory, lets each
// thread encode one group of them, and writes the blocks. The including file defines `GROUP`,
// `BLOCK_BYTES`, `encode` and `byte_of`.
//
// The results have the same bits as those of the CPU's codecs. WGSL allows a compiler to fuse a
// product with a following sum, does not require quotients, roots and conversions to be rounded
// correctly, and allows subnormal numbers to be flushed to zero. Hence `no_fma`, `divide_rn`,
// `sqrt_rn` and `f16_bits`. Blocks for which they do not suffice are flagged as fallback blocks,
// which the CPU encodes.

struct Params {
    zero: u32, // always 0, but the compiler cannot know that
    is_bf16: u32, // 1 if the weights are bfloat16, two per word
    candidates: u32,
    numerators: array<vec4f, 8>, // of the candidates (see candidates.py)
}

const LANES = 64u;
const STRIDE = GROUP + 1u; // odd, so that adjacent threads use different memory banks
const BLOCK = 256u; // weights
const BLOCKS = LANES * GROUP / BLOCK; // per workgroup
const BLOCK_LANES = BLOCK / GROUP;
const WORDS = BLOCKS * BLOCK_BYTES / 4u; // words that a workgroup writes

// Within these bounds, sums of squares and cubes of weights are normal numbers. The bounds are the
// bits of floats, because the bits of positive floats compare like the floats.
const MIN_NONZERO = 0x2b8cbcccu; // 1e-12: minimum of weights other than 0
const MIN_LARGEST = 0x358637bdu; // 1e-6: minimum of the largest weight of a group
const MAX_LARGEST = 0x49742400u; // 1e6: maximum of the largest weight of a group
const ROUNDING_LIMIT = 4194303.0; // from here on ggml's rounding to integers is wrong

var<storage, read> weights: array<u32>;
var<storage, read_write> encoded: array<u32>;
var<storage, read_write> fallback_blocks: array<u32>; // per workgroup, one bit for each block
var<storage, read> params: Params;

var<workgroup> tile: array<f32, LANES * STRIDE>; // weights, later replaced by their codes
var<workgroup> workgroup_fallback: atomic<u32>;
var<private> fallback: bool;
var<private> zero: u32; // `params.zero`, read once

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    zero = params.zero;
    let first = workgroup.x * LANES * GROUP;
    for (var i = lane; i < LANES * GROUP; i += LANES) {
        tile[i / GROUP * STRIDE + i % GROUP] = weight(first + i);
    }
    if lane == 0u {
        atomicStore(&workgroup_fallback, 0u); // not every driver clears workgroup memory
    }
    workgroupBarrier();
    fallback = exceeds_bounds(lane * STRIDE);
    encode(lane);
    if fallback {
        atomicOr(&workgroup_fallback, 1u << (lane / BLOCK_LANES));
    }
    workgroupBarrier();
    for (var i = lane; i < WORDS; i += LANES) {
        var word = 0u;
        for (var k = 0u; k < 4u; k++) {
            let at = 4u * i + k;
            word |= byte_of(at / BLOCK_BYTES, at % BLOCK_BYTES) << (8u * k);
        }
        encoded[workgroup.x * WORDS + i] = word;
    }
    if lane == 0u {
        fallback_blocks[workgroup.x] = atomicLoad(&workgroup_fallback);
    }
}

fn weight(at: u32) -> f32 {
    if params.is_bf16 == 0u {
        return bitcast<f32>(weights[at]);
    }
    let word = weights[at / 2u];
    return bitcast<f32>(select(word << 16u, word & 0xffff0000u, (at & 1u) == 1u));
}

fn exceeds_bounds(at: u32) -> bool {
    var largest = 0u;
    var too_small = false;
    for (var i = 0u; i < GROUP; i++) {
        let magnitude = bitcast<u32>(tile[at + i]) & 0x7fffffffu;
        largest = max(largest, magnitude);
        too_small = too_small || (magnitude != 0u && magnitude < MIN_NONZERO);
    }
    return too_small || (largest != 0u && (largest < MIN_LARGEST || largest > MAX_LARGEST));
}

// Return the code of weight `at` of a block.
fn code(block: u32, at: u32) -> u32 {
    return u32(tile[(block * BLOCK_LANES + at / GROUP) * STRIDE + at % GROUP]);
}

fn numerator(step: u32) -> f32 {
    return params.numerators[step / 4u][step % 4u];
}

// Round a product before anything is added to it, which prevents a fused multiply-add.
fn no_fma(product: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(product) ^ zero);
}

// Return a / b rounded to nearest, ties to even. The GPU's quotient is an estimate of the digits that
// is corrected with the exact integer remainder.
fn divide_rn(a: f32, b: f32) -> f32 {
    let bits_a = bitcast<u32>(a);
    let bits_b = bitcast<u32>(b);
    let exponent_a = i32((bits_a >> 23u) & 255u);
    let exponent_b = i32((bits_b >> 23u) & 255u);
    if (bits_a & 0x7fffffffu) == 0u {
        return 0.0;
    }
    var dividend = (bits_a & 0x7fffffu) | 0x800000u;
    let divisor = (bits_b & 0x7fffffu) | 0x800000u;
    var exponent = exponent_a - exponent_b + 127;
    if dividend < divisor {
        dividend <<= 1u;
        exponent -= 1;
    }
    // The digits are the integer part of dividend * 2^24 / divisor: 24 bits and one for rounding. The
    // estimate is a few units off, so the remainder is far below 2^31 and is exact although both
    // products wrap around.
    var digits = u32(f32(dividend) / f32(divisor) * 16777216.0);
    var rest = bitcast<i32>((dividend << 24u) - digits * divisor);
    let correction = i32(floor(f32(rest) / f32(divisor)));
    digits += u32(correction);
    rest -= correction * i32(divisor);
    if rest < 0 {
        digits -= 1u;
        rest += i32(divisor);
    }
    if rest >= i32(divisor) {
        digits += 1u;
        rest -= i32(divisor);
    }
    let up = (digits & 1u) == 1u && (rest != 0 || (digits & 2u) == 2u);
    let mantissa = (digits >> 1u) + u32(up); // a carry goes into the exponent
    if exponent_a == 0 || exponent_b == 0 || exponent < 1 || exponent > 253 {
        fallback = true;
        return 1.0;
    }
    let sign = (bits_a ^ bits_b) & 0x80000000u;
    return bitcast<f32>(sign | ((u32(exponent) << 23u) + mantissa - 0x800000u));
}

// Return a / b, rounded to a float (ties to even) and then to the nearest integer.
fn divide_round(a: f32, b: f32) -> f32 {
    let rough = a / b;
    if abs(rough) >= ROUNDING_LIMIT {
        fallback = true;
        return 0.0;
    }
    if abs(fract(rough) - 0.5) < 1e-3 {
        return round(divide_rn(a, b));
    }
    return round(rough);
}

// Return the square root of a normal number rounded to nearest, computed bit by bit.
fn sqrt_rn(value: f32) -> f32 {
    let bits = bitcast<u32>(value);
    let exponent = i32(bits >> 23u) - 127;
    let is_odd = (exponent & 1) != 0;
    let mantissa = ((bits & 0x7fffffu) | 0x800000u) << select(0u, 1u, is_odd);
    // The 25 bits of the root of mantissa * 2^25; each step takes two bits of the radicand.
    var rest = 0u;
    var digits = 0u;
    for (var i = 0; i < 25; i++) {
        let shift = 23 - 2 * i;
        var next = 0u;
        if shift >= 0 {
            next = (mantissa >> u32(shift)) & 3u;
        }
        if shift == -1 {
            next = (mantissa << 1u) & 3u;
        }
        rest = (rest << 2u) | next;
        let trial = (digits << 2u) | 1u;
        let bit_is_one = rest >= trial;
        rest = select(rest, rest - trial, bit_is_one);
        digits = (digits << 1u) | u32(bit_is_one);
    }
    let rounded = (digits >> 1u) + (digits & 1u); // a root is never halfway between two floats
    let half_exponent = (exponent - select(0, 1, is_odd)) / 2;
    return bitcast<f32>((u32(half_exponent + 127) << 23u) + rounded - 0x800000u);
}

// Return the bits of a number in float16, rounded to nearest, ties to even.
fn f16_bits(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let sign = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    if magnitude >= 0x477ff000u { // would round to infinity
        fallback = true;
        return sign;
    }
    if magnitude >= 0x38800000u { // 2^-14: normal in float16
        let moved = magnitude - 0x38000000u;
        return sign | ((moved + 0xfffu + ((moved >> 13u) & 1u)) >> 13u);
    }
    if magnitude <= 0x33000000u { // 2^-25: half of the smallest subnormal
        return sign;
    }
    let shift = 126u - (magnitude >> 23u);
    let mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    let rounded = mantissa + (1u << (shift - 1u)) - 1u + ((mantissa >> shift) & 1u);
    return sign | (rounded >> shift);
}

// Return the value of finite float16 bits.
fn f16_value(bits: u32) -> f32 {
    let sign = (bits & 0x8000u) << 16u;
    let magnitude = bits & 0x7fffu;
    if magnitude >= 0x400u {
        return bitcast<f32>(sign | ((magnitude << 13u) + 0x38000000u));
    }
    let small = f32(magnitude) * 5.9604644775390625e-8; // 2^-24
    return bitcast<f32>(sign | bitcast<u32>(small));
}
