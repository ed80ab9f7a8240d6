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
{% if FORM.gated %}
// projected         {{ VALUE }} [rows, 2 HEADS + 2 KV_HEADS, HEAD_DIM]: a query and its gate, which is not read
//                   here, for each head; then keys and values
{% elif FORM.shares_keys %}
// projected         {{ VALUE }} [rows, HEADS, HEAD_DIM]: queries; another layer has stored the key and value
{% else %}
// projected         {{ VALUE }} [rows, HEADS + 2 KV_HEADS, HEAD_DIM]: queries, keys, values
{% endif %}
// k_cache, v_cache  {{ KV }} [sequences, KV_HEADS, CONTEXT, HEAD_DIM]
// sums              f32 [rows, HEADS, SPLITS, HEAD_DIM]
// stats             f32 [rows, HEADS, SPLITS, 2]
//
// An item is one key-value head and one split of the keys of a row. It computes the {{ GROUP }} query heads that
// share the key-value head, so that each key is read once. A split has at least MIN_KEYS keys, of which
// KEYS are computed at a time: first PARTS threads share a key and add up its scores through workgroup
// memory, then LANES threads share a vector of 4 output elements of HELD heads. Keys and values are
// loaded into registers long before they are needed. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/kv.wgsl" %}
{% include "snippets/scores.wgsl" %}
{% include "snippets/head_transform.wgsl" %}
{% include "snippets/ordered.wgsl" %}
var<storage, read> current: Step;
var<storage, read> projected: array<{{ VALUE }}>;
var<storage, read_write> k_cache: array<KvWord>;
var<storage, read_write> v_cache: array<KvWord>;
var<storage, read_write> sums: array<vec4<f32>>;
var<storage, read_write> stats: array<vec2<f32>>;

override SPLITS: u32;
override MIN_KEYS: u32;
override STAGED: u32;   // VECTORS or HELD * WG, whichever is more

const GROUP = {{ GROUP }}u;
const QUERY_STEP = {{ "2u" if FORM.gated else "1u" }};  // vectors of a head in the projected queries
{% set STORES = not FORM.shares_keys %}
{% set NORMED = "GROUP" if FORM.shares_keys else "(GROUP + 2u)" if FORM.values_normed else "(GROUP + 1u)" %}
const NEW_HEADS = {{ "2u" if STORES else "0u" }};  // projected vectors of a key-value head: its new key and value
const KEYS = {{ KEYS }}u;
const HELD = {{ HELD }}u;
const BLOCKS = {{ BLOCKS }}u;           // blocks of HELD heads; the last may be smaller
override WORDS = HEAD_DIM / 4u;
override PARTS = WG / KEYS;             // threads that share a key
override STRIDE = KEYS + 32u / PARTS;   // of the scores of a part, so that threads write to different banks
override LANES = WG / (WORDS * BLOCKS);
override VECTORS = (GROUP + NEW_HEADS) * WORDS;

// The template unrolls the loops over heads, keys and values: compilers do not keep arrays in registers
// that are indexed by a variable.
var<workgroup> query: array<vec4<f32>, VECTORS>;         // queries of the group, then the new key and value
var<workgroup> partial: array<vec4<f32>, STAGED>;       // sums of the threads; at first the same as projected
{% if STORES %}
var<workgroup> fresh: array<TileWord, 2u * WORDS>;       // the new key and value as the caches hold them
{% endif %}
{% if NORM %}
var<workgroup> inverse_rms: array<f32, {{ NORMED }}>;      // 1 / root mean square of each
{% endif %}
var<workgroup> scores: array<f32, GROUP * PARTS * STRIDE>;
var<workgroup> weights: array<f32, BLOCKS * HELD * KEYS>;  // exp(score - maximum) of each key
var<workgroup> max_bits: array<atomic<u32>, GROUP>;      // maximum score, as `ordered` bits
var<workgroup> partial_weights: array<f32, BLOCKS * HELD * LANES>;

// Index of the first element of a vector of a row and key-value head: the queries of the group are
// vectors 0 to GROUP - 1, then come the new key and the new value.
fn vector_at(row: u32, kv_head: u32, vector: u32) -> u32 {
    let query_at = QUERY_STEP * (kv_head * GROUP + vector);
    let key_at = QUERY_STEP * HEADS + kv_head + select(0u, KV_HEADS, vector > GROUP);
    let own = select(query_at, key_at, vector >= GROUP);
    return (row * (QUERY_STEP * HEADS + NEW_HEADS * KV_HEADS) + own) * HEAD_DIM;
}

{% if NORM %}
const SUMMERS = {{ SUMMERS }}u;  // threads that sum up the squares of one vector

{% if FORM.norm_spans_heads %}
var<private> own_kv_head: u32;

