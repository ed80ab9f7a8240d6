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
// An item is a split of the keys of a row and {{ GROUP }} of the {{ SHARED }} query heads that share a key-value head. A
// split has at least MIN_KEYS keys, of which KEYS are computed at a time: first PARTS threads share a key
// and add up its scores through workgroup memory, then LANES threads share a vector of 4 output elements of
// HELD heads. Keys and values are loaded into registers long before they are needed. Accumulates in f32.
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
const SHARED = {{ SHARED }}u;
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

{% include "snippets/load_vectors.wgsl" %}

{% if STORES and KV == "q8_0" %}
// f16 bits of the scale of the 32 elements that begin at a word of `query`.
fn new_scale(first: u32) -> u32 {
    var largest = 0u;
    for (var j = 0u; j < 8u; j++) {
        largest = max(largest, bits_of_abs_max(query[first + j]));
    }
    return scale_bits(largest);
}

// Keep the new key and value in `fresh`, and store them at word `first` of the caches if `stores`. A thread
// writes 4 codes; the first thread of each 64 elements also writes their two scales.
fn store_new(first: u32, stores: bool, t: u32) {
    for (var i = t; i < WORDS; i += WG) {
        let target_word = first + i;
{% for cache in ("k", "v") %}
        let {{ cache }}_word = (GROUP + {{ loop.index0 }}u) * WORDS + i;
        let {{ cache }}_scale = new_scale({{ cache }}_word - i % 8u);
        let {{ cache }}_codes = codes(query[{{ cache }}_word], {{ cache }}_scale);
        if (stores) {
            {{ cache }}_cache[target_word] = {{ cache }}_codes;
        }
        fresh[{{ loop.index0 }}u * WORDS + i] = half_scale({{ cache }}_scale) * vec4<f32>(unpack4xI8({{ cache }}_codes));
        if (stores && i % 16u == 0u) {
            let after = new_scale({{ cache }}_word + 8u);
            {{ cache }}_cache[{{ "SECOND_" if cache == "v" }}SCALES_AT + target_word / 16u] = {{ cache }}_scale | (after << 16u);
        }
{% endfor %}
    }
}
{% elif STORES %}
// Keep the new key and value in `fresh`, and store them at word `first` of the caches if `stores`.
fn store_new(first: u32, stores: bool, t: u32) {
    for (var i = t; i < WORDS; i += WG) {
        let key = kv_pack(query[GROUP * WORDS + i]);
        let value = kv_pack(query[(GROUP + 1u) * WORDS + i]);
        if (stores) {
            k_cache[first + i] = key;
            v_cache[first + i] = value;
        }
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

// The keys of a split, of `count` keys in all.
fn split_length(count: u32) -> u32 {
{% if EVEN %}
    // A split with the keys left over after whole splits would be a workgroup with few keys.
    let whole = clamp(count / MIN_KEYS, 1u, SPLITS);
    return (count + whole - 1u) / whole;
{% else %}
    return max((count + SPLITS - 1u) / SPLITS, MIN_KEYS);
{% endif %}
}

{% set K_WORDS = range(KEY_WORDS) %}
{% set V_WORDS = range(VALUE_WORDS) %}
fn phase(item: u32, row: u32, thread: Thread{% if SUBGROUPS %}, subgroup_size: u32{% endif %}) {
    let groups = HEADS / GROUP;
    let first_head = item % groups * GROUP;
    let split = item / groups;
    let t = thread.index;
    let slots = first_slot(current.row[row].sequence, first_head / SHARED);
    let keys = attended_slots(current.row[row].slot);
    let span = split_length(keys.y - keys.x);
    let low = min(keys.x + split * span, keys.y);
    let high = min(low + span, keys.y);
    if (low >= high) {
        if (t < GROUP) {
            stats[(row * HEADS + first_head + t) * SPLITS + split] = vec2<f32>(LOWEST, 0.0);
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
        let lowest = select(LOWEST, initial_max(first_head + t), split == 0u);
        atomicStore(&max_bits[t], ordered(lowest));
    }
    load_vectors(row, first_head, high == keys.y, t);
{% if STORES %}
    if (high == keys.y) {
        // Of the groups that share a key-value head, the first stores its key and value.
        store_new((slots + keys.y - 1u) * WORDS, first_head % SHARED == 0u, t);
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
        store_head((row * HEADS + first_head + g) * SPLITS + split, g, work % WORDS);
    }
}
