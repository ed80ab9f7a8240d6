// out[r, h, :] = sum_j softmax_j(cap(SCALE q[r, h, :] . K[g, j, :])) V[g, j, :], g = h / GROUP,
// over the slots j of last - WINDOW < j <= last, last = base + r (WINDOW 0: all of them).
// cap(s) = SOFTCAP tanh(s / SOFTCAP), or s where SOFTCAP is 0.
//
// current           Step
// q                 f32 [rows, HEADS, HEAD_DIM]
// k_cache, v_cache  {{ KV }} [HEADS / GROUP, CONTEXT, HEAD_DIM]
// out               f32 [rows, HEADS, HEAD_DIM]
//
// One workgroup takes TILE_ROWS rows of a head, 8 threads a row, and reads KEYS keys, then their
// values, into workgroup memory once for all of them. Online softmax in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/kv_" ~ KV ~ ".wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> k_cache: array<KvWord>;
@group(0) @binding(3) var<storage, read> v_cache: array<KvWord>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;

override TILE_ROWS: u32;
override KEYS: u32;  // a multiple of 8
override HEADS: u32;
override GROUP: u32;
override HEAD_DIM: u32;
override CONTEXT: u32;
override SCALE: f32;
override WINDOW: u32 = 0u;
override SOFTCAP: f32 = 0.0;

override WG = TILE_ROWS * 8u;
override WORDS = HEAD_DIM / 4u;
override OWN_WORDS = (WORDS + 7u) / 8u;  // words of the output that a thread owns

const LOWEST = -3.0e38;  // finite, so that no difference of scores is NaN

var<workgroup> queries: array<vec4<f32>, TILE_ROWS * WORDS>;
var<workgroup> tile: array<KvWord, KEYS * WORDS>;
var<workgroup> scores: array<f32, TILE_ROWS * KEYS>;

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
        queries[i] = SCALE * q[(row * HEADS + head) * WORDS + i % WORDS];
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

    var largest = LOWEST;
    var mass = 0.0;
    var acc: array<vec4<f32>, 8>;
    for (var first = tile_start; first < tile_end; first += KEYS) {
        let keys = min(KEYS, tile_end - first);
        workgroupBarrier();  // the values of the tile before have been read
        for (var i = t; i < keys * WORDS; i += WG) {
            tile[i] = k_cache[(slab + first) * WORDS + i];
        }
        workgroupBarrier();
        for (var j = lane; j < KEYS; j += 8u) {
            let slot = first + j;
            var s = LOWEST;
            if (slot >= start && slot < end) {
                s = score(mine, j);
            }
            scores[mine * KEYS + j] = s;
        }
        workgroupBarrier();
        for (var i = t; i < keys * WORDS; i += WG) {
            tile[i] = v_cache[(slab + first) * WORDS + i];
        }
        var most = largest;
        for (var j = 0u; j < keys; j++) {
            most = max(most, scores[mine * KEYS + j]);
        }
        let fade = exp(largest - most);
        largest = most;
        mass *= fade;
        for (var w = 0u; w < OWN_WORDS; w++) {
            acc[w] *= fade;
        }
        workgroupBarrier();
        for (var j = 0u; j < keys; j++) {
            let slot = first + j;
            if (slot < start || slot >= end) {
                continue;
            }
            let p = exp(scores[mine * KEYS + j] - most);
            mass += p;
            for (var w = 0u; w < OWN_WORDS; w++) {
                let word = min(lane + 8u * w, WORDS - 1u);
                acc[w] += p * kv_unpack(tile[j * WORDS + word]);
            }
        }
    }
    if (row0 + mine < rows) {
        for (var w = 0u; w < OWN_WORDS; w++) {
            let word = lane + 8u * w;
            if (word < WORDS) {
                out[(row * HEADS + head) * WORDS + word] = acc[w] / mass;
            }
        }
    }
}

fn score(row: u32, key: u32) -> f32 {
    var sum = vec4<f32>(0.0);
    for (var i = 0u; i < WORDS; i++) {
        sum += queries[row * WORDS + i] * kv_unpack(tile[key * WORDS + i]);
    }
    let s = dot(sum, vec4<f32>(1.0));
    return select(s, SOFTCAP * tanh(clamp(s / SOFTCAP, -15.0, 15.0)), SOFTCAP > 0.0);
}
