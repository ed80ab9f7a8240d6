// One token's attention from its raw projections: norms, rope and the cache's new slot included.
//
//   q, k = rope(norm(projected)), v = projected; k and v join the cache at slot base
//   x[h, s, :] = sum over the keys j of part s of e^(score_j - m) V[j, :], undivided
//   stats[h, s] = (m, sum of the e^(score_j - m)), or (lowest, 0) for a part without keys
//
// current           Step
// positions         u32 [rows]{% if not MAPPED %}, the first is used{% endif %}
// table             f32 [context, PAIRS, 2]: cos, sin{% if not ROPE %} (not read: PAIRS is 0){% endif %}
// projected         {{ VALUE }} [{{ "rows, " if MAPPED }}HEADS + 2 KV_HEADS, HEAD_DIM]: queries, keys, values
// q_gain, k_gain    f32 [HEAD_DIM], only with NORM: per-head RMSNorm before rope
// k_cache, v_cache  {{ KV }} [{{ "sequences, " if MAPPED }}KV_HEADS, CONTEXT, HEAD_DIM]
// x                 f32 [{{ "rows, " if MAPPED }}HEADS, SPLITS, HEAD_DIM]
// stats             f32 [{{ "rows, " if MAPPED }}HEADS, SPLITS, 2]
//
{% if MAPPED %}
// All of it for each token row r, which is of another sequence: its keys and values are those of sequence
// slot_mapping[r].x, and its own slot there is slot_mapping[r].y.
//
{% endif %}
// One workgroup a key-value head and part serves the {{ GROUP }} query heads of the group, so each key is
// read once. Parts have at least MIN_SPAN keys. A thread scores one key; then threads share the
// sum over values. f32 throughout.
{% include "snippets/step.wgsl" %}
{% include "snippets/kv_" ~ KV ~ ".wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> positions: array<u32>;
@group(0) @binding(2) var<storage, read> table: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read> projected: array<{{ VALUE }}>;
@group(0) @binding(4) var<storage, read_write> k_cache: array<KvWord>;
@group(0) @binding(5) var<storage, read_write> v_cache: array<KvWord>;
@group(0) @binding(6) var<storage, read_write> x: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> stats: array<vec2<f32>>;
{% if NORM %}
@group(0) @binding(8) var<storage, read> q_gain: array<f32>;
@group(0) @binding(9) var<storage, read> k_gain: array<f32>;
{% endif %}
{% if MAPPED %}
@group(0) @binding({{ 10 if NORM else 8 }}) var<storage, read> slot_mapping: array<vec2<u32>>;  // [rows]
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

// Registers of the group are unrolled by the template: the compiler puts arrays that loops index
// into memory.
{% set HEADS_OF_GROUP = range(GROUP) %}
var<workgroup> query: array<vec4<f32>, (GROUP + 1u) * WORDS>;  // queries, then the new key
{% if NORM %}
var<workgroup> inverse: array<f32, GROUP + 1u>;                // of the root mean squares
{% endif %}
var<workgroup> weights: array<f32, GROUP * WG>;
var<workgroup> most: array<atomic<u32>, GROUP>;
var<workgroup> partial: array<vec4<f32>, GROUP * WG>;
var<workgroup> partial_mass: array<f32, GROUP * LANES>;

// Unsigned integers in the order of the floats, and back.
fn ordered(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    return select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u);
}

fn from_ordered(u: u32) -> f32 {
    return bitcast<f32>(select(~u, u & 0x7fffffffu, (u & 0x80000000u) != 0u));
}

// First element of a vector of this row and key-value head: its queries, then the key.
fn vector_at(row: u32, kv_head: u32, vector: u32) -> u32 {
    let head = select(kv_head * GROUP + vector, HEADS + kv_head, vector == GROUP);
    return (row * (HEADS + 2u * KV_HEADS) + head) * HEAD_DIM;
}

{% if NORM %}
fn norms(row: u32, kv_head: u32, t: u32) {
    // Eight threads a vector, joined through `weights`, which is free until the first scores.
    let vector = t / 8u;
    if (vector <= GROUP) {
        let first = vector_at(row, kv_head, vector);
        var sum = 0.0;
        for (var i = t % 8u; i < HEAD_DIM; i += 8u) {
            let v = f32(projected[first + i]);
            sum += v * v;
        }
        weights[t] = sum;
    }
    workgroupBarrier();
    if (t <= GROUP) {
        var sum = 0.0;
        for (var i = 0u; i < 8u; i++) {
            sum += weights[8u * t + i];
        }
        inverse[t] = inverseSqrt(sum / f32(HEAD_DIM) + EPS);
    }
    workgroupBarrier();
}
{% endif %}

