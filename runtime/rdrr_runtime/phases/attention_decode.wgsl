// Decode attention directly from the projections, with norms, rope and the store into the cache fused:
//
//   q, k = rope(norm(projected)) and v = projected; k and v are stored in the cache at the row's slot
//   sums[r, h, s, :] = sum over the keys j of split s of e^(score_j - m) V[j, :], not yet divided
//   stats[r, h, s] = (m, sum over j of e^(score_j - m)), where m is the maximum score of the split;
//   (LOWEST, 0) for a split without keys, whose sums are not written
//
// current           Step; no two rows belong to the same sequence
{% if SINKS %}
// sinks             f32 [HEADS]: logits that the softmax of a head includes, without a value
{% endif %}
// table, gains      snippets/head_transform.wgsl
{% if GATED %}
// projected         {{ VALUE }} [rows, 2 HEADS + 2 KV_HEADS, HEAD_DIM]: a query and its gate, which is not read
//                   here, for each head; then keys and values
{% else %}
// projected         {{ VALUE }} [rows, HEADS + 2 KV_HEADS, HEAD_DIM]: queries, keys, values
{% endif %}
// k_cache, v_cache  {{ KV }} [sequences, KV_HEADS, CONTEXT, HEAD_DIM]
// sums              f32 [rows, HEADS, SPLITS, HEAD_DIM]
// stats             f32 [rows, HEADS, SPLITS, 2]
//
// An item is one key-value head and one split of the keys of a row. It computes the {{ GROUP }} query heads that
// share the key-value head, so that each key is read once. A split has at least MIN_KEYS keys. Each
// thread computes the scores of one key, then the threads together compute the weighted sum of the
// values. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/kv.wgsl" %}
{% include "snippets/scores.wgsl" %}
{% include "snippets/head_transform.wgsl" %}
var<storage, read> current: Step;
var<storage, read> projected: array<{{ VALUE }}>;
var<storage, read_write> k_cache: array<KvWord>;
var<storage, read_write> v_cache: array<KvWord>;
var<storage, read_write> sums: array<vec4<f32>>;
var<storage, read_write> stats: array<vec2<f32>>;

override SPLITS: u32;
override MIN_KEYS: u32;

override WORDS = HEAD_DIM / 4u;
override LANES = WG / WORDS;  // threads that share one vector of 4 output elements

const GROUP = {{ GROUP }}u;
const QUERY_STEP = {{ "2u" if GATED else "1u" }};  // vectors of a head in the projected queries

// The template unrolls the loops over the query heads of the group: compilers do not keep arrays in
// registers that are indexed by a variable.
{% set HEADS_OF_GROUP = range(GROUP) %}
var<workgroup> query: array<vec4<f32>, (GROUP + 1u) * WORDS>;  // queries of the group, then the new key
{% if NORM %}
var<workgroup> inverse_rms: array<f32, GROUP + 1u>;            // 1 / root mean square of each
{% endif %}
var<workgroup> weights: array<f32, GROUP * WG>;                // exp(score - maximum) of each key
var<workgroup> max_bits: array<atomic<u32>, GROUP>;            // maximum score, as `ordered` bits
var<workgroup> partial: array<vec4<f32>, {{ AT_ONCE }}u * WG>;  // of {{ AT_ONCE }} heads
var<workgroup> partial_weights: array<f32, GROUP * LANES>;

// Map a float to an unsigned integer that sorts like it, for atomicMax; `from_ordered` is the inverse.
fn ordered(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    return select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u);
}

fn from_ordered(u: u32) -> f32 {
    return bitcast<f32>(select(~u, u & 0x7fffffffu, (u & 0x80000000u) != 0u));
}

// Index of the first element of a vector of a row and key-value head: the queries of the group are
// vectors 0 to GROUP - 1, the new key is vector GROUP.
fn vector_at(row: u32, kv_head: u32, vector: u32) -> u32 {
    let query_at = QUERY_STEP * (kv_head * GROUP + vector);
    let head = select(query_at, QUERY_STEP * HEADS + kv_head, vector == GROUP);
    return (row * (QUERY_STEP * HEADS + 2u * KV_HEADS) + head) * HEAD_DIM;
}

{% if NORM %}
fn compute_inverse_rms(row: u32, kv_head: u32, t: u32) {
    // Eight threads sum up each vector; `weights` is free until the first scores and holds their sums.
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
        inverse_rms[t] = inverseSqrt(sum / f32(HEAD_DIM) + EPS);
    }
    workgroupBarrier();
}
{% endif %}

