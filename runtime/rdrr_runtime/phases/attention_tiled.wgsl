// out[r, h, :] = sum_j softmax_j(softcapped(SCALE q[r, h, :] . K[j, :])) V[j, :] over the slots j that
// row r attends to, with the keys K and values V of its sequence and of the key-value head of head h.
//
// current           Step
// q                 {{ VALUE }} [rows, HEADS, HEAD_DIM]
{% if SINKS %}
// sinks             f32 [HEADS]: logits that the softmax of a head includes, without a value
{% endif %}
// k_cache, v_cache  {{ KV }} [sequences, KV_HEADS, CONTEXT, HEAD_DIM]
// out               {{ VALUE }} [rows, HEADS, HEAD_DIM]
//
// An item is one head of TILE_ROWS rows, which are in ascending slots of one sequence; 8 threads work
// on each row. In steps of {{ 8 * KEYS_PER_THREAD }} slots, first the keys and then the values are loaded into workgroup
// memory, once for all rows. Online softmax. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
{% include "snippets/kv.wgsl" %}
{% include "snippets/scores.wgsl" %}
var<storage, read> current: Step;
var<storage, read> q: array<vec4<{{ VALUE }}>>;
var<storage, read> k_cache: array<KvWord>;
var<storage, read> v_cache: array<KvWord>;
var<storage, read_write> out: array<vec4<{{ VALUE }}>>;

override TILE_ROWS = WG / 8u;
override WORDS = HEAD_DIM / 4u;
override STRIDE = WORDS + 1u;  // from one key of the tile to the next, so that 8 keys lie in different banks

const KEYS = {{ 8 * KEYS_PER_THREAD }}u;

var<workgroup> queries: array<vec4<f32>, TILE_ROWS * WORDS>;
var<workgroup> tile: array<TileWord, KEYS * STRIDE>;
var<workgroup> weights: array<f32, TILE_ROWS * KEYS>;
var<workgroup> shared_values: array<f32, WG>;  // one value of each thread, for reductions over a row

fn phase(item: u32, row: u32, thread: Thread) {
    let head = item;
    let t = thread.index;
    let last_row = min(row + TILE_ROWS, current.rows) - 1u;
    for (var i = t; i < TILE_ROWS * WORDS; i += WG) {
        let of_row = min(row + i / WORDS, last_row);
        queries[i] = SCALE * vec4<f32>(q[(of_row * HEADS + head) * WORDS + i % WORDS]);
    }
    let mine = t / 8u;
    let lane = t % 8u;
    let own_row = min(row + mine, last_row);
    let keys_of_row = attended_slots(current.row[own_row].slot);
    let tile_start = attended_slots(current.row[row].slot).x;
    let tile_end = attended_slots(current.row[last_row].slot).y;
    let slots = first_slot(current.row[row].sequence, head / (HEADS / KV_HEADS));

    // The template unrolls these loops: naga adds a bound to every loop, and arrays that are indexed
    // by a variable are not kept in registers.
    var running_max = initial_max(head);
    var weight_sum = select(0.0, INITIAL_SUM, lane == 0u);  // over the keys of this thread
{% for w in range(OWN_WORDS) %}
    var acc{{ w }} = vec4<f32>(0.0);
    let word{{ w }} = min(lane + {{ 8 * w }}u, WORDS - 1u);
{% endfor %}
    for (var first = tile_start; first < tile_end; first += KEYS) {
        let keys = min(KEYS, tile_end - first);
        workgroupBarrier();  // until all threads have read the values of the previous tile
        for (var i = t; i < keys * WORDS; i += WG) {
            tile[(i / WORDS) * STRIDE + i % WORDS] = k_tile((slots + first) * WORDS + i);
        }
        workgroupBarrier();
{% for u in range(KEYS_PER_THREAD) %}
        var sum{{ u }} = vec4<f32>(0.0);
{% endfor %}
        for (var i = 0u; i < WORDS; i++) {
            let query = queries[mine * WORDS + i];
{% for u in range(KEYS_PER_THREAD) %}
            sum{{ u }} += query * tile_unpack(tile[(lane + {{ 8 * u }}u) * STRIDE + i]);
{% endfor %}
        }
        var new_max = running_max;
{% for u in range(KEYS_PER_THREAD) %}
        let slot{{ u }} = first + lane + {{ 8 * u }}u;
        let visible{{ u }} = slot{{ u }} >= keys_of_row.x && slot{{ u }} < keys_of_row.y;
        let s{{ u }} = select(LOWEST, softcapped(dot(sum{{ u }}, vec4<f32>(1.0))), visible{{ u }});
        new_max = max(new_max, s{{ u }});
{% endfor %}
        shared_values[t] = new_max;
        workgroupBarrier();
{% for l in range(8) %}
        new_max = max(new_max, shared_values[mine * 8u + {{ l }}u]);
{% endfor %}
        let rescale = exp(running_max - new_max);
        running_max = new_max;
        weight_sum *= rescale;
{% for u in range(KEYS_PER_THREAD) %}
        let p{{ u }} = select(0.0, exp(s{{ u }} - new_max), visible{{ u }});
        weights[mine * KEYS + lane + {{ 8 * u }}u] = p{{ u }};
        weight_sum += p{{ u }};
{% endfor %}
        for (var i = t; i < keys * WORDS; i += WG) {
            tile[(i / WORDS) * STRIDE + i % WORDS] = v_tile((slots + first) * WORDS + i);
        }
{% for w in range(OWN_WORDS) %}
        acc{{ w }} *= rescale;
{% endfor %}
        workgroupBarrier();
        for (var j = 0u; j < keys; j++) {
            let p = weights[mine * KEYS + j];
{% for w in range(OWN_WORDS) %}
            acc{{ w }} += p * tile_unpack(tile[j * STRIDE + word{{ w }}]);
{% endfor %}
        }
    }
    workgroupBarrier();
    shared_values[t] = weight_sum;
    workgroupBarrier();
    var total = 0.0;
{% for l in range(8) %}
    total += shared_values[mine * 8u + {{ l }}u];
{% endfor %}
    if (row + mine < current.rows) {
{% for w in range(OWN_WORDS) %}
        if (lane + {{ 8 * w }}u < WORDS) {
            out[(own_row * HEADS + head) * WORDS + lane + {{ 8 * w }}u] = value4(acc{{ w }} / total);
        }
{% endfor %}
    }
}
