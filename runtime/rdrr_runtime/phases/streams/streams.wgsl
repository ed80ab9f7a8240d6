{% if MODE == "mix" %}
// y_j = x_j + sum over i of coefficients[j COUNT + i] x_i, for the streams x_j of a row of x
{% elif MODE == "correct" %}
// y_j = x_j + (1 + coefficients[j]) (update - x_{{ STREAM }}), for the streams x_j of a row of x
{% elif MODE == "add" %}
// y_j = x_j + update for the streams j of a row of x from {{ STREAM }} on, and x_j for the others
{% else %}
// y = (x_0 + ... + x_(COUNT - 1)) / COUNT, for the streams x_j of a row of x
{% endif %}
//
// x             {{ VALUE }} [rows, COUNT, WIDTH]
{% if MODE in ("mix", "correct") %}
// coefficients  {{ VALUE }} [rows, COUNT{{ ", COUNT" if MODE == "mix" }}]
{% endif %}
{% if MODE in ("correct", "add") %}
// update        {{ VALUE }} [rows, WIDTH]
{% endif %}
// y             {{ VALUE }} [rows, {{ "WIDTH" if MODE == "mean" else "COUNT, WIDTH" }}]
//
// COUNT is {{ COUNT }}. An item is 4 WG elements of every stream of a row, 4 for each thread. Computes in f32.
{% include "snippets/value.wgsl" %}
var<storage, read> x: array<vec4<{{ VALUE }}>>;
{% if MODE in ("mix", "correct") %}
var<storage, read> coefficients: array<{{ VALUE }}>;
{% endif %}
{% if MODE in ("correct", "add") %}
var<storage, read> update: array<vec4<{{ VALUE }}>>;
{% endif %}
var<storage, read_write> y: array<vec4<{{ VALUE }}>>;

override WIDTH: u32;

fn phase(item: u32, row: u32, thread: Thread) {
    let words = WIDTH / 4u;
    let i = item * WG + thread.index;
    if (i >= words) {
        return;
    }
    let first = row * {{ COUNT }}u * words + i;
{% for j in range(COUNT) %}
    let x{{ j }} = vec4<f32>(x[first + {{ j }}u * words]);
{% endfor %}
{% if MODE == "mean" %}
    let sum = {% for j in range(COUNT) %}{{ " + " if j }}x{{ j }}{% endfor %};
    y[row * words + i] = value4(sum / {{ COUNT }}.0);
{% elif MODE == "mix" %}
    let factors = row * {{ COUNT * COUNT }}u;
{% for j in range(COUNT) %}
    var y{{ j }} = x{{ j }};
{% for k in range(COUNT) %}
    y{{ j }} += f32(coefficients[factors + {{ j * COUNT + k }}u]) * x{{ k }};
{% endfor %}
    y[first + {{ j }}u * words] = value4(y{{ j }});
{% endfor %}
{% elif MODE == "correct" %}
    let change = vec4<f32>(update[row * words + i]) - x{{ STREAM }};
{% for j in range(COUNT) %}
    let factor{{ j }} = 1.0 + f32(coefficients[row * {{ COUNT }}u + {{ j }}u]);
    y[first + {{ j }}u * words] = value4(x{{ j }} + factor{{ j }} * change);
{% endfor %}
{% else %}
    let change = vec4<f32>(update[row * words + i]);
{% for j in range(COUNT) %}
    y[first + {{ j }}u * words] = value4(x{{ j }}{{ " + change" if j >= STREAM }});
{% endfor %}
{% endif %}
}