fn normed(first: u32, vector: u32, i: u32) -> f32 {
{% if NORM %}
    let gain = gains[select(0u, HEAD_DIM, vector == GROUP) + i];
    return f32(projected[first + i]) * inverse_rms[vector] * (OFFSET + gain);
{% else %}
    return f32(projected[first + i]);
{% endif %}
}

// Element i of a vector after norm and rope, multiplied by `scale`.
fn transformed(first: u32, vector: u32, i: u32, angles: u32, scale: f32) -> f32 {
{% if ROPE %}
    if (i < 2u * PAIRS) {
        let pair = pair_of(i);
        let start = first_of_pair(pair);
        let a = scale * normed(first, vector, start);
        let b = scale * normed(first, vector, partner(start));
        let result = rotated(a, b, table[angles + pair]);
        return select(result.x, result.y, is_second(i));
    }
{% endif %}
    return scale * normed(first, vector, i);
}

// Store the queries of the group and the new key in `query`. A thread writes whole vectors, because a
// write to one component may rewrite the others and so undo what other threads write there. For that
// it computes both elements of each rotated pair, even if it stores only one.
fn load_vectors(row: u32, kv_head: u32, t: u32) {
{% if NORM %}
    compute_inverse_rms(row, kv_head, t);
{% endif %}
    let angles = current.row[row].position * PAIRS;
    let query_scale = SCALE * query_factor(current.row[row].position);
    for (var word = t; word < (GROUP + 1u) * WORDS; word += WG) {
        let vector = word / WORDS;
        let first = vector_at(row, kv_head, vector);
        let i = 4u * (word % WORDS);
        let scale = select(query_scale, 1.0, vector == GROUP);
        query[word] = vec4<f32>(
            transformed(first, vector, i, angles, scale),
            transformed(first, vector, i + 1u, angles, scale),
            transformed(first, vector, i + 2u, angles, scale),
            transformed(first, vector, i + 3u, angles, scale),
        );
    }
    workgroupBarrier();
}

fn new_key(row: u32, kv_head: u32, i: u32) -> vec4<f32> {
    return query[GROUP * WORDS + i];
}

fn new_value(row: u32, kv_head: u32, i: u32) -> vec4<f32> {
    let head = QUERY_STEP * HEADS + KV_HEADS + kv_head;
    let first = (row * (QUERY_STEP * HEADS + 2u * KV_HEADS) + head) * HEAD_DIM + 4u * i;
    return vec4<f32>(
        f32(projected[first]),
        f32(projected[first + 1u]),
        f32(projected[first + 2u]),
        f32(projected[first + 3u]),
    );
}

{% if KV == "q8_0" %}
{% for cache, new in (("k", "new_key"), ("v", "new_value")) %}
// f16 bits of the scale of the 32 elements that begin at word i.
fn {{ new }}_scale(row: u32, kv_head: u32, i: u32) -> u32 {
    var amax = 0.0;
    for (var j = 0u; j < 8u; j++) {
        amax = max(amax, abs_max({{ new }}(row, kv_head, i + j)));
    }
    return scale_bits(amax);
}

{% endfor %}
// Store the new key and value at word `first` of the caches. A thread writes 4 codes; the first thread
// of each 64 elements also writes their two scales.
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
// Store the new key and value at word `first` of the caches.
fn store_new(row: u32, kv_head: u32, first: u32, t: u32) {
    for (var i = t; i < WORDS; i += WG) {
        let target_word = first + i;
        k_cache[target_word] = kv_pack(new_key(row, kv_head, i));
        v_cache[target_word] = kv_pack(new_value(row, kv_head, i));
    }
}
{% endif %}

// Add up word `i` of the sums of all threads for head `g` of the group, which is number `at_once` of the
// heads in `partial`, and store it in result `at`.
fn store_head(at: u32, g: u32, at_once: u32, i: u32) {
    var sum = vec4<f32>(0.0);
    var total = 0.0;
    for (var lane = 0u; lane < LANES; lane++) {
        sum += partial[at_once * WG + lane * WORDS + i];
        total += partial_weights[g * LANES + lane];
    }
    sums[at * WORDS + i] = sum;
    if (i == 0u) {
        stats[at] = vec2<f32>(weights[g], total);
    }
}

