// Attention over latents for the keys of one split: with the scores s_j = SCALE q[r, h, :] . [c_j, k_j] of its slots j
// and m = max_j s_j, sums = sum_j e^(s_j - m) c_j and stats = (m, sum_j e^(s_j - m)). The latent c_j and the
// rotated key k_j are shared by all heads.
//
// current  Step
// q        {{ VALUE }} [rows, HEADS, HEAD_DIM + ROPE_DIM]
// k_cache  {{ KV }} [sequences, CONTEXT, HEAD_DIM]: latents
// v_cache  {{ KV }} [sequences, CONTEXT, ROPE_DIM]: rotated keys
// sums     f32 [rows, HEADS, SPLITS, HEAD_DIM]; a split without keys leaves them as they are
// stats    f32 [rows, HEADS, SPLITS, 2]; the sum of a split without keys is 0, and these splits are the last ones
//
// An item is 4 heads and one split of the keys of a row; vectors of 4 hold a number of each head. It processes
// KEYS keys at a time. PARTS threads share the score of a key; then each thread adds up some words of the
// latents. Both read the cache before they need it. Online softmax. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "cache/snippets/kv.wgsl" %}
{% include "attention/snippets/scores.wgsl" %}
var<storage, read> current: Step;
var<storage, read> q: array<vec4<{{ VALUE }}>>;
var<storage, read> k_cache: array<KvWord>;
var<storage, read> v_cache: array<KvWord>;
var<storage, read_write> sums: array<vec4<f32>>;
var<storage, read_write> stats: array<vec2<f32>>;

override ROPE_DIM: u32;
override SPLITS: u32;

const PARTS = {{ PARTS }}u;  // threads that share a key
override KEYS = WG / PARTS;
override WORDS = HEAD_DIM / 4u;
override ROPE_WORDS = ROPE_DIM / 4u;
override QUERY_WORDS = WORDS + ROPE_WORDS;
const LANES = {{ LANES }}u;  // threads that share a word of the sums
const STRIDE = PARTS + 1u;  // odd, so that threads read from different banks
override SCORES = KEYS * STRIDE;
override QUERIES = 4u * QUERY_WORDS;

const ALL = vec4<f32>(1.0);

var<workgroup> queries: array<vec4<f32>, QUERIES>;  // at the end: sums of a head by all lanes
var<workgroup> parts: array<vec4<f32>, SCORES>;     // parts of the scores
var<workgroup> weights: array<vec4<f32>, KEYS>;      // scores, then exp(score - maximum)
var<workgroup> totals: array<vec4<f32>, LANES>;      // sums of weights

// Word i of the latent and rotated key at a slot.
fn key_word(slot: u32, i: u32) -> TileWord {
    if (i < WORDS) {
        return k_tile(slot * WORDS + i);
    }
    return v_tile(slot * ROPE_WORDS + min(i - WORDS, ROPE_WORDS - 1u));
}

