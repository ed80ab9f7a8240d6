// x = activate(x), where activate is {{ "min(max(x, -LIMIT), LIMIT)" if ACT == "clip" else ACT ~ " (snippets/activate.wgsl)" }}
//
// x           {{ VALUE }} [rows, WIDTH]
{% if ACT == "xielu" %}
// parameters  f32 [4]: alpha_p and alpha_n before softplus, beta, eps
{% endif %}
//
// An item is 4 WG elements of a row, 4 for each thread. Computes in f32.
{% include "snippets/value.wgsl" %}
var<storage, read_write> x: array<vec4<{{ VALUE }}>>;

override WIDTH: u32;

{% if ACT == "xielu" %}
var<storage, read> parameters: array<f32>;

fn softplus(v: f32) -> f32 {
    return max(v, 0.0) + log(1.0 + exp(-abs(v)));
}

// e^v - 1 for v < 0, by its series where the difference would cancel
fn expm1_of_negative(v: f32) -> f32 {
    let series = v + 0.5 * v * v * (1.0 + v / 3.0 * (1.0 + v / 4.0 * (1.0 + v / 5.0 * (1.0 + v / 6.0))));
    return select(exp(max(v, -80.0)) - 1.0, series, v > -0.25);
}

//   softplus(alpha_p) g^2 + beta g for g > 0, else
//   (beta + softplus(alpha_n)) (e^min(g, eps) - 1 - g) + beta g
fn activate(g: f32) -> f32 {
    let beta = parameters[2];
    let above = softplus(parameters[0]) * g * g;
    let below = (beta + softplus(parameters[1])) * (expm1_of_negative(min(g, parameters[3])) - g);
    return select(below, above, g > 0.0) + beta * g;
}
{% elif ACT == "clip" %}
{% include "snippets/float_bits.wgsl" %}
override LIMIT: f32;

fn activate(g: f32) -> f32 {
    return select(clamp(g, -LIMIT, LIMIT), g, is_nan(g));
}
{% else %}
{% include "snippets/activate.wgsl" %}
{% endif %}

fn phase(item: u32, row: u32, thread: Thread) {
    let words = WIDTH / 4u;
    let i = item * WG + thread.index;
    if (i >= words) {
        return;
    }
    let g = vec4<f32>(x[row * words + i]);
    x[row * words + i] = value4(vec4<f32>(activate(g.x), activate(g.y), activate(g.z), activate(g.w)));
}
