// One token's attention from its raw projections: norms, rope and the cache's new slot included.
//
//   q, k = rope(norm(projected)), v = projected; k and v join the cache at slot base
//   x[h, s, :] = sum over the keys j of part s of e^(score_j - m) V[j, :], undivided
//   stats[h, s] = (m, sum of the e^(score_j - m)), or (lowest, 0) for a part without keys
//
// current           Step
// positions         u32 [rows], the first is used
// table             f32 [context, PAIRS, 2]: cos, sin
// projected         f32 [HEADS + 2 KV_HEADS, HEAD_DIM]: queries, keys, values
// q_gain, k_gain    f32 [HEAD_DIM], only with NORM: per-head RMSNorm before rope
// k_cache, v_cache  {{ KV }} [KV_HEADS, CONTEXT, HEAD_DIM]
// x                 f32 [HEADS, SPLITS, HEAD_DIM]
// stats             f32 [HEADS, SPLITS, 2]
//
// One workgroup a key-value head and part serves the {{ GROUP }} query heads of the group, so each key is
// read once. Parts have at least MIN_SPAN keys. A thread scores one key; then threads share the
// sum over values. f32 throughout.
{% include "snippets/step.wgsl" %}
{% include "snippets/kv_" ~ KV ~ ".wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> positions: array<u32>;
@group(0) @binding(2) var<storage, read> table: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read> projected: array<f32>;
@group(0) @binding(4) var<storage, read_write> k_cache: array<KvWord>;
@group(0) @binding(5) var<storage, read_write> v_cache: array<KvWord>;
@group(0) @binding(6) var<storage, read_write> x: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> stats: array<vec2<f32>>;
{% if NORM %}
@group(0) @binding(8) var<storage, read> q_gain: array<f32>;
@group(0) @binding(9) var<storage, read> k_gain: array<f32>;
{% endif %}

override WG: u32;
override HEADS: u32;
override KV_HEADS: u32;
override HEAD_DIM: u32;
override PAIRS: u32;
override CONTEXT: u32;
override SPLITS: u32;
override MIN_SPAN: u32;
override SCALE: f32;
override WINDOW: u32 = 0u;
override SOFTCAP: f32 = 0.0;
override EPS: f32 = 0.0;
override OFFSET: f32 = 0.0;

override WORDS = HEAD_DIM / 4u;
override LANES = WG / WORDS;  // threads that share one word of the output

const GROUP = {{ GROUP }}u;
const LOWEST = -3.0e38;  // finite, so that no difference of scores is NaN

var<workgroup> raw: array<f32, (GROUP + 1u) * HEAD_DIM>;     // queries, then the new key
var<workgroup> query: array<vec4<f32>, (GROUP + 1u) * WORDS>;
var<workgroup> inverse: array<f32, GROUP + 1u>;              // of the root mean squares
var<workgroup> weights: array<f32, GROUP * WG>;
var<workgroup> most: array<atomic<u32>, GROUP>;
var<workgroup> partial: array<vec4<f32>, WG>;
var<workgroup> partial_mass: array<f32, WG>;

// Unsigned integers in the order of the floats, and back.
fn ordered(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    return select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u);
}

fn from_ordered(u: u32) -> f32 {
    return bitcast<f32>(select(~u, u & 0x7fffffffu, (u & 0x80000000u) != 0u));
}

fn normed(vector: u32, i: u32) -> f32 {
{% if NORM %}
    let gain = select(q_gain[i], k_gain[i], vector == GROUP);
    return raw[vector * HEAD_DIM + i] * inverse[vector] * (OFFSET + gain);
{% else %}
    return raw[vector * HEAD_DIM + i];
{% endif %}
}

fn rotated(vector: u32, i: u32) -> f32 {
    if (i >= 2u * PAIRS) {
        return normed(vector, i);
    }
    let angle = table[positions[0] * PAIRS + i % PAIRS];
    if (i < PAIRS) {
        return normed(vector, i) * angle.x - normed(vector, i + PAIRS) * angle.y;
    }
    return normed(vector, i) * angle.x + normed(vector, i - PAIRS) * angle.y;
}

// The group's queries and the new key, after norm and rope; queries carry SCALE.
fn prepare(kv_head: u32, t: u32) {
    for (var i = t; i < (GROUP + 1u) * HEAD_DIM; i += WG) {
        let vector = i / HEAD_DIM;
        let head = select(kv_head * GROUP + vector, HEADS + kv_head, vector == GROUP);
        raw[i] = projected[head * HEAD_DIM + i % HEAD_DIM];
    }
    workgroupBarrier();
{% if NORM %}
    if (t <= GROUP) {
        var sum = 0.0;
        for (var i = 0u; i < HEAD_DIM; i++) {
            sum += raw[t * HEAD_DIM + i] * raw[t * HEAD_DIM + i];
        }
        inverse[t] = inverseSqrt(sum / f32(HEAD_DIM) + EPS);
    }
    workgroupBarrier();
{% endif %}
    for (var i = t; i < (GROUP + 1u) * WORDS; i += WG) {
        let vector = i / WORDS;
        let first = i % WORDS * 4u;
        let scale = select(SCALE, 1.0, vector == GROUP);
        query[i] = scale * vec4<f32>(
            rotated(vector, first), rotated(vector, first + 1u),
            rotated(vector, first + 2u), rotated(vector, first + 3u)
        );
    }
    workgroupBarrier();
}

