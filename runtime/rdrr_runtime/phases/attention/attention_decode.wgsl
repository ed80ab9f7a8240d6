// Decode attention directly from the projections, with norms, rope and the store into the cache fused:
//
//   q, k = rope(norm(projected)) and v = projected; k and v are stored in the cache at the row's slot
{% if ROUNDED %}
//   y[r, h, :] = sum over all keys j of e^score_j V[j, :] / sum over j of e^score_j, rounded to {{ ROUNDED }}
{% else %}
//   sums[r, h, s, :] = sum over the keys j of split s of e^(score_j - m) V[j, :], not yet divided
//   stats[r, h, s] = (m, sum over j of e^(score_j - m)), where m is the maximum score of the split;
//   (LOWEST, 0) for a split without keys, whose sums are not written
{% endif %}
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
{% if ROUNDED == "f16" %}
// y                 f16 [rows, HEADS, HEAD_DIM]
// factors           f32 [rows]: 1, since no result is larger than the largest value, which is in f16 too
{% elif ROUNDED %}
// y                 u32 [rows, 5, HEADS HEAD_DIM / 64, 4], as quantize_small_batch writes it
{% else %}
// sums              f32 [rows, HEADS, SPLITS, HEAD_DIM]
// stats             f32 [rows, HEADS, SPLITS, 2]
{% endif %}
//
// An item is a split of the keys of a row and {{ GROUP }} of the {{ SHARED }} query heads that share a key-value head. A
// split has at least MIN_KEYS keys. TEAM threads share a key: each has some elements of the queries, of the key
// and of the value. They complete the score of each head in one of them, which keeps the softmax of this head
// over the keys of the team. Teams wait for each other only at the end of the split. Keys and values are loaded
// a round before they are needed. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "cache/snippets/kv.wgsl" %}
{% include "attention/snippets/scores.wgsl" %}
{% set BY_WORD = true %}
{% include "attention/snippets/head_transform.wgsl" %}
{% include "snippets/ordered.wgsl" %}
var<storage, read> current: Step;
var<storage, read> projected: array<vec4<{{ VALUE }}>>;
var<storage, read_write> k_cache: array<KvWord>;
var<storage, read_write> v_cache: array<KvWord>;
{% if ROUNDED == "f16" %}
var<storage, read_write> y: array<vec2<u32>>;
var<storage, read_write> factors: array<f32>;
{% elif ROUNDED %}
var<storage, read_write> y: array<u32>;
{% else %}
var<storage, read_write> sums: array<vec4<f32>>;
var<storage, read_write> stats: array<vec2<f32>>;
{% endif %}

override SPLITS: u32;
override MIN_KEYS: u32;
override STAGED: u32;   // at least VECTORS and WG

const GROUP = {{ GROUP }}u;
const SHARED = {{ SHARED }}u;
const QUERY_STEP = {{ "2u" if FORM.gated else "1u" }};  // vectors of a head in the projected queries
{% set STORES = not FORM.shares_keys %}
{% set NORMED = "GROUP" if FORM.shares_keys else "(GROUP + 2u)" if FORM.values_normed else "(GROUP + 1u)" %}
const NEW_HEADS = {{ "2u" if STORES else "0u" }};  // projected vectors of a key-value head: its new key and value
const TEAM = {{ TEAM }}u;                  // threads that share a key; a power of two
const OWN_VECTORS = {{ GROUP * OWN_WORDS }}u;           // vectors of 4 elements whose weighted sums a thread holds
override WORDS = HEAD_DIM / 4u;
override TEAMS = WG / TEAM;           // also the keys of a round
override VECTORS = (GROUP + NEW_HEADS) * WORDS;

