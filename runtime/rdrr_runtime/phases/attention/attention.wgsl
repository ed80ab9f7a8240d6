// out[r, h, :] = sum_j softmax_j(softcapped(SCALE q[r, h, :] . K[j, :])) V[j, :] over the slots j that
// row r attends to, with the keys K and values V of its sequence and of the key-value head of head h.
//
// current           Step
// q                 {{ VALUE }} [rows, HEADS, HEAD_DIM]
{% if SINKS %}
// sinks             f32 [HEADS]: logits that the softmax of a head includes, without a value
{% endif %}
// k_cache, v_cache  {{ KV }} [sequences, KV_HEADS, CONTEXT, HEAD_DIM]
{% if SPLIT %}
// sums              f32 [rows, HEADS, SPLITS, HEAD_DIM], not yet divided by the exp sum
// stats             f32 [rows, HEADS, SPLITS, 2]: maximum score, exp sum
{% else %}
// out               {{ VALUE }} [rows, HEADS, HEAD_DIM]
{% endif %}
//
// An item is one head and one split of the keys of a row. It processes WG keys at a time: each thread
// computes the score of one key, then the threads together compute the weighted sum of the values.
// Online softmax (Milakov and Gimelshein 2018, arXiv 1805.02867). Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
{% include "cache/snippets/kv.wgsl" %}
{% include "attention/snippets/scores.wgsl" %}
var<storage, read> current: Step;
var<storage, read> q: array<vec4<{{ VALUE }}>>;
var<storage, read> k_cache: array<KvWord>;
var<storage, read> v_cache: array<KvWord>;
{% if SPLIT %}
var<storage, read_write> sums: array<vec4<f32>>;
var<storage, read_write> stats: array<vec2<f32>>;
{% else %}
var<storage, read_write> out: array<vec4<{{ VALUE }}>>;
{% endif %}

override SPLITS: u32;

override WORDS = HEAD_DIM / 4u;
override LANES = WG / WORDS;  // threads that share one vector of 4 output elements

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
    return softcapped(SCALE * dot(sum, vec4<f32>(1.0)));
}

fn phase(item: u32, row: u32, thread: Thread) {
    let head = item % HEADS;
    let split = item / HEADS;
    let t = thread.index;
    let at = row * HEADS + head;
    for (var i = t; i < WORDS; i += WG) {
        query[i] = vec4<f32>(q[at * WORDS + i]);
    }
    workgroupBarrier();

    let keys_of_row = attended_slots(current.row[row]);
    let span = (keys_of_row.y - keys_of_row.x + SPLITS - 1u) / SPLITS;
    let low = min(keys_of_row.x + split * span, keys_of_row.y);
    let high = min(low + span, keys_of_row.y);
    let slots = first_slot(current.row[row].sequence, head / (HEADS / KV_HEADS));

    // Of all splits, the first contains the sink.
    var running_max = select(LOWEST, initial_max(head), split == 0u);
    var weight_sum = select(0.0, INITIAL_SUM, split == 0u && t == 0u);
    var acc = vec4<f32>(0.0);
    for (var first = low; first < high; first += WG) {
        let valid = first + t < high;
        var s = LOWEST;
        if (valid) {
            s = score((slots + first + t) * WORDS);
{% if BUCKETS or ALIBI %}
            s += bias_of(head, current.row[row].slot, first + t);
{% endif %}
        }
        let new_max = max(running_max, reduce_max(s, thread));
        let rescale = exp(running_max - new_max);
        let p = select(0.0, exp(s - new_max), valid);
        weights[t] = p;
        weight_sum = weight_sum * rescale + p;
        acc *= rescale;
        running_max = new_max;
        workgroupBarrier();
        if (t < LANES * WORDS) {
            let keys = min(WG, high - first);
            for (var j = t / WORDS; j < keys; j += 4u * LANES) {  // four loads in flight
{% for u in range(4) %}
                let j{{ u }} = min(j + {{ u }}u * LANES, keys - 1u);
                let v{{ u }} = v_at((slots + first + j{{ u }}) * WORDS + t % WORDS);
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
    let total = reduce_sum(vec4<f32>(weight_sum, 0.0, 0.0, 0.0), thread).x;
    workgroupBarrier();
    for (var i = t; i < WORDS; i += WG) {
        var sum = vec4<f32>(0.0);
        for (var lane = 0u; lane < LANES; lane++) {
            sum += partial[lane * WORDS + i];
        }
{% if SPLIT %}
        sums[(at * SPLITS + split) * WORDS + i] = sum;
{% else %}
        out[at * WORDS + i] = value4(sum / total);
{% endif %}
    }
{% if SPLIT %}
    if (t == 0u) {
        stats[at * SPLITS + split] = vec2<f32>(running_max, total);
    }
{% endif %}
}