// The norm spans all queries, or all keys. `scores` is free until the first scores.
fn compute_inverse_rms(row: u32, kv_head: u32, t: u32) {
    own_kv_head = kv_head;
    let row_first = row * (HEADS + NEW_HEADS * KV_HEADS) * HEAD_DIM;
{% for first, count, vectors in (("0u", "HEADS", "t < GROUP"), ("HEADS * HEAD_DIM", "KV_HEADS", "t == GROUP"))[: 2 if STORES else 1] %}
    {
        var own = 0.0;
        for (var i = t; i < {{ count }} * HEAD_DIM; i += WG) {
            let v = f32(projected[row_first + {{ first }} + i]);
            own += v * v;
        }
        scores[t] = own;
        workgroupBarrier();
        own = 0.0;
        if (t < 16u) {
            for (var i = t; i < WG; i += 16u) {
                own += scores[i];
            }
        }
        workgroupBarrier();
        if (t < 16u) {
            scores[t] = own;
        }
        workgroupBarrier();
        if ({{ vectors }}) {
            var sum = 0.0;
            for (var i = 0u; i < 16u; i++) {
                sum += scores[i];
            }
            inverse_rms[t] = inverseSqrt(sum / f32({{ count }} * HEAD_DIM) + EPS);
        }
        workgroupBarrier();
    }
{% endfor %}
}
{% else %}
fn compute_inverse_rms(row: u32, kv_head: u32, t: u32) {
    // `scores` is free until the first scores and holds the sums of the threads.
    let vector = t / SUMMERS;
    if (vector < {{ NORMED }}) {
        var sum = 0.0;
        for (var i = t % SUMMERS; i < WORDS; i += SUMMERS) {
            let v = partial[vector * WORDS + i];
            sum += dot(v, v);
        }
        scores[t] = sum;
    }
    workgroupBarrier();
    if (t < {{ NORMED }}) {
        var sum = 0.0;
        for (var i = 0u; i < SUMMERS; i++) {
            sum += scores[SUMMERS * t + i];
        }
        inverse_rms[t] = inverseSqrt(sum / f32(HEAD_DIM) + EPS);
    }
    workgroupBarrier();
}
{% endif %}

// The factor of the norm on element i of a vector.
fn norm_factor(vector: u32, i: u32) -> f32 {
{% if FORM.norm_spans_heads %}
    let head = select(own_kv_head * GROUP + vector, HEADS + own_kv_head, vector == GROUP);
    return inverse_rms[vector] * (OFFSET + gains[head * HEAD_DIM + i]);
{% else %}
    return inverse_rms[vector] * (OFFSET + gains[select(0u, HEAD_DIM, vector == GROUP) + i]);
{% endif %}
}
{% endif %}

// Element i of a vector, with the norm before the rotation.
fn normed(vector: u32, i: u32) -> f32 {
    let v = partial[vector * WORDS + i / 4u][i % 4u];
    return v{{ " * norm_factor(vector, i)" if NORM and not FORM.norm_after_rope }};
}

// Element i of a vector after norm and rope, multiplied by `scale`. A rotation does not change the mean
// square of a head.
fn transformed(vector: u32, i: u32, angles: u32, scale: f32) -> f32 {
{% if NORM and FORM.norm_after_rope %}
    return norm_factor(vector, i) * placed(vector, i, angles, scale);
}

fn placed(vector: u32, i: u32, angles: u32, scale: f32) -> f32 {
{% endif %}
{% if ROPE %}
    if (i < 2u * PAIRS) {
        let pair = pair_of(i);
        let start = first_of_pair(pair);
        let a = scale * normed(vector, start);
        let b = scale * normed(vector, partner(start));
        let result = rotated(a, b, table[angles + pair]);
        return select(result.x, result.y, is_second(i));
    }
{% endif %}
    return scale * normed(vector, i);
}

// Store the queries of the group, the new key and the new value in `query`. A thread writes whole
// vectors, because a write to one component may rewrite the others and so undo what other threads write
// there. For that it computes both elements of each rotated pair, even if it stores only one.
fn load_vectors(row: u32, kv_head: u32, t: u32) {
    for (var word = t; word < VECTORS; word += WG) {
        let first = vector_at(row, kv_head, word / WORDS) + 4u * (word % WORDS);
        partial[word] = vec4<f32>(
            f32(projected[first]),
            f32(projected[first + 1u]),
            f32(projected[first + 2u]),
            f32(projected[first + 3u]),
        );
    }
    workgroupBarrier();
{% if NORM %}
    compute_inverse_rms(row, kv_head, t);
{% endif %}
    let angles = current.row[row].position * PAIRS;
    let query_scale = SCALE * query_factor(current.row[row].position);
    for (var word = t; word < VECTORS; word += WG) {
        let vector = word / WORDS;
        if (vector > GROUP) {
            query[word] = partial[word]{{ " * inverse_rms[GROUP + 1u]" if FORM.values_normed }};
            continue;
        }
        let i = 4u * (word % WORDS);
        let scale = select(query_scale, 1.0, vector == GROUP);
        query[word] = vec4<f32>(
            transformed(vector, i, angles, scale),
            transformed(vector, i + 1u, angles, scale),
            transformed(vector, i + 2u, angles, scale),
            transformed(vector, i + 3u, angles, scale),
        );
    }
    workgroupBarrier();
}