fn phase(item: u32, row: u32, thread: Thread) {
    let kv_head = item % KV_HEADS;
    let split = item / KV_HEADS;
    let t = thread.index;
    let slots = first_slot(current.row[row].sequence, kv_head);
    let keys = attended_slots(current.row[row].slot);
    let span = max((keys.y - keys.x + SPLITS - 1u) / SPLITS, MIN_KEYS);
    let low = min(keys.x + split * span, keys.y);
    let high = min(low + span, keys.y);
    if (low >= high) {
        if (t < GROUP) {
            stats[(row * HEADS + kv_head * GROUP + t) * SPLITS + split] = vec2<f32>(LOWEST, 0.0);
        }
        return;
    }
    load_vectors(row, kv_head, t);
    if (high == keys.y) {
        store_new(row, kv_head, (slots + keys.y - 1u) * WORDS, t);
        storageBarrier();
        workgroupBarrier();
    }
{% for g in HEADS_OF_GROUP %}
    var acc{{ g }} = vec4<f32>(0.0);
    // Of all splits, the first contains the sink.
    var weight_sum{{ g }} = select(0.0, INITIAL_SUM, split == 0u && t < WORDS);
    var running_max{{ g }} = select(LOWEST, initial_max(kv_head * GROUP + {{ g }}u), split == 0u);
{% endfor %}
    for (var first = low; first < high; first += WG) {
        if (t < GROUP) {
            atomicStore(&max_bits[t], ordered(LOWEST));
        }
{% for g in HEADS_OF_GROUP %}
        var s{{ g }} = vec4<f32>(0.0);
{% endfor %}
        let valid = first + t < high;
        if (valid) {
            let key_at = (slots + first + t) * WORDS;
            for (var i = 0u; i < WORDS; i++) {
                let key = k_at(key_at + i);
{% for g in HEADS_OF_GROUP %}
                s{{ g }} += key * query[{{ g }}u * WORDS + i];
{% endfor %}
            }
        }
        workgroupBarrier();
{% for g in HEADS_OF_GROUP %}
        let score{{ g }} = select(LOWEST, softcapped(dot(s{{ g }}, vec4<f32>(1.0))), valid);
{% if SUBGROUPS %}
        let top{{ g }} = subgroupMax(score{{ g }});
        if (thread.lane == 0u) {
            atomicMax(&max_bits[{{ g }}], ordered(top{{ g }}));
        }
{% else %}
        atomicMax(&max_bits[{{ g }}], ordered(score{{ g }}));
{% endif %}
{% endfor %}
        workgroupBarrier();
{% for g in HEADS_OF_GROUP %}
        {
            let top = max(running_max{{ g }}, from_ordered(atomicLoad(&max_bits[{{ g }}])));
            let rescale = exp(running_max{{ g }} - top);
            acc{{ g }} *= rescale;
            weight_sum{{ g }} *= rescale;
            running_max{{ g }} = top;
            weights[{{ g }}u * WG + t] = select(0.0, exp(score{{ g }} - top), valid);
        }
{% endfor %}
        workgroupBarrier();
        if (t < LANES * WORDS) {
            // Four keys at a time, so that their loads overlap.
            let count = min(WG, high - first);
            for (var j = t / WORDS; j < count; j += 4u * LANES) {
{% for u in range(4) %}
                let j{{ u }} = min(j + {{ u }}u * LANES, WG - 1u);
                let value{{ u }} =
                    v_at((slots + first + min(j{{ u }}, count - 1u)) * WORDS + t % WORDS);
{% endfor %}
{% for u in range(4) %}
                if (j + {{ u }}u * LANES < count) {
{% for g in HEADS_OF_GROUP %}
                    let weight{{ g }} = weights[{{ g }}u * WG + j{{ u }}];
                    acc{{ g }} += weight{{ g }} * value{{ u }};
                    weight_sum{{ g }} += weight{{ g }};
{% endfor %}
                }
{% endfor %}
            }
        }
        workgroupBarrier();
    }
{% for g in HEADS_OF_GROUP %}
    if (t % WORDS == 0u && t < LANES * WORDS) {
        partial_weights[{{ g }}u * LANES + t / WORDS] = weight_sum{{ g }};
    }
    if (t == 0u) {
        // The maximum is the same in every thread; `weights` is free from here on.
        weights[{{ g }}] = running_max{{ g }};
    }
{% endfor %}
{% for first in range(0, GROUP, AT_ONCE) %}
{% set HEADS_NOW = [AT_ONCE, GROUP - first] | min %}
{% for h in range(HEADS_NOW) %}
    partial[{{ h }}u * WG + t] = acc{{ first + h }};
{% endfor %}
    workgroupBarrier();
    for (var work = t; work < {{ HEADS_NOW }}u * WORDS; work += WG) {
        let at_once = work / WORDS;
        let g = {{ first }}u + at_once;
        let at = (row * HEADS + kv_head * GROUP + g) * SPLITS + split;
        store_head(at, g, at_once, work % WORDS);
    }
{% if first + AT_ONCE < GROUP %}
    workgroupBarrier();
{% endif %}
{% endfor %}
}
