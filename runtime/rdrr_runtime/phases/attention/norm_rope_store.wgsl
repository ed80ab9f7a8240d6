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
// An item is HELD heads of a row, in the order of queries, keys and values; a team of T threads computes each.
// Elements from 2 PAIRS on are not rotated. Keys and values of a row whose slot is beyond the context are
// dropped. Computes in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
{% include "cache/snippets/kv.wgsl" %}
{% include "attention/snippets/head_transform.wgsl" %}
var<storage, read> current: Step;
var<storage, read_write> q: array<{{ VALUE }}>;
var<storage, read> k: array<{{ VALUE }}>;
var<storage, read> v: array<{{ VALUE }}>;
var<storage, read_write> k_cache: array<KvWord>;
var<storage, read_write> v_cache: array<KvWord>;

override HEADS: u32;

const T = {{ TEAM }}u;
override HELD = WG / T;
override ALL_HEADS = HEADS + 2u * KV_HEADS;

var<workgroup> vectors: array<f32, HELD * HEAD_DIM>;
{% if NORM %}

alias Sums = f32;
var<workgroup> partial: array<Sums, WG>;
{% include "snippets/team_sum.wgsl" %}
{% endif %}

fn phase(item: u32, row: u32, thread: Thread, subgroup_size: u32) {
    var team = thread.index / T;
    var t = thread.index % T;
{% if SUBGROUPS %}
    if (subgroup_size >= T) {
        team = (thread.subgroup * subgroup_size + thread.lane) / T;
        t = thread.lane % T;
    }
{% endif %}
    let number = min(item * HELD + team, ALL_HEADS - 1u);
    let is_query = number < HEADS;
    let is_value = number >= HEADS + KV_HEADS;
    let head = number - select(select(HEADS, HEADS + KV_HEADS, is_value), 0u, is_query);
    let first = (row * select(KV_HEADS, HEADS, is_query) + head) * HEAD_DIM;
    let vector = team * HEAD_DIM;
    var squares = 0.0;
    for (var i = t; i < HEAD_DIM; i += T) {
        var x = 0.0;
        if (is_query) {
            x = f32(q[first + i]);
        } else if (is_value) {
            x = f32(v[first + i]);
        } else {
            x = f32(k[first + i]);
        }
        vectors[vector + i] = x;
        squares += x * x;
    }
{% if NORM %}
    let total = team_sum(squares, thread, subgroup_size, team);
    let factor = inverseSqrt(total / f32(HEAD_DIM) + EPS);
    if (!is_value) {
        for (var i = t; i < HEAD_DIM; i += T) {
            vectors[vector + i] *= factor * (OFFSET + gains[select(HEAD_DIM, 0u, is_query) + i]);
        }
    }
{% endif %}
{% if ROPE %}
    workgroupBarrier();
    if (!is_value) {
        for (var i = t; i < PAIRS; i += T) {
            let angle = table[current.row[row].position * PAIRS + i];
            let a = vector + first_of_pair(i);
            let b = partner(a);
            let result = rotated(vectors[a], vectors[b], angle);
            vectors[a] = result.x;
            vectors[b] = result.y;
        }
    }
{% endif %}
    workgroupBarrier();
    if (item * HELD + team >= ALL_HEADS) {
        return;
    }
    if (is_query) {
        let factor = query_factor(current.row[row].position);
        for (var i = t; i < HEAD_DIM; i += T) {
            q[first + i] = value(factor * vectors[vector + i]);
        }
        return;
    }
    let slot = current.row[row].slot;
    if (slot >= CONTEXT) {
        return;
    }
    let target_word = (first_slot(current.row[row].sequence, head) + slot) * (HEAD_DIM / 4u);
    for (var i = t; i < HEAD_DIM / 4u; i += T) {
        let from_word = vector + 4u * i;
        let word = kv_pack(vec4<f32>(
            vectors[from_word], vectors[from_word + 1u], vectors[from_word + 2u], vectors[from_word + 3u]
        ));
        if (is_value) {
            v_cache[target_word + i] = word;
        } else {
            k_cache[target_word + i] = word;
        }
    }
}