{% if STORES and KV == "q8_0" %}
// f16 bits of the scale of the 32 elements that begin at a word of `query`.
fn new_scale(first: u32) -> u32 {
    var amax = 0.0;
    for (var j = 0u; j < 8u; j++) {
        amax = max(amax, abs_max(query[first + j]));
    }
    return scale_bits(amax);
}

// Store the new key and value at word `first` of the caches and in `fresh`. A thread writes 4 codes; the
// first thread of each 64 elements also writes their two scales.
fn store_new(first: u32, t: u32) {
    for (var i = t; i < WORDS; i += WG) {
        let target_word = first + i;
{% for cache in ("k", "v") %}
        let {{ cache }}_word = (GROUP + {{ loop.index0 }}u) * WORDS + i;
        let {{ cache }}_scale = new_scale({{ cache }}_word - i % 8u);
        let {{ cache }}_codes = codes(query[{{ cache }}_word], {{ cache }}_scale);
        {{ cache }}_cache[target_word] = {{ cache }}_codes;
        fresh[{{ loop.index0 }}u * WORDS + i] = half_scale({{ cache }}_scale) * vec4<f32>(unpack4xI8({{ cache }}_codes));
        if (i % 16u == 0u) {
            let after = new_scale({{ cache }}_word + 8u);
            {{ cache }}_cache[{{ "SECOND_" if cache == "v" }}SCALES_AT + target_word / 16u] = {{ cache }}_scale | (after << 16u);
        }
{% endfor %}
    }
}
{% elif STORES %}
// Store the new key and value at word `first` of the caches and in `fresh`.
fn store_new(first: u32, t: u32) {
    for (var i = t; i < WORDS; i += WG) {
        let key = kv_pack(query[GROUP * WORDS + i]);
        let value = kv_pack(query[(GROUP + 1u) * WORDS + i]);
        k_cache[first + i] = key;
        v_cache[first + i] = value;
        fresh[i] = key;
        fresh[WORDS + i] = value;
    }
}
{% endif %}

// Add up word `i` of the sums of all threads for head `g` of the group and store it in result `at`.
fn store_head(at: u32, g: u32, i: u32) {
    var sum = vec4<f32>(0.0);
    var total = 0.0;
    for (var lane = 0u; lane < LANES; lane++) {
        sum += partial[g % HELD * WG + (lane * BLOCKS + g / HELD) * WORDS + i];
        total += partial_weights[g * LANES + lane];
    }
    sums[at * WORDS + i] = sum;
    if (i == 0u) {
        stats[at] = vec2<f32>(from_ordered(atomicLoad(&max_bits[g])), total);
    }
}