{% set K_WORDS = range(KEY_WORDS) %}
{% set V_KEYS = range(VALUE_KEYS) %}
{% set V_WORDS = range(OWN_WORDS) %}
fn phase(item: u32, row: u32, thread: Thread) {
    let groups = (HEADS + 3u) / 4u;
    let head0 = 4u * (item % groups);
    let split = item / groups;
    let t = thread.index;
    let slots = first_slot(current.row[row].sequence, 0u);
    let all = attended_slots(current.row[row]);
    // Whole rounds, so that no split computes one for few keys.
    let span = (all.y - all.x + SPLITS * KEYS - 1u) / (SPLITS * KEYS) * KEYS;
    let low = min(all.x + split * span, all.y);
    let high = min(low + span, all.y);
    if (low >= high) {
        if (t < 4u && head0 + t < HEADS) {
            stats[(row * HEADS + head0 + t) * SPLITS + split] = vec2<f32>(LOWEST, 0.0);
        }
        return;
    }
    let part = t % PARTS;
    let key = t / PARTS;
    let lane = min(t / WORDS, LANES);  // LANES for a thread without a word
    let word = t % WORDS;
{% for i in K_WORDS %}
    var k{{ i }} = key_word(slots + min(low + key, high - 1u), part + {{ i }}u * PARTS);
{% endfor %}
{% for u in V_KEYS %}
{% for w in V_WORDS %}
    var v{{ u }}_{{ w }} = k_tile((slots + min(low + lane + {{ u }}u * LANES, high - 1u)) * WORDS + min(word + {{ w }}u * WG, WORDS - 1u));
{% endfor %}
{% endfor %}
    for (var i = t; i < 4u * QUERY_WORDS; i += WG) {
        let head = min(head0 + i / QUERY_WORDS, HEADS - 1u);
        queries[i] = SCALE * vec4<f32>(q[(row * HEADS + head) * QUERY_WORDS + i % QUERY_WORDS]);
    }
    workgroupBarrier();

    var running_max = vec4<f32>(LOWEST);
    var weight_sum = vec4<f32>(0.0);
    // The template unrolls the loops over words, keys and heads, so that their values are kept in registers.
{% for w in V_WORDS %}
{% for h in range(4) %}
    var acc{{ w }}_{{ h }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
    for (var first = low; first < high; first += KEYS) {
{% for h in range(4) %}
        var s{{ h }} = vec4<f32>(0.0);
{% endfor %}
{% for i in K_WORDS %}
        if (part + {{ i }}u * PARTS < QUERY_WORDS) {
            let k = tile_unpack(k{{ i }});
{% for h in range(4) %}
            s{{ h }} += queries[{{ h }}u * QUERY_WORDS + part + {{ i }}u * PARTS] * k;
{% endfor %}
        }
{% endfor %}
        parts[key * STRIDE + part] = vec4<f32>(dot(s0, ALL), dot(s1, ALL), dot(s2, ALL), dot(s3, ALL));
        // The keys of the next round; past the end they are read, but not used.
        let next = first + KEYS;
{% for i in K_WORDS %}
        k{{ i }} = key_word(slots + min(next + key, high - 1u), part + {{ i }}u * PARTS);
{% endfor %}
        workgroupBarrier();
        var score = vec4<f32>(0.0);
        if (t < KEYS) {
            for (var p = 0u; p < PARTS; p++) {
                score += parts[t * STRIDE + p];
            }
            score = select(vec4<f32>(LOWEST), score, first + t < high);
            weights[t] = score;
        }
        workgroupBarrier();
        var new_max = running_max;
        for (var j = 0u; j < KEYS; j++) {
            new_max = max(new_max, weights[j]);
        }
        workgroupBarrier();
        if (t < KEYS) {
            weights[t] = select(vec4<f32>(0.0), exp(score - new_max), first + t < high);
        }
        let rescale = exp(running_max - new_max);
        running_max = new_max;
        weight_sum *= rescale;
{% for w in V_WORDS %}
{% for h in range(4) %}
        acc{{ w }}_{{ h }} *= rescale[{{ h }}];
{% endfor %}
{% endfor %}
        workgroupBarrier();
{% for u in V_KEYS %}
        if (lane + {{ u }}u * LANES < KEYS) {
            let p = weights[lane + {{ u }}u * LANES];
            weight_sum += p;
{% for w in V_WORDS %}
            let c{{ w }} = tile_unpack(v{{ u }}_{{ w }});
{% for h in range(4) %}
            acc{{ w }}_{{ h }} += p[{{ h }}] * c{{ w }};
{% endfor %}
{% endfor %}
        }
{% for w in V_WORDS %}
        v{{ u }}_{{ w }} = k_tile((slots + min(next + lane + {{ u }}u * LANES, high - 1u)) * WORDS + min(word + {{ w }}u * WG, WORDS - 1u));
{% endfor %}
{% endfor %}
    }
    if (word == 0u && lane < LANES) {
        totals[lane] = weight_sum;
    }
{% for h in range(4) %}
    workgroupBarrier();  // until the queries, or the sums of the previous head, have been read
    if (lane > 0u && lane < LANES) {
        queries[t] = acc0_{{ h }};
    }
    workgroupBarrier();
    if (lane == 0u && head0 + {{ h }}u < HEADS) {
        let at = (row * HEADS + head0 + {{ h }}u) * SPLITS + split;
        for (var other = 1u; other < LANES; other++) {
            acc0_{{ h }} += queries[other * WORDS + word];
        }
{% for w in V_WORDS %}
        if (word + {{ w }}u * WG < WORDS) {
            sums[at * WORDS + word + {{ w }}u * WG] = acc{{ w }}_{{ h }};
        }
{% endfor %}
        if (t == 0u) {
            var total = totals[0];
            for (var other = 1u; other < LANES; other++) {
                total += totals[other];
            }
            stats[at] = vec2<f32>(running_max[{{ h }}], total[{{ h }}]);
        }
    }
{% endfor %}
}
