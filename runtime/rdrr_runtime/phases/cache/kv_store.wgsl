// k_cache[sequence, h, slot, :] = k[r, h, :] and likewise for v, with the sequence and slot of row r.
//
// current           Step
// k, v              {{ VALUE }} [rows, KV_HEADS, HEAD_DIM]
// k_cache, v_cache  {{ KV }} [sequences, KV_HEADS, CONTEXT, HEAD_DIM]
//
// An item is 4 WG elements of a row of k and of v, 4 of each for each thread. A row whose slot is beyond
// the context is dropped.
{% include "snippets/step.wgsl" %}
{% include "cache/snippets/kv.wgsl" %}
var<storage, read> current: Step;
var<storage, read> k: array<vec4<{{ VALUE }}>>;
var<storage, read> v: array<vec4<{{ VALUE }}>>;
var<storage, read_write> k_cache: array<KvWord>;
var<storage, read_write> v_cache: array<KvWord>;

fn phase(item: u32, row: u32, thread: Thread) {
    let words = HEAD_DIM / 4u;
    let index = item * WG + thread.index;
    let slot = current.row[row].slot;
    if (slot >= CONTEXT || index >= KV_HEADS * words) {
        return;
    }
    let source = row * KV_HEADS * words + index;
    let first = first_slot(current.row[row].sequence, index / words);
    let target_word = (first + slot) * words + index % words;
    k_cache[target_word] = kv_pack(vec4<f32>(k[source]));
    v_cache[target_word] = kv_pack(vec4<f32>(v[source]));
}