{% set K_WORDS = range(KEY_WORDS) %}
{% set V_WORDS = range(VALUE_WORDS) %}
fn phase(item: u32, row: u32, thread: Thread{% if SUBGROUPS %}, subgroup_size: u32{% endif %}) {
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
    let part = t % PARTS;
    let key = t / PARTS;
    let lane = t / (WORDS * BLOCKS);
    let block = t / WORDS % BLOCKS;
    let word = t % WORDS;
{% for i in K_WORDS %}
    var k{{ i }} = k_tile((slots + min(low + key, high - 1u)) * WORDS + min(part + {{ i }}u * PARTS, WORDS - 1u));
{% endfor %}
{% for u in V_WORDS %}
    var v{{ u }} = v_tile((slots + min(low + lane + {{ u }}u * LANES, high - 1u)) * WORDS + word);
{% endfor %}
    // Of all splits, the first contains the sink.
    if (t < GROUP) {
        let lowest = select(LOWEST, initial_max(kv_head * GROUP + t), split == 0u);
        atomicStore(&max_bits[t], ordered(lowest));
    }
    load_vectors(row, kv_head, t);
{% if STORES %}
    if (high == keys.y) {
        store_new((slots + keys.y - 1u) * WORDS, t);
        workgroupBarrier();
    }
{% endif %}
{% for h in range(HELD) %}
    let head{{ h }} = min(block * HELD + {{ h }}u, GROUP - 1u);
    var acc{{ h }} = vec4<f32>(0.0);
    var weight_sum{{ h }} = select(0.0, INITIAL_SUM, split == 0u && lane == 0u);
    var running_max{{ h }} = from_ordered(atomicLoad(&max_bits[head{{ h }}]));
{% endfor %}
    for (var first = low; first < high; first += KEYS) {
{% if STORES %}
        if (first + KEYS >= keys.y) {
            // The cache does not hold the new key and value for sure yet.
            let last = keys.y - 1u - first;
            if (key == last) {
{% for i in K_WORDS %}
                k{{ i }} = fresh[min(part + {{ i }}u * PARTS, WORDS - 1u)];
{% endfor %}
            }
            let new_value = fresh[WORDS + word];
{% for u in V_WORDS %}
            if (lane + {{ u }}u * LANES == last) {
                v{{ u }} = new_value;
            }
{% endfor %}
        }
{% endif %}
{% for g in range(GROUP) %}
        var s{{ g }} = 0.0;
{% endfor %}
{% for i in K_WORDS %}
        if (part + {{ i }}u * PARTS < WORDS) {
            let k = tile_unpack(k{{ i }});
{% for g in range(GROUP) %}
            s{{ g }} += dot(k, query[{{ g }}u * WORDS + part + {{ i }}u * PARTS]);
{% endfor %}
        }
{% endfor %}
{% for g in range(GROUP) %}
        scores[({{ g }}u * PARTS + part) * STRIDE + key] = s{{ g }};
{% endfor %}
        // The keys of the next round; past the end they are read, but not used.
        let next = first + KEYS;
{% for i in K_WORDS %}
        k{{ i }} = k_tile((slots + min(next + key, high - 1u)) * WORDS + min(part + {{ i }}u * PARTS, WORDS - 1u));
{% endfor %}
        workgroupBarrier();
        let count = min(KEYS, high - first);
{% for r in range(ROUNDS) %}
        let g{{ r }} = min(({{ r }}u * WG + t) / KEYS, GROUP - 1u);
        let j{{ r }} = ({{ r }}u * WG + t) % KEYS;
        var score{{ r }} = 0.0;
        for (var p = 0u; p < PARTS; p++) {
            score{{ r }} += scores[(g{{ r }} * PARTS + p) * STRIDE + j{{ r }}];
        }
        score{{ r }} = select(LOWEST, softcapped(score{{ r }}), j{{ r }} < count);
{% if SUBGROUPS %}
        if (KEYS % subgroup_size == 0u) {
            let top = subgroupMax(score{{ r }});
            if (thread.lane == 0u) {
                atomicMax(&max_bits[g{{ r }}], ordered(top));
            }
        } else {
            atomicMax(&max_bits[g{{ r }}], ordered(score{{ r }}));
        }
{% else %}
        atomicMax(&max_bits[g{{ r }}], ordered(score{{ r }}));
{% endif %}
{% endfor %}
        workgroupBarrier();
{% for r in range(ROUNDS) %}
        if ({{ r }}u * WG + t < GROUP * KEYS) {
            let top = from_ordered(atomicLoad(&max_bits[g{{ r }}]));
            weights[g{{ r }} * KEYS + j{{ r }}] = select(0.0, exp(score{{ r }} - top), j{{ r }} < count);
        }
{% endfor %}
{% for h in range(HELD) %}
        {
            let top = from_ordered(atomicLoad(&max_bits[head{{ h }}]));
            let rescale = exp(running_max{{ h }} - top);
            acc{{ h }} *= rescale;
            weight_sum{{ h }} *= rescale;
            running_max{{ h }} = top;
        }
{% endfor %}
        workgroupBarrier();
{% for u in V_WORDS %}
        if (lane + {{ u }}u * LANES < count) {
            let v = tile_unpack(v{{ u }});
{% for h in range(HELD) %}
            let weight{{ h }} = weights[head{{ h }} * KEYS + lane + {{ u }}u * LANES];
            acc{{ h }} += weight{{ h }} * v;
            weight_sum{{ h }} += weight{{ h }};
{% endfor %}
        }
        v{{ u }} = v_tile((slots + min(next + lane + {{ u }}u * LANES, high - 1u)) * WORDS + word);
{% endfor %}
    }
    if (lane < LANES) {
{% for h in range(HELD) %}
        partial[{{ h }}u * WG + t] = acc{{ h }};
        if (word == 0u) {
            partial_weights[(block * HELD + {{ h }}u) * LANES + lane] = weight_sum{{ h }};
        }
{% endfor %}
    }
    workgroupBarrier();
    for (var work = t; work < GROUP * WORDS; work += WG) {
        let g = work / WORDS;
        store_head((row * HEADS + kv_head * GROUP + g) * SPLITS + split, g, work % WORDS);
    }
}
