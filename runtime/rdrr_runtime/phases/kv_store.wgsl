// k_cache[h, base + r, :] = k[r, h, :], and the same for v; stored as {{ KV }}.
{% if MAPPED %}
// Row r goes to (sequence, slot) slot_mapping[r] instead.
{% endif %}
//
// current           Step
// k, v              {{ VALUE }} [rows, KV_HEADS, HEAD_DIM]
// k_cache, v_cache  {{ KV }} [KV_HEADS, CONTEXT, HEAD_DIM]
//
// A thread stores 4 elements of each. A row beyond the context is dropped.
{% include "snippets/step.wgsl" %}
{% include "snippets/kv_" ~ KV ~ ".wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> k: array<vec4<{{ VALUE }}>>;
@group(0) @binding(2) var<storage, read> v: array<vec4<{{ VALUE }}>>;
@group(0) @binding(3) var<storage, read_write> k_cache: array<KvWord>;
@group(0) @binding(4) var<storage, read_write> v_cache: array<KvWord>;
{% if MAPPED %}
@group(0) @binding(5) var<storage, read> slot_mapping: array<vec2<u32>>;  // [rows]
{% endif %}

override KV_HEADS: u32;
override HEAD_DIM: u32;
override CONTEXT: u32;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.y;
    let words = HEAD_DIM / 4u;
{% if MAPPED %}
    let slot = slot_mapping[row].y;
    let first_head = slot_mapping[row].x * KV_HEADS;
{% else %}
    let slot = current.base + row;
    let first_head = 0u;
{% endif %}
    if (row >= current.rows || slot >= CONTEXT || id.x >= KV_HEADS * words) {
        return;
    }
    let source = row * KV_HEADS * words + id.x;
    let target_word = ((first_head + id.x / words) * CONTEXT + slot) * words + id.x % words;
    k_cache[target_word] = kv_pack(vec4<f32>(k[source]));
    v_cache[target_word] = kv_pack(vec4<f32>(v[source]));
}