fn store_new(kv_head: u32, slot: u32, t: u32) {
    for (var i = t; i < WORDS; i += WG) {
        let target_word = (kv_head * CONTEXT + slot) * WORDS + i;
        let first = (HEADS + KV_HEADS + kv_head) * HEAD_DIM + 4u * i;
        k_cache[target_word] = kv_pack(query[GROUP * WORDS + i]);
        v_cache[target_word] = kv_pack(vec4<f32>(
            projected[first], projected[first + 1u], projected[first + 2u], projected[first + 3u]
        ));
    }
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
{% if SUBGROUPS %}
    @builtin(subgroup_invocation_id) lane: u32,
{% endif %}
) {
    let kv_head = wid.x;
    let end = min(current.base + 1u, CONTEXT);
    let start = select(0u, end - min(end, WINDOW), WINDOW > 0u);
    let span = max((end - start + SPLITS - 1u) / SPLITS, MIN_SPAN);
    let low = min(start + wid.y * span, end);
    let high = min(low + span, end);
    if (low >= high) {
        if (t < GROUP) {
            stats[(kv_head * GROUP + t) * SPLITS + wid.y] = vec2<f32>(LOWEST, 0.0);
        }
        return;
    }
    prepare(kv_head, t);
    if (high == end) {
        store_new(kv_head, end - 1u, t);
        storageBarrier();
        workgroupBarrier();
    }
    let slab = kv_head * CONTEXT;
    var acc: array<vec4<f32>, GROUP>;
    var mass: array<f32, GROUP>;
    var largest: array<f32, GROUP>;
    for (var g = 0u; g < GROUP; g++) {
        largest[g] = LOWEST;
    }
    for (var first = low; first < high; first += WG) {
        if (t < GROUP) {
            atomicStore(&most[t], ordered(LOWEST));
        }
        var s: array<vec4<f32>, GROUP>;
        let live = first + t < high;
        if (live) {
            for (var i = 0u; i < WORDS; i++) {
                let key = kv_unpack(k_cache[(slab + first + t) * WORDS + i]);
                for (var g = 0u; g < GROUP; g++) {
                    s[g] += key * query[g * WORDS + i];
                }
            }
        }
        workgroupBarrier();
        for (var g = 0u; g < GROUP; g++) {
            var score = dot(s[g], vec4<f32>(1.0));
            if (SOFTCAP > 0.0) {
                score = SOFTCAP * tanh(clamp(score / SOFTCAP, -15.0, 15.0));
            }
            score = select(LOWEST, score, live);
            s[g].x = score;
{% if SUBGROUPS %}
            let top = subgroupMax(score);
            if (lane == 0u) {
                atomicMax(&most[g], ordered(top));
            }
{% else %}
            atomicMax(&most[g], ordered(score));
{% endif %}
        }
        workgroupBarrier();
        for (var g = 0u; g < GROUP; g++) {
            let top = max(largest[g], from_ordered(atomicLoad(&most[g])));
            let fade = exp(largest[g] - top);
            acc[g] *= fade;
            mass[g] *= fade;
            largest[g] = top;
            weights[g * WG + t] = select(0.0, exp(s[g].x - top), live);
        }
        workgroupBarrier();
        if (t < LANES * WORDS) {
            for (var j = t / WORDS; j < min(WG, high - first); j += LANES) {
                let value = kv_unpack(v_cache[(slab + first + j) * WORDS + t % WORDS]);
                for (var g = 0u; g < GROUP; g++) {
                    let weight = weights[g * WG + j];
                    acc[g] += weight * value;
                    mass[g] += weight;
                }
            }
        }
        workgroupBarrier();
    }
    for (var g = 0u; g < GROUP; g++) {
        partial[t] = acc[g];
        partial_mass[t] = mass[g];
        workgroupBarrier();
        let at = (kv_head * GROUP + g) * SPLITS + wid.y;
        for (var i = t; i < WORDS; i += WG) {
            var sum = vec4<f32>(0.0);
            var total = 0.0;
            for (var lane = 0u; lane < LANES; lane++) {
                sum += partial[lane * WORDS + i];
                total += partial_mass[lane * WORDS + i];
            }
            x[at * WORDS + i] = sum;
            if (i == 0u) {
                stats[at] = vec2<f32>(largest[g], total);
            }
        }
        workgroupBarrier();
    }
}
