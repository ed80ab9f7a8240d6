// k_cache[sequence, slot, :] = norm(kv[r, :HEAD_DIM]) and v_cache[sequence, slot, :] = rope(kv[r, HEAD_DIM:]),
// with the sequence and slot of row r: the latent and the rotated key of multi-head latent attention.
//
// current  Step
// table    f32 [context, PAIRS, 2]: cos, sin
// gain     f32 [HEAD_DIM], weight of the norm
// kv       {{ VALUE }} [rows, HEAD_DIM + 2 PAIRS]
// k_cache  {{ KV }} [sequences, CONTEXT, HEAD_DIM]
// v_cache  {{ KV }} [sequences, CONTEXT, 2 PAIRS]
//
// One call for each row. A row whose slot is beyond the context is dropped.{% if KV == "q8_0" %} Each thread quantizes two
// blocks of 32 elements at a time, whose scales share a word.{% endif %} Computes in f32.
{% include "snippets/step.wgsl" %}
{% include "cache/snippets/kv.wgsl" %}
{% include "attention/snippets/rotated.wgsl" %}
var<storage, read> current: Step;
var<storage, read> table: array<vec2<f32>>;
var<storage, read> gain: array<f32>;
var<storage, read> kv: array<{{ VALUE }}>;
var<storage, read_write> k_cache: array<KvWord>;
var<storage, read_write> v_cache: array<KvWord>;

override PAIRS: u32;
override EPS: f32;

var<workgroup> vector: array<f32, HEAD_DIM>;
var<workgroup> key: array<f32, 2u * PAIRS>;

{% include "snippets/reduce_sum.wgsl" %}
{% for cache, name in (("k", "vector"), ("v", "key")) %}

fn {{ name }}_quad(i: u32) -> vec4<f32> {
    return vec4<f32>({{ name }}[4u * i], {{ name }}[4u * i + 1u], {{ name }}[4u * i + 2u], {{ name }}[4u * i + 3u]);
}
{% if KV == "q8_0" %}

{% set NAME, VECTOR = name, name ~ "_quad(i + j)" %}
{% include "cache/snippets/block_scale.wgsl" %}
{% endif %}

// Store `quads` vectors of 4 elements at a slot.
fn store_{{ name }}(slot: u32, quads: u32, thread: Thread) {
    let target_word = slot * quads;
{% if KV == "q8_0" %}
    for (var i = 16u * thread.index; i < quads; i += 16u * WG) {
        let first = {{ name }}_scale(i);
        let second = {{ name }}_scale(i + 8u);
        for (var j = 0u; j < 8u; j++) {
            {{ cache }}_cache[target_word + i + j] = codes({{ name }}_quad(i + j), first);
            {{ cache }}_cache[target_word + i + 8u + j] = codes({{ name }}_quad(i + 8u + j), second);
        }
        {{ cache }}_cache[{{ "SECOND_" if cache == "v" }}SCALES_AT + (target_word + i) / 16u] = first | (second << 16u);
    }
{% else %}
    for (var i = thread.index; i < quads; i += WG) {
        {{ cache }}_cache[target_word + i] = kv_pack({{ name }}_quad(i));
    }
{% endif %}
}
{% endfor %}

fn phase(row: u32, thread: Thread) {
    let t = thread.index;
    let start = row * (HEAD_DIM + 2u * PAIRS);
    var squares = 0.0;
    for (var i = t; i < HEAD_DIM; i += WG) {
        let x = f32(kv[start + i]);
        vector[i] = x;
        squares += x * x;
    }
    for (var i = t; i < PAIRS; i += WG) {
        let a = first_of_pair(i);
        let b = partner(a);
        let angle = table[current.row[row].position * PAIRS + i];
        let result = rotated(f32(kv[start + HEAD_DIM + a]), f32(kv[start + HEAD_DIM + b]), angle);
        key[a] = result.x;
        key[b] = result.y;
    }
    let total = reduce_sum(vec4<f32>(squares, 0.0, 0.0, 0.0), thread).x;
    let factor = inverseSqrt(total / f32(HEAD_DIM) + EPS);
    for (var i = t; i < HEAD_DIM; i += WG) {
        vector[i] *= factor * gain[i];
    }
    workgroupBarrier();
    let slot = current.row[row].slot;
    if (slot < CONTEXT) {
        let at = first_slot(current.row[row].sequence, 0u) + slot;
        store_vector(at, HEAD_DIM / 4u, thread);
        store_key(at, PAIRS / 2u, thread);
    }
}
