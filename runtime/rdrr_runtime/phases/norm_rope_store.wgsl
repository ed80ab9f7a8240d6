// Normalise and rotate queries and keys, and store keys and values in the cache:
// q[r, h, :] = rope(norm(q[r, h, :])), k_cache[sequence, h, slot, :] = rope(norm(k[r, h, :])) and
// v_cache[sequence, h, slot, :] = v[r, h, :], with the sequence and slot of row r.
//
// current           Step
// table, gains      snippets/head_transform.wgsl
// q                 {{ VALUE }} [rows, HEADS, HEAD_DIM]
// k, v              {{ VALUE }} [rows, KV_HEADS, HEAD_DIM]
// k_cache, v_cache  {{ KV }} [sequences, KV_HEADS, CONTEXT, HEAD_DIM]
//
// An item is one head of a row: a query, a key or a value head. Elements from 2 PAIRS on are not
// rotated. Keys and values of a row whose slot is beyond the context are dropped. Computes in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
{% include "snippets/kv.wgsl" %}
{% include "snippets/head_transform.wgsl" %}
var<storage, read> current: Step;
var<storage, read_write> q: array<{{ VALUE }}>;
var<storage, read> k: array<{{ VALUE }}>;
var<storage, read> v: array<{{ VALUE }}>;
var<storage, read_write> k_cache: array<KvWord>;
var<storage, read_write> v_cache: array<KvWord>;

override HEADS: u32;

var<workgroup> vector: array<f32, HEAD_DIM>;
{% if NORM %}

{% include "snippets/reduce_sum.wgsl" %}
{% endif %}

fn phase(item: u32, row: u32, thread: Thread) {
    let t = thread.index;
    let is_query = item < HEADS;
    let is_value = item >= HEADS + KV_HEADS;
    let head = item - select(select(HEADS, HEADS + KV_HEADS, is_value), 0u, is_query);
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
            vector[i] *= factor * (OFFSET + gains[select(HEAD_DIM, 0u, is_query) + i]);
        }
    }
{% endif %}
{% if ROPE %}
    workgroupBarrier();
    if (!is_value) {
        for (var i = t; i < PAIRS; i += WG) {
            let angle = table[current.row[row].position * PAIRS + i];
            let a = first_of_pair(i);
            let b = partner(a);
            let result = rotated(vector[a], vector[b], angle);
            vector[a] = result.x;
            vector[b] = result.y;
        }
    }
{% endif %}
    workgroupBarrier();
    if (is_query) {
        let factor = query_factor(current.row[row].position);
        for (var i = t; i < HEAD_DIM; i += WG) {
            q[first + i] = value(factor * vector[i]);
        }
        return;
    }
    let slot = current.row[row].slot;
    if (slot >= CONTEXT) {
        return;
    }
    let target_word = (first_slot(current.row[row].sequence, head) + slot) * (HEAD_DIM / 4u);
    for (var i = t; i < HEAD_DIM / 4u; i += WG) {
        let word = kv_pack(vec4<f32>(
            vector[4u * i], vector[4u * i + 1u], vector[4u * i + 2u], vector[4u * i + 3u]
        ));
        if (is_value) {
            v_cache[target_word + i] = word;
        } else {
            k_cache[target_word + i] = word;
        }
    }
}