// The template unrolls the loops over heads and words: compilers do not keep arrays in registers
// that are indexed by a variable.
var<workgroup> query: array<vec4<f32>, VECTORS>;         // queries of the group, then the new key and value
var<workgroup> partial: array<vec4<f32>, STAGED>;       // what threads exchange; at first the same as projected
{% if STORES %}
var<workgroup> fresh: array<TileWord, 2u * WORDS>;       // the new key and value as the caches hold them
{% endif %}
{% if NORM %}
var<workgroup> squares: array<f32, WG>;
var<workgroup> inverse_rms: array<f32, {{ NORMED }}>;      // 1 / root mean square of each
{% endif %}
var<workgroup> max_bits: array<atomic<u32>, GROUP>;      // maximum score, as `ordered` bits
var<workgroup> totals: array<f32, GROUP * TEAMS>;        // sums of the weights

{% include "attention/snippets/load_vectors.wgsl" %}
{% if ROUNDED %}

{% include "attention/snippets/rounded_heads.wgsl" %}
{% endif %}

{% if STORES %}
{% include "attention/snippets/store_new.wgsl" %}
{% endif %}

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

{# The score of head h of the group is completed in APART threads of a team, from thread h APART on. #}
{% set APART = TEAM // PADDED %}
{% set OWN = range(OWN_WORDS) %}
{% macro load_round(cache, first) %}
{% for i in OWN %}
        {{ cache }}{{ i }} = {{ cache }}_tile((slots + min({{ first }} + team, high - 1u)) * WORDS + {{ word_of(i) }});
{% endfor %}
{% endmacro %}
{% macro word_of(i) %}min(lane + {{ i * TEAM }}u, WORDS - 1u){% endmacro %}
{# The cache does not hold the new key and value for sure yet. #}
{% macro replace_by_fresh(cache, first_word) %}
{% if STORES %}
        if (next >= keys.y && min(first + team, high - 1u) == keys.y - 1u) {
{% for i in OWN %}
            {{ cache }}{{ i }} = fresh[{{ first_word }} + {{ word_of(i) }}];
{% endfor %}
        }
{% endif %}
{% endmacro %}
{# Declare `got` and its number for each of the values: what thread t ^ other has. #}
{% macro exchange(values, other) %}
{% for v in values %}
            var got{{ loop.index0 }} = 0.0;
{% endfor %}
{% if SUBGROUPS %}
            if (subgroup_size >= TEAM) {
{% for v in values %}
                got{{ loop.index0 }} = subgroupShuffleXor({{ v }}, {{ other }}u);
{% endfor %}
            } else {
{% else %}
            {
{% endif %}
                workgroupBarrier();
                partial[t] = vec4<f32>({{ (values + ["0.0"] * 4)[:4] | join(", ") }});
                workgroupBarrier();
{% for v in values %}
                got{{ loop.index0 }} = partial[t ^ {{ other }}u][{{ loop.index0 }}];
{% endfor %}
            }
{% endmacro %}
{# Declare for each value its name and the number of each head: what the threads that complete its score have. #}
{% macro gather(values) %}
{% for h in range(GROUP) %}
{% for v in values %}
        var {{ v }}{{ h }} = 0.0;
{% endfor %}
{% endfor %}
{% if SUBGROUPS %}
        if (subgroup_size >= TEAM) {
            let team_lane = thread.lane - lane;
{% for h in range(GROUP) %}
{% for v in values %}
            {{ v }}{{ h }} = subgroupShuffle({{ v }}, team_lane + {{ h * APART }}u);
{% endfor %}
{% endfor %}
        } else {
{% else %}
        {
{% endif %}
            workgroupBarrier();
            partial[t] = vec4<f32>({{ (values + ["0.0"] * 4)[:4] | join(", ") }});
            workgroupBarrier();
{% for h in range(GROUP) %}
{% for v in values %}
            {{ v }}{{ h }} = partial[t - lane + {{ h * APART }}u][{{ loop.index0 }}];
{% endfor %}
{% endfor %}
        }
{% endmacro %}
fn phase(item: u32, row: u32, thread: Thread{% if SUBGROUPS %}, subgroup_size: u32{% endif %}) {
    let groups = HEADS / GROUP;
    let first_head = item % groups * GROUP;
    let split = item / groups;
    let t = thread.index;
    let slots = first_slot(current.row[row].sequence, first_head / SHARED);
    let keys = attended_slots(current.row[row]);
    let span = split_length(keys.y - keys.x);
    let low = min(keys.x + split * span, keys.y);
    let high = min(low + span, keys.y);
    if (low >= high) {
{% if not ROUNDED %}
        if (t < GROUP) {
            stats[(row * HEADS + first_head + t) * SPLITS + split] = vec2<f32>(LOWEST, 0.0);
        }
{% endif %}
        return;
    }
    let team = t / TEAM;
    let lane = t % TEAM;
{% for cache in ("k", "v") %}
{% for i in OWN %}
    var {{ cache }}{{ i }}: TileWord;
{% endfor %}
{{ load_round(cache, "low") }}
{% endfor %}
    if (t < GROUP) {
        atomicStore(&max_bits[t], ordered(LOWEST));
    }
    load_vectors(row, first_head, high == keys.y, t);
{% if STORES %}
    if (high == keys.y) {
        // Of the groups that share a key-value head, the first stores its key and value.
        store_new((slots + keys.y - 1u) * WORDS, first_head % SHARED == 0u, t);
        workgroupBarrier();
    }
{% endif %}
{% for h in range(GROUP) %}
{% for i in OWN %}
    let q{{ h }}_{{ i }} = select(vec4<f32>(0.0), query[{{ h }}u * WORDS + {{ word_of(i) }}], lane + {{ i * TEAM }}u < WORDS);
    var acc{{ h }}_{{ i }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
    let own_head = min(lane / {{ APART }}u, GROUP - 1u);
    let completes = lane % {{ APART }}u == 0u && lane < {{ APART * GROUP }}u;  // a score that no other thread does
    // Of all splits, the first contains the sink.
    var top = select(LOWEST, initial_max(first_head + own_head), split == 0u);
    var total = select(0.0, INITIAL_SUM, split == 0u && team == 0u);
    for (var first = low; first < high; first += TEAMS) {
        let next = first + TEAMS;
{{ replace_by_fresh("k", "0u") }}
{% for h in range(PADDED) %}
        var s{{ h }} = 0.0;
{% endfor %}
{% for i in OWN %}
        {
            let key = tile_unpack(k{{ i }});
{% for h in range(GROUP) %}
{% for e in range(4) %}
            s{{ h }} += key[{{ e }}] * q{{ h }}_{{ i }}[{{ e }}];
{% endfor %}
{% endfor %}
        }
{% endfor %}
        // Past the end keys and values are read, but not used.
{{ load_round("k", "next") }}
        // Half of a thread's scores go to another thread, until each score is complete in some of them.
{% set g = namespace(count=PADDED) %}
{% for other in (16, 8, 4, 2, 1) if other < TEAM %}
        {
{% if g.count > 1 %}
{% set g.count = g.count // 2 %}
            let second = (lane & {{ other }}u) != 0u;
{% for h in range(g.count) %}
            let sent{{ h }} = select(s{{ h + g.count }}, s{{ h }}, second);
            s{{ h }} = select(s{{ h }}, s{{ h + g.count }}, second);
{% endfor %}
{% else %}
            let sent0 = s0;
{% endif %}
{{ exchange(["sent0", "sent1", "sent2", "sent3"][:g.count], other) }}
{% for h in range(g.count) %}
            s{{ h }} += got{{ h }};
{% endfor %}
        }
{% endfor %}
        let inside = first + team < high;
        let score = select(LOWEST, softcapped(s0), inside);
        let old_top = top;
        top = max(top, score);
        let rescale = exp(old_top - top);
        let weight = select(0.0, exp(score - top), inside);
        total = total * rescale + weight;
{{ gather(["rescale", "weight"]) }}
{{ replace_by_fresh("v", "WORDS") }}
{% for h in range(GROUP) %}
{% for i in OWN %}
        acc{{ h }}_{{ i }} *= rescale{{ h }};
{% endfor %}
{% endfor %}
{% for i in OWN %}
        {
            let value = tile_unpack(v{{ i }});
{% for h in range(GROUP) %}
            acc{{ h }}_{{ i }} += weight{{ h }} * value;
{% endfor %}
        }
{% endfor %}
{{ load_round("v", "next") }}
    }
    if (completes) {
        atomicMax(&max_bits[own_head], ordered(top));
    }
    workgroupBarrier();
    let rescale = exp(top - from_ordered(atomicLoad(&max_bits[own_head])));
    total *= rescale;
{{ gather(["rescale"]) }}
{% for h in range(GROUP) %}
{% for i in OWN %}
    acc{{ h }}_{{ i }} *= rescale{{ h }};
{% endfor %}
{% endfor %}
{% if SUBGROUPS %}
    let sharing = clamp(subgroup_size, TEAM, WG);  // threads whose sums are added up without workgroup memory
    for (var other = TEAM; other < sharing; other *= 2u) {
        total += subgroupShuffleXor(total, other);
{% for h in range(GROUP) %}
{% for i in OWN %}
        acc{{ h }}_{{ i }} += subgroupShuffleXor(acc{{ h }}_{{ i }}, other);
{% endfor %}
{% endfor %}
    }
{% else %}
    const sharing = TEAM;
{% endif %}
    let writers = WG / sharing;
    let writer = t / sharing;
    let writes = t % sharing < TEAM;
    if (writes && completes) {
        totals[own_head * TEAMS + writer] = total;
    }
    let at_once = min(OWN_VECTORS, STAGED / (writers * TEAM));
    for (var begin = 0u; begin < OWN_VECTORS; begin += at_once) {
        workgroupBarrier();  // other threads may still read what was exchanged before
        if (writes) {
{% for h in range(GROUP) %}
{% for i in OWN %}
{% set n = "%du" % (h * OWN_WORDS + i) %}
            if ({{ n }} - begin < at_once) {  // also false if `begin` is more
                partial[(({{ n }} - begin) * writers + writer) * TEAM + lane] = acc{{ h }}_{{ i }};
            }
{% endfor %}
{% endfor %}
        }
        workgroupBarrier();
        for (var work = t; work < at_once * TEAM; work += WG) {
            let vector = begin + work / TEAM;
            let word = vector % {{ OWN_WORDS }}u * TEAM + work % TEAM;
            if (vector < OWN_VECTORS && word < WORDS) {
                var sum = vec4<f32>(0.0);
                for (var i = 0u; i < writers; i++) {
                    sum += partial[(work / TEAM * writers + i) * TEAM + work % TEAM];
                }
{% if ROUNDED %}
                let head = vector / {{ OWN_WORDS }}u;
                let mean = sum / total_of(head, writers);
{% if ROUNDED == "f16" %}
                y[(row * HEADS + first_head + head) * WORDS + word] = vec2<u32>(pack2x16float(mean.xy), pack2x16float(mean.zw));
{% else %}
                query[head * WORDS + word] = mean;
{% endif %}
{% else %}
                sums[((row * HEADS + first_head + vector / {{ OWN_WORDS }}u) * SPLITS + split) * WORDS + word] = sum;
{% endif %}
            }
        }
    }
{% if ROUNDED == "f16" %}
    if (item == 0u && t == 0u) {
        factors[row] = 1.0;
    }
{% elif ROUNDED %}
    workgroupBarrier();
    for (var i = t; i < GROUP * WORDS; i += WG) {
        store_int8(row, i, first_head * WORDS + i);
    }
{% else %}
    if (t < GROUP) {
        var sum = 0.0;
        for (var i = 0u; i < writers; i++) {
            sum += totals[t * TEAMS + i];
        }
        stats[(row * HEADS + first_head + t) * SPLITS + split] =
            vec2<f32>(from_ordered(atomicLoad(&max_bits[t])), sum);
    }
{% endif %}
}
