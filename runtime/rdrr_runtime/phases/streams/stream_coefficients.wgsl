// y = tanh(FACTOR x R^T) W^T
//
// x       {{ VALUE }} [rows, K]
// router  f32 [STREAMS, K], R
// weight  f32 [OUTPUTS, STREAMS], W
// y       {{ VALUE }} [rows, OUTPUTS]
//
// One call for each row. Accumulates in f32.
{% include "snippets/value.wgsl" %}
var<storage, read> x: array<vec4<{{ VALUE }}>>;
var<storage, read> router: array<vec4<f32>>;
var<storage, read> weight: array<f32>;
var<storage, read_write> y: array<{{ VALUE }}>;

override K: u32;
override STREAMS: u32;
override OUTPUTS: u32;
override FACTOR: f32;

var<workgroup> modalities: array<f32, STREAMS>;

{% include "snippets/float_bits.wgsl" %}
{% include "snippets/reduce_sum.wgsl" %}

fn phase(row: u32, thread: Thread) {
    let words = K / 4u;
    for (var s = 0u; s < STREAMS; s++) {
        var products = vec4<f32>(0.0);
        for (var i = thread.index; i < words; i += WG) {
            products += vec4<f32>(x[row * words + i]) * router[s * words + i];
        }
        let sum = dot(reduce_sum(products, thread), vec4<f32>(1.0));
        if (thread.index == 0u) {
            modalities[s] = select(tanh(clamp(FACTOR * sum, -15.0, 15.0)), sum, is_nan(sum));
        }
    }
    workgroupBarrier();
    for (var j = thread.index; j < OUTPUTS; j += WG) {
        var sum = 0.0;
        for (var s = 0u; s < STREAMS; s++) {
            sum += modalities[s] * weight[j * STREAMS + s];
        }
        y[row * OUTPUTS + j] = value(sum);
    }
}
