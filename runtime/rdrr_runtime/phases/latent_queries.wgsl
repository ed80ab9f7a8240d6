// queries[r, h, :LATENT] = q[r, h, :KEY_DIM] U_h and queries[r, h, LATENT:] = rope(q[r, h, KEY_DIM:]), where the
// matrix U_h is the first KEY_DIM of the KEY_DIM + VALUE_DIM rows of head h. A product with such a query is
// one with the key that U_h makes of a latent: (q U_h) . c = q . (U_h c).
//
// current  Step
// table    f32 [context, PAIRS, 2]: cos, sin
// q        {{ VALUE }} [rows, HEADS, KEY_DIM + 2 PAIRS]
// weight0  [HEADS (KEY_DIM + VALUE_DIM), LATENT], layout as in formats.py
// queries  {{ VALUE }} [rows, HEADS, LATENT + 2 PAIRS]
//
// An item is 32 UNITS_EACH elements of a head of {{ ROWS ~ " rows" if ROWS > 1 else "a row" }}. Each thread multiplies some rows of
// U_h, 32 elements of each. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
{% include "snippets/rotated.wgsl" %}
var<storage, read> current: Step;
var<storage, read> table: array<vec2<f32>>;
var<storage, read> q: array<{{ VALUE }}>;
var<storage, read> weight0: array<vec4<u32>>;
var<storage, read_write> queries: array<{{ VALUE }}>;

override HEADS: u32;
override KEY_DIM: u32;
override VALUE_DIM: u32;
override LATENT: u32;
override PAIRS: u32;
override UNITS: u32;       // half units (32 weights) of a row
override UNITS_EACH: u32;  // of them, those of an item; a power of two

{% set DEQUANTIZED = true %}
{% include "snippets/weights.wgsl" %}

var<workgroup> parts: array<vec4<f32>, WG>;

fn phase(item: u32, row: u32, thread: Thread) {
    let t = thread.index;
    let head = item % HEADS;
    let unit = (item / HEADS) * UNITS_EACH + t % UNITS_EACH;
    let slices = WG / UNITS_EACH;  // threads that share an element
{% for r in range(ROWS) %}
    let at{{ r }} = min(row + {{ r }}u, current.rows - 1u) * HEADS + head;
{% for i in range(8) %}
    var acc{{ r }}_{{ i }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
    if (unit < UNITS) {
        for (var d = t / UNITS_EACH; d < KEY_DIM; d += slices) {
            let w = weights0(head * (KEY_DIM + VALUE_DIM) + d, unit);
{% for r in range(ROWS) %}
            let x{{ r }} = f32(q[at{{ r }} * (KEY_DIM + 2u * PAIRS) + d]);
{% for i in range(8) %}
            acc{{ r }}_{{ i }} += x{{ r }} * w[{{ i }}];
{% endfor %}
{% endfor %}
        }
    }
{% for r in range(ROWS) %}
{% for i in range(8) %}
    workgroupBarrier();
    parts[t] = acc{{ r }}_{{ i }};
    workgroupBarrier();
    if (t < 4u * UNITS_EACH && row + {{ r }}u < current.rows) {
        var sum = 0.0;
        for (var slice = 0u; slice < slices; slice++) {
            sum += parts[slice * UNITS_EACH + t / 4u][t % 4u];
        }
        let element = 32u * ((item / HEADS) * UNITS_EACH + t / 4u) + {{ 4 * i }}u + t % 4u;
        if (element < LATENT) {
            queries[at{{ r }} * (LATENT + 2u * PAIRS) + element] = value(sum);
        }
    }
{% endfor %}
    if (item < HEADS && row + {{ r }}u < current.rows) {
        for (var pair = t; pair < PAIRS; pair += WG) {
            let a = first_of_pair(pair);
            let b = partner(a);
            let source = at{{ r }} * (KEY_DIM + 2u * PAIRS) + KEY_DIM;
            let angle = table[current.row[row + {{ r }}u].position * PAIRS + pair];
            let result = rotated(f32(q[source + a]), f32(q[source + b]), angle);
            let end = at{{ r }} * (LATENT + 2u * PAIRS) + LATENT;
            queries[end + a] = value(result.x);
            queries[end + b] = value(result.y);
        }
    }
{% endfor %}
}
