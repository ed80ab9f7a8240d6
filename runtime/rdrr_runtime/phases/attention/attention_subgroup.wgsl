{% set UNIT = 4 %}{# elements of a matrix in an element of an array, in which offsets and pitches of matrices count #}
{% set VALUE = ACTIVATIONS %}{# what is stored between ops; f16 is needed in any case #}
{% set M, N, K = SHAPE %}
{% set THREADS = TEAMS * SIZE %}
{% set TILE, WORDS, SIDE = TEAMS * M, ELEMENTS // 4, [N, K]|max %}
{% set PADDED = (ELEMENTS + SIDE - 1) // SIDE * SIDE %}{# a head in whole matrices, with zeros behind its elements #}
{% set SPARE, SUMS = (PADDED - ELEMENTS) // 4, PADDED // 4 %}
{# Queries that stay in matrices are staged where keys come afterwards, those of some teams at a time. #}
{% set STAGED = [KEYS // M, TEAMS]|min if MATRICES else 0 %}
{% set LOADS = (KEYS * WORDS + THREADS - 1) // THREADS %}
{% set SHARERS = SIZE // M %}{# threads of a query, which share its softmax or all compute it #}
{% set SCORERS = SHARERS if MATRICES else 1 %}
{# From one query, key or value to the next, and from the scores of a query to those of the next: 8 more than there
are, so that fewer of them share a bank. #}
{% set PITCH, SCORE_PITCH = PADDED + 8, KEYS + 8 %}
{% set QUADS = KEYS // 4 // SCORERS %}{# of the scores that a thread computes weights of #}
{% set OUTPUTS = PADDED // N %}{# matrices of a team's sums #}
{% set GROUP = KEYS // N %}{# of them that fit in the memory of its scores #}
// out[r, h, :] = sum_j softmax_j(softcapped(SCALE q[r, h, :] . K[j, :])) V[j, :] over the slots j that row r attends
// to, as products of matrices that a subgroup multiplies at once: f16 x f16, with sums in f32.
//
// current           Step
// q                 {{ VALUE }} [rows, HEADS, HEAD_DIM]
{% if SINKS %}
// sinks             f32 [HEADS]: logits that the softmax of a head includes, without a value
{% endif %}
// k_cache, v_cache  {{ KV }} [sequences, KV_HEADS, CONTEXT, HEAD_DIM]
// out               {{ VALUE }} [rows, HEADS, HEAD_DIM]
//
// An item is {{ TILE_HEADS }} heads, which share a key-value head, of {{ TILE // TILE_HEADS }} rows, which are in ascending slots of one
// sequence. In steps of {{ KEYS }} slots, first the keys and then the values are stored in workgroup memory in f16. Each
// of {{ TEAMS }} subgroups computes the scores and sums of {{ M }} queries; in between, {{ SHARERS }} threads compute the weights of a query.
{% if not MATRICES %}
// Teams of {{ SIZE }} threads take the place of subgroups here, and multiply element by element.
{% endif %}
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
{% include "cache/snippets/kv.wgsl" %}
{% include "attention/snippets/scores.wgsl" %}
var<storage, read> current: Step;
var<storage, read> q: array<vec4<{{ VALUE }}>>;
var<storage, read> k_cache: array<KvWord>;
var<storage, read> v_cache: array<KvWord>;
var<storage, read_write> out: array<vec4<{{ VALUE }}>>;

// Queries become at most 256, whatever their size, and weights are at most LIFT e^SLACK = 55,910 in f16: sums are
// rescaled only when a maximum has grown by more than SLACK.
const QUERY_MOST = 256.0;
const LIFT = 1024.0;
const SLACK = 4.0;

// 4 elements in a vector, which are 4 halves in 2 words or 4 floats.
{% if not STAGED %}
var<workgroup> queries: array<vec2<u32>, {{ TILE * PITCH // 4 }}>;
{% endif %}
var<workgroup> tile: array<vec2<u32>, {{ KEYS * PITCH // 4 }}>;             // {{ "queries, then " if STAGED }}keys, then values
var<workgroup> scores: array<vec4<f32>, {{ TILE * SCORE_PITCH // 4 }}>;     // and at times sums
var<workgroup> weights: array<vec2<u32>, {{ TILE * SCORE_PITCH // 4 }}>;
var<workgroup> rescales: array<f32, {{ TILE }}>;                     // of sums; at last 1 / (LIFT total)
{% if not MATRICES %}
var<workgroup> sums: array<vec4<f32>, {{ TILE * SUMS }}>;
{% endif %}
// The first is the last step in which a maximum grew, from 1 on. There are 16 bytes, because an H100 rounds addresses of
// matrices down to such multiples, and packs what is declared here without gaps.
var<workgroup> grown: array<u32, 4>;

// The last rows of a prompt have the most keys and begin first.
fn tile_row(nth: u32) -> u32 {
    let last = (current.rows - 1u) / {{ TILE // TILE_HEADS }}u;
    return (last - min(nth, last)) * {{ TILE // TILE_HEADS }}u;
}

{# Reduce a value over the threads that share the softmax of a query. #}
{% macro reduced(name, join) %}
{% if MATRICES %}
{% for step in (1, 2, 4, 8, 16) if step < SCORERS %}
    {{ name }} = {{ join }}({{ name }}, subgroupShuffleXor({{ name }}, {{ step }}u));
{% endfor %}
{% endif %}
{% endmacro %}
fn halves(v: vec4<f32>) -> vec2<u32> {
    return vec2<u32>(pack2x16float(v.xy), pack2x16float(v.zw));
}

fn floats(words: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}

fn tile_halves(word: TileWord) -> vec2<u32> {
    return {{ "word" if KV == "f16" else "halves(tile_unpack(word))" }};
}

{# Store what has been loaded in the tile, and load the words of `cache` from slot `from` on, of which `left` remain. #}
{% macro store_and_load(cache, from, left) %}
{% for l in range(LOADS) %}
        if (load{{ l }} < {{ KEYS * WORDS }}u) {
            tile[to{{ l }}] = tile_halves(next{{ l }});
        }
        next{{ l }} = TileWord();
        if (load{{ l }} < {{ left }}) {
            next{{ l }} = {{ cache }}_tile((slots + {{ from }}) * {{ WORDS }}u + load{{ l }});
        }
{% endfor %}
{% endmacro %}
{# Load the words of a step into the tile, where nothing would be gained by loading them earlier. #}
{% macro load_tile(cache) %}
        for (var i = t; i < {{ KEYS * WORDS }}u; i += {{ THREADS }}u) {
            var word = TileWord();
            if (i < words_left) {
                word = {{ cache }}_tile((slots + first) * {{ WORDS }}u + i);
            }
            tile[i / {{ WORDS }}u * {{ PITCH // 4 }}u + i % {{ WORDS }}u] = tile_halves(word);
        }
{% endmacro %}
{# For groups of a team's sums that fit in its scores: store them, run the body on rows of scores, load them again. #}
{% macro store_sums(first) %}
{% set LAST = [first + GROUP, OUTPUTS]|min %}
{% if MATRICES %}
{% for d in range(first, LAST) %}
        subgroupMatrixStore<row_major>(&scores, own_scores + {{ (d - first) * N // UNIT }}u, sums{{ d }}, {{ SCORE_PITCH // UNIT }}u);
{% endfor %}
{% else %}
{% set HERE = (LAST - first) * N // 4 %}
        for (var i = lane; i < {{ M * HERE }}u; i += {{ SIZE }}u) {
            let query = team * {{ M }}u + i / {{ HERE }}u;
            scores[query * {{ SCORE_PITCH // 4 }}u + i % {{ HERE }}u] = sums[query * {{ SUMS }}u + {{ first * N // 4 }}u + i % {{ HERE }}u];
        }
{% endif %}
{% endmacro %}
// The scores of a query with 4 keys, from slot `first` on; LOWEST for those that its row does not attend to.
fn scores_of(products: vec4<f32>, head: u32, own: u32, first: u32, keys: vec2<u32>) -> vec4<f32> {
    let slot = first + vec4<u32>(0u, 1u, 2u, 3u);
    var score: vec4<f32>;
{% for e in "xyzw" %}
    score.{{ e }} = softcapped(products.{{ e }}){% if BUCKETS or ALIBI %} + bias_of(head, own, slot.{{ e }}){% endif %};
{% endfor %}
    return select(vec4<f32>(LOWEST), score, (slot >= vec4<u32>(keys.x)) & (slot < vec4<u32>(keys.y)));
}

fn sum_of(a: f32, b: f32) -> f32 {
    return a + b;
}

fn phase(item: u32, row: u32, thread: Thread) {
    let head = item * {{ TILE_HEADS }}u;
    let first_row = tile_row(row / {{ TILE // TILE_HEADS }}u);
    let last_row = min(first_row + {{ TILE // TILE_HEADS }}u, current.rows) - 1u;
    // The remainders change nothing, but show Tint that all indices of workgroup memory are in range.
    let team = {{ "thread.subgroup % " ~ TEAMS ~ "u" if MATRICES else "thread.index / " ~ SIZE ~ "u % " ~ TEAMS ~ "u" }};
    let lane = {{ "thread.lane % " ~ SIZE ~ "u" if MATRICES else "thread.index % " ~ SIZE ~ "u" }};
    let t = team * {{ SIZE }}u + lane;
    let slots = first_slot(current.row[first_row].sequence, head / (HEADS / KV_HEADS));
    let tile_start = attended_slots(current.row[first_row]).x;
    let tile_end = attended_slots(current.row[last_row]).y;
{% if MATRICES %}
    // The words that this thread loads of the keys, then of the values of each step, while the scores or sums
    // before are computed. Values past the end are zero, as their weights are: the cache may hold NaN there.
{% for l in range(LOADS) %}
    let load{{ l }} = t + {{ l * THREADS }}u;
    let to{{ l }} = load{{ l }} / {{ WORDS }}u * {{ PITCH // 4 }}u + load{{ l }} % {{ WORDS }}u;
    var next{{ l }} = TileWord();
    if (load{{ l }} < (tile_end - tile_start) * {{ WORDS }}u) {
        next{{ l }} = k_tile((slots + tile_start) * {{ WORDS }}u + load{{ l }});
    }
{% endfor %}
{% endif %}
    // This thread computes weights of the query `mine`.
    let mine = team * {{ M }}u + lane / {{ SHARERS }}u;
    let scorer = lane % {{ SCORERS }}u;
    let own_row = min(first_row + mine / {{ TILE_HEADS }}u, last_row);
    let own_head = head + mine % {{ TILE_HEADS }}u;
    let own_slot = current.row[own_row].slot;
    let keys_of_row = attended_slots(current.row[own_row]);
    let from_query = (own_row * HEADS + own_head) * {{ WORDS }}u;
    var most = 0.0;
    for (var i = scorer; i < {{ WORDS }}u; i += {{ SCORERS }}u) {
        let v = abs(vec4<f32>(q[from_query + i]));
        most = max(most, max(max(v.x, v.y), max(v.z, v.w)));
    }
{{ reduced("most", "max") }}
    let factor = select(0.0, QUERY_MOST / most, most > 0.0);
    let scale = SCALE * most * (1.0 / QUERY_MOST);
{% if not STAGED %}
    for (var i = scorer; i < {{ WORDS }}u; i += {{ SCORERS }}u) {
        queries[mine * {{ PITCH // 4 }}u + i] = halves(factor * vec4<f32>(q[from_query + i]));
    }
{% endif %}
{% if SPARE %}
    // No load writes here, so the zeros remain.
{% for name, many in (("tile", KEYS), ("queries", TILE)) if name == "tile" or not STAGED %}
    for (var i = t; i < {{ many * SPARE }}u; i += {{ THREADS }}u) {
        {{ name }}[i / {{ SPARE }}u * {{ PITCH // 4 }}u + {{ WORDS }}u + i % {{ SPARE }}u] = vec2<u32>();
    }
{% endfor %}
{% endif %}
    let own_scores = team * {{ M * SCORE_PITCH // UNIT }}u;
    var reference = initial_max(own_head);  // what the exponents of the weights are relative to
    var weight_sum = select(0.0, INITIAL_SUM, scorer == 0u);
{% if MATRICES %}
{% for k in range(PADDED // K) if STAGED %}
    var query{{ k }}: subgroup_matrix_left<f16, {{ K }}, {{ M }}>;
{% endfor %}
{% for first in range(0, TEAMS, STAGED) if STAGED %}
    if (team / {{ STAGED }}u == {{ first // STAGED }}u) {
        for (var i = scorer; i < {{ WORDS }}u; i += {{ SCORERS }}u) {
            tile[mine % {{ STAGED * M }}u * {{ PITCH // 4 }}u + i] = halves(factor * vec4<f32>(q[from_query + i]));
        }
    }
    workgroupBarrier();
    if (team / {{ STAGED }}u == {{ first // STAGED }}u) {
{% for k in range(PADDED // K) %}
        query{{ k }} = subgroupMatrixLoad<subgroup_matrix_left<f16, {{ K }}, {{ M }}>, row_major>(&tile, team % {{ STAGED }}u * {{ M * PITCH // UNIT }}u + {{ k * K // UNIT }}u, {{ PITCH // UNIT }}u);
{% endfor %}
    }
    workgroupBarrier();
{% endfor %}
{% for d in range(OUTPUTS) %}
    var sums{{ d }}: subgroup_matrix_result<f32, {{ N }}, {{ M }}>;
{% endfor %}
{% else %}
    for (var i = t; i < {{ TILE * SUMS }}u; i += {{ THREADS }}u) {
        sums[i] = vec4<f32>(0.0);
    }
{% endif %}
    for (var first = tile_start; first < tile_end; first += {{ KEYS }}u) {
        let words_left = (tile_end - first) * {{ WORDS }}u;
        workgroupBarrier();  // until all threads have read the values of the previous step
{{ store_and_load("v", "first", "words_left") if MATRICES else load_tile("k") }}
        workgroupBarrier();
{% if MATRICES %}
{% for j in range(KEYS // N) %}
        {
            var products = subgroup_matrix_result<f32, {{ N }}, {{ M }}>();  // Tint too zeroes a variable without a value only once
{% for k in range(PADDED // K) %}
            let key{{ k }} = subgroupMatrixLoad<subgroup_matrix_right<f16, {{ N }}, {{ K }}>, col_major>(&tile, {{ (j * N * PITCH + k * K) // UNIT }}u, {{ PITCH // UNIT }}u);
            products = subgroupMatrixMultiplyAccumulate(query{{ k }}, key{{ k }}, products);
{% endfor %}
            subgroupMatrixStore<row_major>(&scores, own_scores + {{ j * N // UNIT }}u, products, {{ SCORE_PITCH // UNIT }}u);
        }
{% endfor %}
{% else %}
        for (var i = t; i < {{ TILE * KEYS // 4 }}u; i += {{ THREADS }}u) {
            let query = i / {{ KEYS // 4 }}u * {{ PITCH // 4 }}u;
            let key = i % {{ KEYS // 4 }}u * {{ PITCH }}u;
            var products = vec4<f32>();  // naga zeroes a variable without a value only once
            for (var w = 0u; w < {{ WORDS }}u; w++) {
                let v = floats(queries[query + w]);
{% for e in range(4) %}
                products.{{ "xyzw"[e] }} += dot(v, floats(tile[key + {{ e * PITCH // 4 }}u + w]));
{% endfor %}
            }
            scores[i / {{ KEYS // 4 }}u * {{ SCORE_PITCH // 4 }}u + i % {{ KEYS // 4 }}u] = products;
        }
{% endif %}
        workgroupBarrier();
{{ store_and_load("k", "first + %du" % KEYS, "words_left - min(words_left, %du)" % (KEYS * WORDS)) if MATRICES else load_tile("v") }}
        var most_here = reference;
        let from_score = mine * {{ SCORE_PITCH // 4 }}u + scorer;
{% for i in range(QUADS) %}
        let score{{ i }} = scores_of(scale * scores[from_score + {{ i * SCORERS }}u], own_head, own_slot, first + 4u * scorer + {{ 4 * i * SCORERS }}u, keys_of_row);
        most_here = max(most_here, max(max(score{{ i }}.x, score{{ i }}.y), max(score{{ i }}.z, score{{ i }}.w)));
{% endfor %}
{{ reduced("most_here", "max") }}
        // LOWEST has no room for SLACK below the first maximum: adding it changes nothing.
        let grows = most_here > reference + SLACK;
        let rescale = select(1.0, exp(reference - most_here), grows);
        reference = select(reference, most_here, grows);
        weight_sum *= rescale;
        if (scorer == 0u) {
            rescales[mine] = rescale;
        }
        if (grows) {
            grown[0] = first + 1u;
        }
{% for i in range(QUADS) %}
        {
            let seen = score{{ i }} != vec4<f32>(LOWEST);
            let weight = halves(select(vec4<f32>(0.0), LIFT * exp(score{{ i }} - reference), seen));
            weight_sum += (1.0 / LIFT) * dot(floats(weight), vec4<f32>(1.0));
            weights[from_score + {{ i * SCORERS }}u] = weight;
        }
{% endfor %}
        if (workgroupUniformLoad(&grown[0]) == first + 1u) {
{% if MATRICES %}
{% for group in range(0, OUTPUTS, GROUP) %}
{{ store_sums(group) }}
            workgroupBarrier();
            for (var i = scorer; i < {{ ([GROUP, OUTPUTS - group]|min) * N // 4 }}u; i += {{ SCORERS }}u) {
                scores[mine * {{ SCORE_PITCH // 4 }}u + i] *= rescale;
            }
            workgroupBarrier();
{% for d in range(group, [group + GROUP, OUTPUTS]|min) %}
            sums{{ d }} = subgroupMatrixLoad<subgroup_matrix_result<f32, {{ N }}, {{ M }}>, row_major>(&scores, own_scores + {{ (d - group) * N // UNIT }}u, {{ SCORE_PITCH // UNIT }}u);
{% endfor %}
{% endfor %}
{% else %}
            for (var i = t; i < {{ TILE * SUMS }}u; i += {{ THREADS }}u) {
                sums[i] *= rescales[i / {{ SUMS }}u];
            }
            workgroupBarrier();
{% endif %}
        }
{% if MATRICES %}
{% for k in range(KEYS // K) %}
        {
            let weight = subgroupMatrixLoad<subgroup_matrix_left<f16, {{ K }}, {{ M }}>, row_major>(&weights, own_scores + {{ k * K // UNIT }}u, {{ SCORE_PITCH // UNIT }}u);
{% for d in range(OUTPUTS) %}
            let held{{ d }} = subgroupMatrixLoad<subgroup_matrix_right<f16, {{ N }}, {{ K }}>, row_major>(&tile, {{ (k * K * PITCH + d * N) // UNIT }}u, {{ PITCH // UNIT }}u);
            sums{{ d }} = subgroupMatrixMultiplyAccumulate(weight, held{{ d }}, sums{{ d }});
{% endfor %}
        }
{% endfor %}
{% else %}
        for (var i = t; i < {{ TILE * WORDS }}u; i += {{ THREADS }}u) {
            let query = i / {{ WORDS }}u * {{ SCORE_PITCH // 4 }}u;
            let to_sum = i / {{ WORDS }}u * {{ SUMS }}u + i % {{ WORDS }}u;
            var sum = sums[to_sum];
            for (var j = 0u; j < {{ KEYS // 4 }}u; j++) {
                let weight = floats(weights[query + j]);
                let value = j * {{ PITCH }}u + i % {{ WORDS }}u;
{% for e in range(4) %}
                sum += weight.{{ "xyzw"[e] }} * floats(tile[value + {{ e * PITCH // 4 }}u]);
{% endfor %}
            }
            sums[to_sum] = sum;
        }
{% endif %}
    }
{{ reduced("weight_sum", "sum_of") }}
    workgroupBarrier();
    if (scorer == 0u) {
        rescales[mine] = 1.0 / (LIFT * weight_sum);
    }
{% for group in range(0, OUTPUTS, GROUP) %}
{% set QUADS_HERE = ([GROUP, OUTPUTS - group]|min) * N // 4 %}
    {
{{ store_sums(group) }}
        workgroupBarrier();
        for (var i = lane; i < {{ M * QUADS_HERE }}u; i += {{ SIZE }}u) {
            let query = team * {{ M }}u + i / {{ QUADS_HERE }}u;
            let of_row = first_row + query / {{ TILE_HEADS }}u;
            let sum = scores[query * {{ SCORE_PITCH // 4 }}u + i % {{ QUADS_HERE }}u];
            let word = {{ group * N // 4 }}u + i % {{ QUADS_HERE }}u;
            if (of_row <= last_row{% if SPARE %} && word < {{ WORDS }}u{% endif %}) {
                let to = (of_row * HEADS + head + query % {{ TILE_HEADS }}u) * {{ WORDS }}u + word;
                out[to] = value4(rescales[query] * sum);
            }
        }
        workgroupBarrier();
    }
{% endfor %}
}
