{% set QUADS = KEYS // 4 %}{# a quad is 4 keys in a row #}
{% set PARTS = LANES // QUADS %}{# of a head's elements, among threads with the same keys #}
{% set SCORERS = LANES // QUERIES %}{# threads that share the softmax of a query #}
{% set OWN_QUADS = (QUADS + SCORERS - 1) // SCORERS %}
{% set SPARE = SCORERS > QUADS %}{# some of them have no keys #}
// out[r, h, :] = sum_j softmax_j(softcapped(SCALE q[r, h, :] . K[j, :])) V[j, :] over the slots j that
// row r attends to, with the keys K and values V of its sequence and of the key-value head of head h.
{% if SPLIT %}
// Each workgroup leaves the partial result of one split of the keys; that of a row without keys in a split
// has a sum of 0 in its statistics, and its sums may be unwritten.
{% endif %}
//
// current           Step
// q                 {{ VALUE }} [rows, HEADS, HEAD_DIM]
{% if SINKS %}
// sinks             f32 [HEADS]: logits that the softmax of a head includes, without a value
{% endif %}
// k_cache, v_cache  {{ KV }} [sequences, KV_HEADS, CONTEXT, HEAD_DIM]
{% if SPLIT %}
// sums              f32 [rows, HEADS, SPLITS, HEAD_DIM], not yet divided by the exp sum
// stats             f32 [rows, HEADS, SPLITS, 2]: maximum score, exp sum
{% else %}
// out               {{ VALUE }} [rows, HEADS, HEAD_DIM]
{% endif %}
//
// An item is {{ TILE_HEADS }} heads, which share a key-value head, of TILE_ROWS rows, which are in ascending slots of one
// sequence: a tile of queries{{ " (and one split of their keys)" if SPLIT }}. In steps of {{ KEYS }} slots, first the keys and then the values are loaded into
// workgroup memory, once for all queries. A team of {{ LANES }} threads computes the scores and sums of {{ QUERIES }} queries:
// each thread {{ QUERIES }} x 4 scores, over one of {{ PARTS }} parts of the elements, and {{ 4 * OWN_WORDS }} elements of all {{ QUERIES }} sums.
// In between, {{ SCORERS }} threads compute the weights of a query. Online softmax. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
{% include "cache/snippets/kv.wgsl" %}
{% include "attention/snippets/scores.wgsl" %}
var<storage, read> current: Step;
var<storage, read> q: array<vec4<{{ VALUE }}>>;
var<storage, read> k_cache: array<KvWord>;
var<storage, read> v_cache: array<KvWord>;
{% if SPLIT %}
var<storage, read_write> sums: array<vec4<f32>>;
var<storage, read_write> stats: array<vec2<f32>>;

override SPLITS: u32;
override MIN_KEYS: u32;  // of a split, a multiple of the keys of a step
{% else %}
var<storage, read_write> out: array<vec4<{{ VALUE }}>>;
{% endif %}

override TEAMS = WG / {{ LANES }}u;
override TILE = TEAMS * {{ QUERIES }}u;  // queries
override TILE_ROWS = TILE / {{ TILE_HEADS }}u;
override WORDS = HEAD_DIM / 4u;
// From one query or key to the next, so that threads which read together read different banks.
override STRIDE = WORDS + {{ PARTS }}u;

const WEIGHTS_STRIDE = {{ QUADS + 2 }}u;

var<workgroup> queries: array<vec4<f32>, TILE * STRIDE>;
var<workgroup> tile: array<TileWord, {{ KEYS }}u * STRIDE>;
var<workgroup> weights: array<vec4<f32>, {{ PARTS }}u * TILE * WEIGHTS_STRIDE>;  // of 4 keys; scores at first
var<workgroup> shared_values: array<f32, WG>;  // one value of each thread, for reductions over a query
var<workgroup> rescales: array<f32, TILE>;

// The first row of the nth tile. The last rows of a prompt have the most keys and begin first: on an H200,
// 512 rows took 63 us in this order and 87 in the other.
fn tile_row(nth: u32) -> u32 {
    let last = (current.rows - 1u) / TILE_ROWS;
    return (last - min(nth, last)) * TILE_ROWS;
}

fn phase(item: u32, row: u32, thread: Thread) {
{% if SPLIT %}
    let head = item / SPLITS * {{ TILE_HEADS }}u;
    let split = item % SPLITS;
{% else %}
    let head = item * {{ TILE_HEADS }}u;
{% endif %}
    let first_row = tile_row(row / TILE_ROWS);
    let last_row = min(first_row + TILE_ROWS, current.rows) - 1u;
    let t = thread.index;
    let slots = first_slot(current.row[first_row].sequence, head / (HEADS / KV_HEADS));
{% if SPLIT %}
    let low = attended_slots(current.row[first_row]).x;
    let end = attended_slots(current.row[last_row]).y;
    // Whole steps, since a step takes as long with few keys.
    let steps = (end - low + SPLITS * {{ KEYS }}u - 1u) / (SPLITS * {{ KEYS }}u);
    let span = max(steps * {{ KEYS }}u, MIN_KEYS);
    let tile_start = min(low + split * span, end);
    let tile_end = min(tile_start + span, end);
    if (tile_start >= tile_end) {
        for (var i = t; i < TILE; i += WG) {
            let of_row = first_row + i / {{ TILE_HEADS }}u;
            if (of_row <= last_row) {
                stats[(of_row * HEADS + head + i % {{ TILE_HEADS }}u) * SPLITS + split] = vec2<f32>(LOWEST, 0.0);
            }
        }
        return;
    }
{% else %}
    let tile_start = attended_slots(current.row[first_row]).x;
    let tile_end = attended_slots(current.row[last_row]).y;
{% endif %}

    // The words that this thread loads of the keys, then of the values of each step, while the scores or sums
    // before are computed. Values past the end are zero, as their weights are: the cache may hold NaN there.
{% for l in range(LOADS) %}
    let load{{ l }} = t + WG * {{ l }}u;
    let of_key{{ l }} = load{{ l }} / WORDS;
    let value_to{{ l }} = of_key{{ l }} * STRIDE + load{{ l }} % WORDS;
    // Threads that read keys together read those of different quads, which lie side by side.
    let key_to{{ l }} = value_to{{ l }} + (of_key{{ l }} % 4u * {{ QUADS }}u + of_key{{ l }} / 4u - of_key{{ l }}) * STRIDE;
    var next{{ l }} = TileWord();
    if (load{{ l }} < (tile_end - tile_start) * WORDS) {
        next{{ l }} = k_tile((slots + tile_start) * WORDS + load{{ l }});
    }
{% endfor %}
    for (var i = t; i < TILE * WORDS; i += WG) {
        let query = i / WORDS;
        let of_row = min(first_row + query / {{ TILE_HEADS }}u, last_row);
        let from_head = of_row * HEADS + head + query % {{ TILE_HEADS }}u;
        queries[query * STRIDE + i % WORDS] = SCALE * vec4<f32>(q[from_head * WORDS + i % WORDS]);
    }

    // This thread computes scores and sums of the queries {{ "team" if QUERIES == 1 else "team + m TEAMS" }}, with m < {{ QUERIES }}.
    let team = t / {{ LANES }}u;
    let lane = t % {{ LANES }}u;
    let quad = lane % {{ QUADS }}u;
    let part = lane / {{ QUADS }}u;
    // And it computes weights of one query.
    let mine = t / {{ SCORERS }}u;
    let scorer = t % {{ SCORERS }}u;
    let own_row = current.row[min(first_row + mine / {{ TILE_HEADS }}u, last_row)];
    let keys_of_row = attended_slots(own_row);

    // The template unrolls these loops: naga adds a bound to every loop, and arrays that are indexed
    // by a variable are not kept in registers.
{% if SPLIT %}
    // Of all splits, the first contains the sink.
    var running_max = select(LOWEST, initial_max(head + mine % {{ TILE_HEADS }}u), split == 0u);
    var weight_sum = select(0.0, INITIAL_SUM, scorer == 0u && split == 0u);  // over the keys of this thread
{% else %}
    var running_max = initial_max(head + mine % {{ TILE_HEADS }}u);
    var weight_sum = select(0.0, INITIAL_SUM, scorer == 0u);  // over the keys of this thread
{% endif %}
{% for w in range(OWN_WORDS) %}
    let word{{ w }} = min(lane + {{ LANES * w }}u, WORDS - 1u);
{% for m in range(QUERIES) %}
    var acc{{ m }}_{{ w }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
    for (var first = tile_start; first < tile_end; first += {{ KEYS }}u) {
        let words_left = (tile_end - first) * WORDS;
        workgroupBarrier();  // until all threads have read the values of the previous step
{% for l in range(LOADS) %}
        if (load{{ l }} < {{ KEYS }}u * WORDS) {
            tile[key_to{{ l }}] = next{{ l }};
        }
        next{{ l }} = TileWord();
        if (load{{ l }} < words_left) {
            next{{ l }} = v_tile((slots + first) * WORDS + load{{ l }});
        }
{% endfor %}
        workgroupBarrier();
{% for m in range(QUERIES) %}
        var s{{ m }} = vec4<f32>(0.0);
{% endfor %}
        for (var i = part; i < WORDS; i += {{ PARTS }}u) {
{% for u in range(4) %}
            let k{{ u }} = tile_unpack(tile[(quad + {{ QUADS * u }}u) * STRIDE + i]);
{% endfor %}
{% for m in range(QUERIES) %}
            let q{{ m }} = queries[(team + {{ m }}u * TEAMS) * STRIDE + i];
{% for e in "xyzw" %}
            s{{ m }} += q{{ m }}.{{ e }} * vec4<f32>(k0.{{ e }}, k1.{{ e }}, k2.{{ e }}, k3.{{ e }});
{% endfor %}
{% endfor %}
        }
{% for m in range(QUERIES) %}
        weights[(part * TILE + team + {{ m }}u * TEAMS) * WEIGHTS_STRIDE + quad] = s{{ m }};
{% endfor %}
        workgroupBarrier();
{% for l in range(LOADS) %}
        if (load{{ l }} < {{ KEYS }}u * WORDS) {
            tile[value_to{{ l }}] = next{{ l }};
        }
        if (load{{ l }} + {{ KEYS }}u * WORDS < words_left) {
            next{{ l }} = k_tile((slots + first + {{ KEYS }}u) * WORDS + load{{ l }});
        }
{% endfor %}
        var new_max = running_max;
{% for u in range(OWN_QUADS) %}
        let quad{{ u }} = scorer + {{ SCORERS * u }}u;
        let at{{ u }} = mine * WEIGHTS_STRIDE + {{ "min(quad%d, %du)" % (u, QUADS - 1) if SPARE else "quad%d" % u }};
        let raw{{ u }} = weights[at{{ u }}]{% for p in range(1, PARTS) %} + weights[at{{ u }} + {{ p }}u * TILE * WEIGHTS_STRIDE]{% endfor %};
        let slot{{ u }} = first + 4u * quad{{ u }} + vec4<u32>(0u, 1u, 2u, 3u);
        let visible{{ u }} = {{ "vec4<bool>(scorer < %du) & " % QUADS if SPARE }}(slot{{ u }} >= vec4<u32>(keys_of_row.x)) & (slot{{ u }} < vec4<u32>(keys_of_row.y));
        let capped{{ u }} = vec4<f32>({% for e in "xyzw" %}softcapped(raw{{ u }}.{{ e }}){% if BUCKETS or ALIBI %} + bias_of(head + mine % {{ TILE_HEADS }}u, own_row.slot, slot{{ u }}.{{ e }}){% endif %}{{ ", " if not loop.last }}{% endfor %});
        let score{{ u }} = select(vec4<f32>(LOWEST), capped{{ u }}, visible{{ u }});
        new_max = max(new_max, max(max(score{{ u }}.x, score{{ u }}.y), max(score{{ u }}.z, score{{ u }}.w)));
{% endfor %}
        shared_values[t] = new_max;
        workgroupBarrier();
{% for l in range(SCORERS) %}
        new_max = max(new_max, shared_values[mine * {{ SCORERS }}u + {{ l }}u]);
{% endfor %}
        let rescale = exp(running_max - new_max);
        running_max = new_max;
        weight_sum *= rescale;
        if (scorer == 0u) {
            rescales[mine] = rescale;
        }
{% for u in range(OWN_QUADS) %}
        let weight{{ u }} = select(vec4<f32>(0.0), exp(score{{ u }} - new_max), visible{{ u }});
        {{ "if (scorer < %du) { " % QUADS if SPARE }}weights[at{{ u }}] = weight{{ u }};{{ " }" if SPARE }}
        weight_sum += weight{{ u }}.x + weight{{ u }}.y + weight{{ u }}.z + weight{{ u }}.w;
{% endfor %}
        workgroupBarrier();
{% for m in range(QUERIES) %}
        let rescale{{ m }} = rescales[team + {{ m }}u * TEAMS];
{% for w in range(OWN_WORDS) %}
        acc{{ m }}_{{ w }} *= rescale{{ m }};
{% endfor %}
{% endfor %}
        let quads = min(tile_end - first + 3u, {{ KEYS }}u) / 4u;
        for (var j = 0u; j < quads; j++) {
{% for m in range(QUERIES) %}
            let p{{ m }} = weights[(team + {{ m }}u * TEAMS) * WEIGHTS_STRIDE + j];
{% endfor %}
{% for u in range(4) %}
{% for w in range(OWN_WORDS) %}
            let v{{ u }}_{{ w }} = tile_unpack(tile[(4u * j + {{ u }}u) * STRIDE + word{{ w }}]);
{% for m in range(QUERIES) %}
            acc{{ m }}_{{ w }} += p{{ m }}.{{ "xyzw"[u] }} * v{{ u }}_{{ w }};
{% endfor %}
{% endfor %}
{% endfor %}
        }
    }
    shared_values[t] = weight_sum;
    workgroupBarrier();
{% macro total(query) %}{% for l in range(SCORERS) %}{{ " + " if l }}shared_values[{{ query }} * {{ SCORERS }}u + {{ l }}u]{% endfor %}{% endmacro %}
{% if SPLIT %}
    let of_mine = first_row + mine / {{ TILE_HEADS }}u;
    if (scorer == 0u && of_mine <= last_row) {
        stats[(of_mine * HEADS + head + mine % {{ TILE_HEADS }}u) * SPLITS + split] = vec2<f32>(running_max, {{ total("mine") }});
    }
{% endif %}
{% for m in range(QUERIES) %}
    let query{{ m }} = team + {{ m }}u * TEAMS;
    let row{{ m }} = first_row + query{{ m }} / {{ TILE_HEADS }}u;
    let head{{ m }} = row{{ m }} * HEADS + head + query{{ m }} % {{ TILE_HEADS }}u;
{% if SPLIT %}
    let to{{ m }} = (head{{ m }} * SPLITS + split) * WORDS + lane;
{% else %}
    let to{{ m }} = head{{ m }} * WORDS + lane;
    let total{{ m }} = {{ total("query%d" % m) }};
{% endif %}
{% for w in range(OWN_WORDS) %}
    if (row{{ m }} <= last_row && lane + {{ LANES * w }}u < WORDS) {
        {{ "sums" if SPLIT else "out" }}[to{{ m }} + {{ LANES * w }}u] = {{ "acc%d_%d" % (m, w) if SPLIT else "value4(acc%d_%d / total%d)" % (m, w, m) }};
    }
{% endfor %}
{% endfor %}
}
