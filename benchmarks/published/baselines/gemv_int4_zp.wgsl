// y[r, n] = sum_k x[r, k] (q[n, k] - zero[n, g]) scale[n, g], where g = k / GROUP.
//
// x              f32 [rows, K]
// weight         u32 [N, K / 8]: eight 4-bit codes per word, the lowest bits first
// weight_scales  vec2<f32> [N, K / GROUP]: scale and zero point
// y              f32 [rows, N]
//
// An item is 4 outputs of one token row. The threads divide the words of a weight row among them.
var<storage, read> x: array<vec4<f32>>;
var<storage, read> weight: array<u32>;
var<storage, read> weight_scales: array<vec2<f32>>;
var<storage, read_write> y: array<f32>;

override K: u32;
override N: u32;
override GROUP: u32;

{% include "snippets/reduce_sum.wgsl" %}

fn phase(item: u32, row: u32, thread: Thread) {
    let n0 = item * 4u;
    let words = K / 8u;
    var acc = vec4<f32>(0.0);
    for (var i = thread.index; i < words; i += WG) {
        let a = x[row * (K / 4u) + 2u * i];
        let b = x[row * (K / 4u) + 2u * i + 1u];
        // The low half of byte j holds code 2j, the high half code 2j + 1.
        let even = vec4<f32>(a.xz, b.xz);
        let odd = vec4<f32>(a.yw, b.yw);
        let sum = dot(a + b, vec4<f32>(1.0));
        let g = i * 8u / GROUP;
{% for o in range(4) %}
        let n{{ o }} = min(n0 + {{ o }}u, N - 1u);
        let word{{ o }} = weight[n{{ o }} * words + i];
        let scale{{ o }} = weight_scales[n{{ o }} * (K / GROUP) + g];
        let dot{{ o }} = dot(vec4<f32>(unpack4xU8(word{{ o }} & 0x0f0f0f0fu)), even)
            + dot(vec4<f32>(unpack4xU8((word{{ o }} >> 4u) & 0x0f0f0f0fu)), odd);
        acc.{{ "xyzw"[o] }} += scale{{ o }}.x * (dot{{ o }} - scale{{ o }}.y * sum);
{% endfor %}
    }
    let total = reduce_sum(acc, thread);
    let n = n0 + thread.index;
    if (thread.index < 4u && n < N) {
        y[row * N + n] = total[thread.index];
    }
}
