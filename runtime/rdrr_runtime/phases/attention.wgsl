// out[r, h, :] = sum_j softmax_j(cap(SCALE q[r, h, :] . K[g, j, :])) V[g, j, :], g = h / GROUP,
// over the slots j of last - WINDOW < j <= last, last = base + r (WINDOW 0: all of them).
{% if MAPPED %}
// Row r is at (sequence, slot) slot_mapping[r] instead, and sees the slots of its sequence.
{% endif %}
// cap(s) = SOFTCAP tanh(s / SOFTCAP), or s where SOFTCAP is 0.
//
// current           Step
// q                 {{ VALUE }} [rows, HEADS, HEAD_DIM]
// k_cache, v_cache  {{ KV }} [HEADS / GROUP, CONTEXT, HEAD_DIM]
{% if SPLIT %}
// sums              f32 [rows, HEADS, SPLITS, HEAD_DIM], not yet divided
// stats             f32 [rows, HEADS, SPLITS, 2]: largest score, sum of exponentials
{% else %}
// out               {{ VALUE }} [rows, HEADS, HEAD_DIM]
{% endif %}
//
// One workgroup a row, head and split of the keys. WG keys at a time: each thread scores one key,
// then the threads share the sum over values. Online softmax (Milakov and Gimelshein 2018, arXiv
// 1805.02867), in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
{% include "snippets/thread.wgsl" %}
{% include "snippets/kv_" ~ KV ~ ".wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> q: array<vec4<{{ VALUE }}>>;
@group(0) @binding(2) var<storage, read> k_cache: array<KvWord>;
@group(0) @binding(3) var<storage, read> v_cache: array<KvWord>;
{% if SPLIT %}
@group(0) @binding(4) var<storage, read_write> sums: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> stats: array<vec2<f32>>;
{% else %}
@group(0) @binding(4) var<storage, read_write> out: array<vec4<{{ VALUE }}>>;
{% endif %}

{% if MAPPED %}
@group(0) @binding({{ 6 if SPLIT else 5 }}) var<storage, read> slot_mapping: array<vec2<u32>>;  // [rows]
{% endif %}

override WG: u32;
override HEADS: u32;
override GROUP: u32;
override HEAD_DIM: u32;
override CONTEXT: u32;
override SCALE: f32;
override WINDOW: u32 = 0u;
override SOFTCAP: f32 = 0.0;
override SPLITS: u32 = 1u;

override WORDS = HEAD_DIM / 4u;
override LANES = WG / WORDS;  // threads that share one word of the output

const LOWEST = -3.0e38;  // finite, so that no difference of scores is NaN

var<workgroup> query: array<vec4<f32>, WORDS>;
var<workgroup> weights: array<f32, WG>;
var<workgroup> partial: array<vec4<f32>, WG>;

{% include "snippets/reduce_sum.wgsl" %}
{% include "snippets/reduce_max.wgsl" %}

fn score(first: u32) -> f32 {
    var sum = vec4<f32>(0.0);
    var i = 0u;
    for (; i + 4u <= WORDS; i += 4u) {  // four loads in flight
{% for u in range(4) %}
        let k{{ u }} = k_at(first + i + {{ u }}u);
{% endfor %}
{% for u in range(4) %}
        sum += query[i + {{ u }}u] * k{{ u }};
{% endfor %}
    }
    for (; i < WORDS; i++) {
        sum += query[i] * k_at(first + i);
    }
    var s = SCALE * dot(sum, vec4<f32>(1.0));
    if (SOFTCAP > 0.0) {
        s = SOFTCAP * tanh(clamp(s / SOFTCAP, -15.0, 15.0));
    }
    return s;
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, thread: Thread) {
    let head = wid.x;
    let row = wid.y;
    if (row >= current.rows) {
        return;
    }
    let t = thread.index;
    let at = row * HEADS + head;
    for (var i = t; i < WORDS; i += WG) {
        query[i] = vec4<f32>(q[at * WORDS + i]);
    }
    workgroupBarrier();

{% if MAPPED %}
    let end = min(slot_mapping[row].y + 1u, CONTEXT);
    let first_head = slot_mapping[row].x * (HEADS / GROUP);
{% else %}
    let end = min(current.base + row + 1u, CONTEXT);
    let first_head = 0u;
{% endif %}
    let start = select(0u, end - min(end, WINDOW), WINDOW > 0u);
    let span = (end - start + SPLITS - 1u) / SPLITS;
    let low = min(start + wid.z * span, end);
    let high = min(low + span, end);
    let slab = (first_head + head / GROUP) * CONTEXT;

    var largest = LOWEST;
    var mass = 0.0;
    var acc = vec4<f32>(0.0);
    for (var first = low; first < high; first += WG) {
        let live = first + t < high;
        var s = LOWEST;
        if (live) {
            s = score((slab + first + t) * WORDS);
        }
        let most = max(largest, reduce_max(s, thread));
        let fade = exp(largest - most);
        let p = select(0.0, exp(s - most), live);
        weights[t] = p;
        mass = mass * fade + p;
        acc *= fade;
        largest = most;
        workgroupBarrier();
        if (t < LANES * WORDS) {
            let keys = min(WG, high - first);
            for (var j = t / WORDS; j < keys; j += 4u * LANES) {  // four loads in flight
{% for u in range(4) %}
                let j{{ u }} = min(j + {{ u }}u * LANES, keys - 1u);
                let v{{ u }} = v_at((slab + first + j{{ u }}) * WORDS + t % WORDS);
{% endfor %}
                acc += weights[j] * v0;
{% for u in range(1, 4) %}
                acc += select(0.0, weights[j{{ u }}], j + {{ u }}u * LANES < keys) * v{{ u }};
{% endfor %}
            }
        }
        workgroupBarrier();
    }
    partial[t] = acc;
    let total = reduce_sum(vec4<f32>(mass, 0.0, 0.0, 0.0), thread).x;
    workgroupBarrier();
    for (var i = t; i < WORDS; i += WG) {
        var sum = vec4<f32>(0.0);
        for (var lane = 0u; lane < LANES; lane++) {
            sum += partial[lane * WORDS + i];
        }
{% if SPLIT %}
        sums[(at * SPLITS + wid.z) * WORDS + i] = sum;
{% else %}
        out[at * WORDS + i] = value4(sum / total);
{% endif %}
    }
{% if SPLIT %}
    if (t == 0u) {
        stats[at * SPLITS + wid.z] = vec2<f32>(largest, total);
    }
{% endif %}
}
