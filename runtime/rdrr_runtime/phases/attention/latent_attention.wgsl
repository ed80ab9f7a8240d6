// out[r, h, :] = sum_j softmax_j(SCALE q[r, h, :] . [c_j, k_j]) c_j over the slots j that row r attends to, with the
// latent c_j and the rotated key k_j, which all heads share.
//
// current  Step
// q        {{ VALUE }} [rows, HEADS, HEAD_DIM + ROPE_DIM]
// k_cache  {{ KV }} [sequences, CONTEXT, HEAD_DIM]: latents
// v_cache  {{ KV }} [sequences, CONTEXT, ROPE_DIM]: rotated keys
// out      {{ VALUE }} [rows, HEADS, HEAD_DIM]
//
// An item is 4 heads of a row; vectors of 4 hold a number of each head. It processes WG keys at a time: each
// thread computes the scores of one key, then the threads together compute the weighted sums of the latents.
// Online softmax. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
{% include "cache/snippets/kv.wgsl" %}
{% include "attention/snippets/scores.wgsl" %}
var<storage, read> current: Step;
var<storage, read> q: array<vec4<{{ VALUE }}>>;
var<storage, read> k_cache: array<KvWord>;
var<storage, read> v_cache: array<KvWord>;
var<storage, read_write> out: array<vec4<{{ VALUE }}>>;

override ROPE_DIM: u32;

override WORDS = HEAD_DIM / 4u;
override ROPE_WORDS = ROPE_DIM / 4u;
override QUERY_WORDS = WORDS + ROPE_WORDS;

const ALL = vec4<f32>(1.0);

var<workgroup> queries: array<vec4<f32>, 4u * QUERY_WORDS>;
var<workgroup> weights: array<vec4<f32>, WG>;

{% set MAX_TYPE = "vec4<f32>" %}
{% include "snippets/reduce_sum.wgsl" %}
{% include "snippets/reduce_max.wgsl" %}

// Scores of the key at a slot for the 4 heads.
fn scores(slot: u32) -> vec4<f32> {
{% for h in range(4) %}
    var sum{{ h }} = vec4<f32>(0.0);
{% endfor %}
    for (var i = 0u; i < WORDS; i++) {
        let key = k_at(slot * WORDS + i);
{% for h in range(4) %}
        sum{{ h }} += queries[{{ h }}u * QUERY_WORDS + i] * key;
{% endfor %}
    }
    for (var i = 0u; i < ROPE_WORDS; i++) {
        let key = v_at(slot * ROPE_WORDS + i);
{% for h in range(4) %}
        sum{{ h }} += queries[{{ h }}u * QUERY_WORDS + WORDS + i] * key;
{% endfor %}
    }
    return SCALE * vec4<f32>(dot(sum0, ALL), dot(sum1, ALL), dot(sum2, ALL), dot(sum3, ALL));
}

fn phase(item: u32, row: u32, thread: Thread) {
    let head0 = 4u * item;
    let t = thread.index;
    for (var i = t; i < 4u * QUERY_WORDS; i += WG) {
        let head = min(head0 + i / QUERY_WORDS, HEADS - 1u);
        queries[i] = vec4<f32>(q[(row * HEADS + head) * QUERY_WORDS + i % QUERY_WORDS]);
    }
    workgroupBarrier();

    let keys_of_row = attended_slots(current.row[row]);
    let low = keys_of_row.x;
    let high = keys_of_row.y;
    let slots = first_slot(current.row[row].sequence, 0u);

    var running_max = vec4<f32>(LOWEST);
    var weight_sum = vec4<f32>(0.0);
    // The template unrolls these loops, so that the sums are kept in registers.
{% for w in range(OWN_WORDS) %}
    let word{{ w }} = min(t + {{ w }}u * WG, WORDS - 1u);
{% for h in range(4) %}
    var acc{{ w }}_{{ h }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
    for (var first = low; first < high; first += WG) {
        let valid = first + t < high;
        var s = vec4<f32>(LOWEST);
        if (valid) {
            s = scores(slots + first + t);
        }
        let new_max = max(running_max, reduce_max(s, thread));
        let rescale = exp(running_max - new_max);
        let p = select(vec4<f32>(0.0), exp(s - new_max), valid);
        weights[t] = p;
        weight_sum = weight_sum * rescale + p;
        running_max = new_max;
{% for w in range(OWN_WORDS) %}
{% for h in range(4) %}
        acc{{ w }}_{{ h }} *= rescale[{{ h }}];
{% endfor %}
{% endfor %}
        workgroupBarrier();
        let keys = min(WG, high - first);
        for (var j = 0u; j < keys; j += 4u) {  // four loads in flight; weights beyond the last key are 0
{% for u in range(4) %}
            let at{{ u }} = (slots + first + min(j + {{ u }}u, keys - 1u)) * WORDS;
            let p{{ u }} = weights[j + {{ u }}u];
{% endfor %}
{% for w in range(OWN_WORDS) %}
{% for u in range(4) %}
            let c{{ w }}_{{ u }} = k_at(at{{ u }} + word{{ w }});
{% endfor %}
{% for u in range(4) %}
{% for h in range(4) %}
            acc{{ w }}_{{ h }} += p{{ u }}[{{ h }}] * c{{ w }}_{{ u }};
{% endfor %}
{% endfor %}
{% endfor %}
        }
        workgroupBarrier();
    }
    let total = reduce_sum(weight_sum, thread);
{% for h in range(4) %}
    if (head0 + {{ h }}u < HEADS) {
        let at = row * HEADS + head0 + {{ h }}u;
{% for w in range(OWN_WORDS) %}
        if (t + {{ w }}u * WG < WORDS) {
            out[at * WORDS + word{{ w }}] = value4(acc{{ w }}_{{ h }} / total[{{ h }}]);
        }
{% endfor %}
    }
{% endfor %}
}
