// Queries, keys and values of a pass, from their projections to where attention finds them:
// q[r, h, :] = rope(norm(q[r, h, :])), k_cache[h, slot, :] = rope(norm(k[r, h, :])), and
// v_cache[h, slot, :] = v[r, h, :], with slot = base + r; caches of {{ KV }}.
{% if MAPPED %}
// Row r goes to (sequence, slot) slot_mapping[r] instead.
{% endif %}
//
// current           Step
// positions         u32 [rows]
// table             f32 [context, PAIRS, 2]: cos, sin{% if not ROPE %}; not read{% endif %}

// q                 {{ VALUE }} [rows, HEADS, HEAD_DIM]
// k, v              {{ VALUE }} [rows, KV_HEADS, HEAD_DIM]
// k_cache, v_cache  {{ KV }} [{{ "sequences, " if MAPPED }}KV_HEADS, CONTEXT, HEAD_DIM]
// q_gain, k_gain    f32 [HEAD_DIM], only with NORM: norm(x) = x / sqrt(mean(x^2) + EPS) * (OFFSET + gain)
//
// A workgroup takes one vector of a row: a query, a key or a value. Elements from 2 PAIRS on are not
// rotated. A row beyond the context is dropped. f32 throughout.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
{% include "snippets/thread.wgsl" %}
{% include "snippets/kv_" ~ KV ~ ".wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> positions: array<u32>;
@group(0) @binding(2) var<storage, read> table: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read_write> q: array<{{ VALUE }}>;
@group(0) @binding(4) var<storage, read> k: array<{{ VALUE }}>;
@group(0) @binding(5) var<storage, read> v: array<{{ VALUE }}>;
@group(0) @binding(6) var<storage, read_write> k_cache: array<KvWord>;
@group(0) @binding(7) var<storage, read_write> v_cache: array<KvWord>;
{% if NORM %}
@group(0) @binding(8) var<storage, read> q_gain: array<f32>;
@group(0) @binding(9) var<storage, read> k_gain: array<f32>;
{% endif %}
{% if MAPPED %}
@group(0) @binding({{ 10 if NORM else 8 }}) var<storage, read> slot_mapping: array<vec2<u32>>;  // [rows]
{% endif %}

override WG: u32;
override HEADS: u32;
override KV_HEADS: u32;
override HEAD_DIM: u32;
override PAIRS: u32;
override CONTEXT: u32;
override EPS: f32 = 0.0;
override OFFSET: f32 = 0.0;

var<workgroup> vector: array<f32, HEAD_DIM>;
{% if NORM %}

{% include "snippets/reduce_sum.wgsl" %}
{% endif %}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, thread: Thread) {
    let row = wid.y;
    if (row >= current.rows) {
        return;
    }
    let t = thread.index;
    let is_query = wid.x < HEADS;
    let is_value = wid.x >= HEADS + KV_HEADS;
    let head = wid.x - select(select(HEADS, HEADS + KV_HEADS, is_value), 0u, is_query);
    let first = (row * select(KV_HEADS, HEADS, is_query) + head) * HEAD_DIM;
    var squares = 0.0;
    for (var i = t; i < HEAD_DIM; i += WG) {
        var x = 0.0;
        if (is_query) {
            x = f32(q[first + i]);
        } else if (is_value) {
            x = f32(v[first + i]);
        } else {
            x = f32(k[first + i]);
        }
        vector[i] = x;
        squares += x * x;
    }
{% if NORM %}
    let total = reduce_sum(vec4<f32>(squares, 0.0, 0.0, 0.0), thread).x;
    let factor = inverseSqrt(total / f32(HEAD_DIM) + EPS);
    if (!is_value) {
        for (var i = t; i < HEAD_DIM; i += WG) {
            vector[i] *= factor * (OFFSET + select(k_gain[i], q_gain[i], is_query));
        }
    }
{% endif %}
{% if ROPE %}
    workgroupBarrier();
    if (!is_value) {
        for (var i = t; i < PAIRS; i += WG) {
            let angle = table[positions[row] * PAIRS + i];
            let a = vector[i];
            let b = vector[i + PAIRS];
            vector[i] = a * angle.x - b * angle.y;
            vector[i + PAIRS] = b * angle.x + a * angle.y;
        }
    }
{% endif %}
    workgroupBarrier();
    if (is_query) {
        for (var i = t; i < HEAD_DIM; i += WG) {
            q[first + i] = value(vector[i]);
        }
        return;
    }
{% if MAPPED %}
    let slot = slot_mapping[row].y;
    let slab = slot_mapping[row].x * KV_HEADS + head;
{% else %}
    let slot = current.base + row;
    let slab = head;
{% endif %}
    if (slot >= CONTEXT) {
        return;
    }
    for (var i = t; i < HEAD_DIM / 4u; i += WG) {
        let at = (slab * CONTEXT + slot) * (HEAD_DIM / 4u) + i;
        let word = kv_pack(vec4<f32>(
            vector[4u * i], vector[4u * i + 1u], vector[4u * i + 2u], vector[4u * i + 3u]
        ));
        if (is_value) {
            v_cache[at] = word;
        } else {
            k_cache[at] = word;
        }
    }
}