fn value_at(first: u32, vector: u32, i: u32) -> f32 {
{% if NORM %}
    let gain = select(q_gain[i], k_gain[i], vector == GROUP);
    return f32(projected[first + i]) * inverse[vector] * (OFFSET + gain);
{% else %}
    return f32(projected[first + i]);
{% endif %}
}

// The group's queries and the new key, after norm and rope; queries carry SCALE.
fn prepare(row: u32, kv_head: u32, t: u32) {
{% if NORM %}
    norms(row, kv_head, t);
{% endif %}
{% if ROPE %}
    let position = positions[row] * PAIRS;
    for (var work = t; work < (GROUP + 1u) * PAIRS; work += WG) {
        let vector = work / PAIRS;
        let i = work % PAIRS;
        let first = vector_at(row, kv_head, vector);
        let angle = table[position + i];
        let scale = select(SCALE, 1.0, vector == GROUP);
        let a = scale * value_at(first, vector, i);
        let b = scale * value_at(first, vector, i + PAIRS);
        let at = vector * HEAD_DIM + i;
        query[at / 4u][at % 4u] = a * angle.x - b * angle.y;
        query[(at + PAIRS) / 4u][(at + PAIRS) % 4u] = b * angle.x + a * angle.y;
    }
{% endif %}
    let rest = HEAD_DIM - 2u * PAIRS;
    for (var work = t; work < (GROUP + 1u) * rest; work += WG) {
        let vector = work / rest;
        let i = 2u * PAIRS + work % rest;
        let at = vector * HEAD_DIM + i;
        let scale = select(SCALE, 1.0, vector == GROUP);
        query[at / 4u][at % 4u] = scale * value_at(vector_at(row, kv_head, vector), vector, i);
    }
    workgroupBarrier();
}

fn new_key(row: u32, kv_head: u32, i: u32) -> vec4<f32> {
    return query[GROUP * WORDS + i];
}

fn new_value(row: u32, kv_head: u32, i: u32) -> vec4<f32> {
    let head = HEADS + KV_HEADS + kv_head;
    let first = (row * (HEADS + 2u * KV_HEADS) + head) * HEAD_DIM + 4u * i;
    return vec4<f32>(
        f32(projected[first]),
        f32(projected[first + 1u]),
        f32(projected[first + 2u]),
        f32(projected[first + 3u]),
    );
}

{% if KV == "q8_0" %}
{% for cache, new in (("k", "new_key"), ("v", "new_value")) %}
// f16 bits of the scale of the 32 elements from word i on.
fn {{ new }}_scale(row: u32, kv_head: u32, i: u32) -> u32 {
    var most = 0.0;
    for (var j = 0u; j < 8u; j++) {
        most = max(most, largest_of({{ new }}(row, kv_head, i + j)));
    }
    return scale_bits(most);
}

{% endfor %}
// Write the new key and value at word `first` of the caches: a thread 4 codes, the first of 64
// elements also their two scales.
fn store_new(row: u32, kv_head: u32, first: u32, t: u32) {
    for (var i = t; i < WORDS; i += WG) {
        let target_word = first + i;
        let block = i / 8u * 8u;
{% for cache, new in (("k", "new_key"), ("v", "new_value")) %}
        let {{ cache }}_scale = {{ new }}_scale(row, kv_head, block);
        {{ cache }}_cache[target_word] = codes({{ new }}(row, kv_head, i), {{ cache }}_scale);
        if (i % 16u == 0u) {
            let after = {{ new }}_scale(row, kv_head, block + 8u);
            {{ cache }}_cache[SCALES_AT + target_word / 16u] = {{ cache }}_scale | (after << 16u);
        }
{% endfor %}
    }
}
{% else %}
// Write the new key and value at word `first` of the caches.
fn store_new(row: u32, kv_head: u32, first: u32, t: u32) {
    for (var i = t; i < WORDS; i += WG) {
        let target_word = first + i;
        k_cache[target_word] = kv_pack(new_key(row, kv_head, i));
        v_cache[target_word] = kv_pack(new_value(row, kv_head, i));
    }
}
{% endif %}

