// k_cache[h, slot, :] = k[r, h, :] and likewise for v, with the slot of row r, quantized to {{ KV }}.
//
// current           Step
// k, v              {{ VALUE }} [rows, KV_HEADS, HEAD_DIM]
// k_cache, v_cache  {{ KV }} [KV_HEADS, CONTEXT, HEAD_DIM]; CONTEXT is even, so that no two heads share a word
//
// An item is WG blocks of 32 elements of a row of k and of v, one of each for each thread. Two blocks
// share a word of scales. The first of them that this pass stores writes the word, and keeps the half
// of it that belongs to a slot of another pass. The rows are in consecutive slots of one sequence. A row
// whose slot is beyond the context is dropped.
{% include "snippets/step.wgsl" %}
{% include "cache/snippets/kv.wgsl" %}
var<storage, read> current: Step;
var<storage, read> k: array<vec4<{{ VALUE }}>>;
var<storage, read> v: array<vec4<{{ VALUE }}>>;
var<storage, read_write> k_cache: array<KvWord>;
var<storage, read_write> v_cache: array<KvWord>;

{% for NAME in ("k", "v") %}
{% set VECTOR = "vec4<f32>(" ~ NAME ~ "[i + j])" %}
{% include "cache/snippets/block_scale.wgsl" %}

{% endfor %}
fn phase(item: u32, row: u32, thread: Thread) {
    let blocks = HEAD_DIM / 32u;
    let index = item * WG + thread.index;
    let slot = current.row[row].slot;
    if (slot >= CONTEXT || index >= KV_HEADS * blocks) {
        return;
    }
    let within = index % blocks;
    let source = (row * KV_HEADS * blocks + index) * 8u;
    let block = (first_slot(0u, index / blocks) + slot) * blocks + within;
    let is_second = block % 2u == 1u;
    // Offset of the next block in k and v, and whether this pass stores it.
    let step = select(1u, 1u + (KV_HEADS - 1u) * blocks, within + 1u == blocks) * 8u;
    let last = row + 1u >= current.rows || slot + 1u >= CONTEXT;
    let next_is_stored = within + 1u < blocks || !last;
    let is_owner = !is_second || (within == 0u && row == 0u);
    let at = SCALES_AT + block / 2u;
{% for cache in ("k", "v") %}
    let {{ cache }}_bits = {{ cache }}_scale(source);
    for (var j = 0u; j < 8u; j++) {
        {{ cache }}_cache[block * 8u + j] = codes(vec4<f32>({{ cache }}[source + j]), {{ cache }}_bits);
    }
    if (is_owner) {
        let before = {{ cache }}_cache[at];
        var word = (before & 0xffffu) | ({{ cache }}_bits << 16u);
        if (!is_second) {
            word = (before & 0xffff0000u) | {{ cache }}_bits;
            if (next_is_stored) {
                word = ({{ cache }}_scale(source + step) << 16u) | {{ cache }}_bits;
            }
        }
        {{ cache }}_cache[at] = word;
    }
{% endfor %}
}
