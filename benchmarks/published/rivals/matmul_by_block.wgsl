// y[r, n] = sum_k x[r, k] W[n, k], one block of 256 weights per thread.
//
// current  Step
// x        f32 [rows, K]
// weight   [N, ROW_WORDS] words of Q4_K, row-major
// y        f32 [rows, N]
//
// A workgroup computes one output for {{ ROWS }} token rows. Its threads take whole blocks, so with K
// of 1152 five of them have work; each group of token rows reads all weights again.
{% include "snippets/step.wgsl" %}
{% include "snippets/thread.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> weight: array<Word>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

override WG: u32;
override K: u32;
override N: u32;
override BLOCKS: u32;      // of a stored row
override ROW_WORDS: u32;

{% include "snippets/q4_k_block.wgsl" %}
{% include "snippets/reduce_sum.wgsl" %}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    thread: Thread,
) {
    let n = wid.x + wid.y * groups.x;
    let r0 = wid.z * {{ ROWS }}u;
    if (n >= N || r0 >= current.rows) {
        return;
    }
    var acc = vec4<f32>(0.0);
    for (var block = thread.index; block < BLOCKS; block += WG) {
        for (var part = 0u; part < 8u; part++) {
            let unit = block * 8u + part;
            let w = load_unit(n * ROW_WORDS, unit);
{% for i in range(8) %}
            let k{{ i }} = unit_element(unit, {{ i }}u);
            if (k{{ i }} < K) {
{% for r in range(ROWS) %}
                let row{{ r }} = min(r0 + {{ r }}u, current.rows - 1u);
                acc[{{ r }}] += dot(w[{{ i }}], x[(row{{ r }} * K + k{{ i }}) / 4u]);
{% endfor %}
            }
{% endfor %}
        }
    }
    let total = reduce_sum(acc, thread);
    let row = r0 + thread.index;
    if (thread.index < {{ ROWS }}u && row < current.rows) {
        y[row * N + n] = total[thread.index];
    }
}