fn capped(sum: vec4<f32>) -> f32 {
    let score = dot(sum, vec4<f32>(1.0));
    if (SOFTCAP > 0.0) {
        return SOFTCAP * tanh(clamp(score / SOFTCAP, -15.0, 15.0));
    }
    return score;
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
{% if MAPPED %}
    let row = wid.z;
    if (row >= current.rows) {
        return;
    }
    let slab = (slot_mapping[row].x * KV_HEADS + kv_head) * CONTEXT;  // first slot of the head
    let end = min(slot_mapping[row].y + 1u, CONTEXT);
{% else %}
    let row = 0u;
    let slab = kv_head * CONTEXT;
    let end = min(current.base + 1u, CONTEXT);
{% endif %}
    let start = select(0u, end - min(end, WINDOW), WINDOW > 0u);
    let span = max((end - start + SPLITS - 1u) / SPLITS, MIN_SPAN);
    let low = min(start + wid.y * span, end);
    let high = min(low + span, end);
    if (low >= high) {
        if (t < GROUP) {
            stats[(row * HEADS + kv_head * GROUP + t) * SPLITS + wid.y] = vec2<f32>(LOWEST, 0.0);
        }
        return;
    }
    prepare(row, kv_head, t);
    if (high == end) {
        store_new(row, kv_head, (slab + end - 1u) * WORDS, t);
        storageBarrier();
        workgroupBarrier();
    }
{% for g in HEADS_OF_GROUP %}
    var acc{{ g }} = vec4<f32>(0.0);
    var mass{{ g }} = 0.0;
    var largest{{ g }} = LOWEST;
{% endfor %}
    for (var first = low; first < high; first += WG) {
        if (t < GROUP) {
            atomicStore(&most[t], ordered(LOWEST));
        }
{% for g in HEADS_OF_GROUP %}
        var s{{ g }} = vec4<f32>(0.0);
{% endfor %}
        let live = first + t < high;
        if (live) {
            let key_at = (slab + first + t) * WORDS;
            for (var i = 0u; i < WORDS; i++) {
                let key = k_at(key_at + i);
{% for g in HEADS_OF_GROUP %}
                s{{ g }} += key * query[{{ g }}u * WORDS + i];
{% endfor %}
            }
        }
        workgroupBarrier();
{% for g in HEADS_OF_GROUP %}
        let score{{ g }} = select(LOWEST, capped(s{{ g }}), live);
{% if SUBGROUPS %}
        let top{{ g }} = subgroupMax(score{{ g }});
        if (lane == 0u) {
            atomicMax(&most[{{ g }}], ordered(top{{ g }}));
        }
{% else %}
        atomicMax(&most[{{ g }}], ordered(score{{ g }}));
{% endif %}
{% endfor %}
        workgroupBarrier();
{% for g in HEADS_OF_GROUP %}
        {
            let top = max(largest{{ g }}, from_ordered(atomicLoad(&most[{{ g }}])));
            let fade = exp(largest{{ g }} - top);
            acc{{ g }} *= fade;
            mass{{ g }} *= fade;
            largest{{ g }} = top;
            weights[{{ g }}u * WG + t] = select(0.0, exp(score{{ g }} - top), live);
        }
{% endfor %}
        workgroupBarrier();
        if (t < LANES * WORDS) {
            // Four keys at a time, so that their loads overlap; beyond the last key weights are 0.
            let count = min(WG, high - first);
            for (var j = t / WORDS; j < count; j += 4u * LANES) {
{% for u in range(4) %}
                let j{{ u }} = min(j + {{ u }}u * LANES, WG - 1u);
                let value{{ u }} =
                    v_at((slab + first + min(j{{ u }}, count - 1u)) * WORDS + t % WORDS);
{% endfor %}
{% for u in range(4) %}
                if (j + {{ u }}u * LANES < count) {
{% for g in HEADS_OF_GROUP %}
                    let weight{{ g }} = weights[{{ g }}u * WG + j{{ u }}];
                    acc{{ g }} += weight{{ g }} * value{{ u }};
                    mass{{ g }} += weight{{ g }};
{% endfor %}
                }
{% endfor %}
            }
        }
        workgroupBarrier();
    }
{% for g in HEADS_OF_GROUP %}
    partial[{{ g }}u * WG + t] = acc{{ g }};
    if (t % WORDS == 0u && t < LANES * WORDS) {
        partial_mass[{{ g }}u * LANES + t / WORDS] = mass{{ g }};
    }
    if (t == 0u) {
        // Alike in every thread.
        stats[(row * HEADS + kv_head * GROUP + {{ g }}u) * SPLITS + wid.y].x = largest{{ g }};
    }
{% endfor %}
    workgroupBarrier();
    for (var work = t; work < GROUP * WORDS; work += WG) {
        let g = work / WORDS;
        let i = work % WORDS;
        let at = (row * HEADS + kv_head * GROUP + g) * SPLITS + wid.y;
        var sum = vec4<f32>(0.0);
        var total = 0.0;
        for (var part = 0u; part < LANES; part++) {
            sum += partial[g * WG + part * WORDS + i];
            total += partial_mass[g * LANES + part];
        }
        x[at * WORDS + i] = sum;
        if (i == 0u) {
            stats[at].y = total;
        }
    }
}
