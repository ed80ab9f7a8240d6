// out[r, h, :] = sum_j softmax_j(cap(SCALE q[r, h, :] . K[g, j, :])) V[g, j, :], g = h / GROUP,
// over the slots j of last - WINDOW < j <= last, last = base + r (WINDOW 0: all of them).
// cap(s) = SOFTCAP tanh(s / SOFTCAP), or s where SOFTCAP is 0.
//
// current           Step
// q                 {{ VALUE }} [rows, HEADS, HEAD_DIM]
// k_cache, v_cache  {{ KV }} [HEADS / GROUP, CONTEXT, HEAD_DIM]
// out               {{ VALUE }} [rows, HEADS, HEAD_DIM]
//
// One workgroup takes TILE_ROWS rows of a head, 8 threads a row, and reads {{ 8 * KEYS_PER_THREAD }} keys, then their
// values, into workgroup memory once for all of them. Online softmax in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
{% include "snippets/kv_" ~ KV ~ ".wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> q: array<vec4<{{ VALUE }}>>;
@group(0) @binding(2) var<storage, read> k_cache: array<KvWord>;
@group(0) @binding(3) var<storage, read> v_cache: array<KvWord>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<{{ VALUE }}>>;

override TILE_ROWS: u32;
override HEADS: u32;
override GROUP: u32;
override HEAD_DIM: u32;
override CONTEXT: u32;
override SCALE: f32;
override WINDOW: u32 = 0u;
override SOFTCAP: f32 = 0.0;

override WG = TILE_ROWS * 8u;
override WORDS = HEAD_DIM / 4u;
override STRIDE = WORDS + 1u;  // of a key in the tile, so that 8 keys lie in different banks

const KEYS = {{ 8 * KEYS_PER_THREAD }}u;
const LOWEST = -3.0e38;  // finite, so that no difference of scores is NaN

var<workgroup> queries: array<vec4<f32>, TILE_ROWS * WORDS>;
var<workgroup> tile: array<TileWord, KEYS * STRIDE>;
var<workgroup> weights: array<f32, TILE_ROWS * KEYS>;
var<workgroup> shared_values: array<f32, WG>;  // one of each thread

fn cap(s: f32) -> f32 {
    return select(s, SOFTCAP * tanh(clamp(s / SOFTCAP, -15.0, 15.0)), SOFTCAP > 0.0);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let head = wid.x;
    let row0 = wid.y * TILE_ROWS;
    let rows = current.rows;
    if (row0 >= rows) {
        return;
    }
    for (var i = t; i < TILE_ROWS * WORDS; i += WG) {
        let row = min(row0 + i / WORDS, rows - 1u);
        queries[i] = SCALE * vec4<f32>(q[(row * HEADS + head) * WORDS + i % WORDS]);
    }
    let mine = t / 8u;
    let lane = t % 8u;
    let row = min(row0 + mine, rows - 1u);
    let end = min(current.base + row + 1u, CONTEXT);
    let start = select(0u, end - min(end, WINDOW), WINDOW > 0u);
    let first_end = current.base + row0 + 1u;
    let tile_start = select(0u, first_end - min(first_end, WINDOW), WINDOW > 0u);
    let tile_end = min(current.base + min(row0 + TILE_ROWS, rows), CONTEXT);
    let slab = (head / GROUP) * CONTEXT;

    // Unrolled by the template: naga bounds every loop, and indices that are no constants keep
    // arrays out of registers.
    var largest = LOWEST;
    var mass = 0.0;  // over the keys of this thread
{% for w in range(OWN_WORDS) %}
    var acc{{ w }} = vec4<f32>(0.0);
    let word{{ w }} = min(lane + {{ 8 * w }}u, WORDS - 1u);
{% endfor %}
    for (var first = tile_start; first < tile_end; first += KEYS) {
        let keys = min(KEYS, tile_end - first);
        workgroupBarrier();  // the values of the tile before have been read
        for (var i = t; i < keys * WORDS; i += WG) {
            tile[(i / WORDS) * STRIDE + i % WORDS] = k_tile((slab + first) * WORDS + i);
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
        var most = largest;
{% for u in range(KEYS_PER_THREAD) %}
        let slot{{ u }} = first + lane + {{ 8 * u }}u;
        let live{{ u }} = slot{{ u }} >= start && slot{{ u }} < end;
        let s{{ u }} = select(LOWEST, cap(dot(sum{{ u }}, vec4<f32>(1.0))), live{{ u }});
        most = max(most, s{{ u }});
{% endfor %}
        shared_values[t] = most;
        workgroupBarrier();
{% for l in range(8) %}
        most = max(most, shared_values[mine * 8u + {{ l }}u]);
{% endfor %}
        let fade = exp(largest - most);
        largest = most;
        mass *= fade;
{% for u in range(KEYS_PER_THREAD) %}
        let p{{ u }} = select(0.0, exp(s{{ u }} - most), live{{ u }});
        weights[mine * KEYS + lane + {{ 8 * u }}u] = p{{ u }};
        mass += p{{ u }};
{% endfor %}
        for (var i = t; i < keys * WORDS; i += WG) {
            tile[(i / WORDS) * STRIDE + i % WORDS] = v_tile((slab + first) * WORDS + i);
        }
{% for w in range(OWN_WORDS) %}
        acc{{ w }} *= fade;
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
    shared_values[t] = mass;
    workgroupBarrier();
    var total = 0.0;
{% for l in range(8) %}
    total += shared_values[mine * 8u + {{ l }}u];
{% endfor %}
    if (row0 + mine < rows) {
{% for w in range(OWN_WORDS) %}
        if (lane + {{ 8 * w }}u < WORDS) {
            out[(row * HEADS + head) * WORDS + lane + {{ 8 * w }}u] = value4(acc{{ w }} / total);
        }
{% endfor %}
    }
}
