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
// An item is 32 UNITS_EACH elements of a head of {{ ROWS ~ " rows" if ROWS > 1 else "a row" }}. Each thread multiplies every SLICES-th row of U_h, 32
// elements of each, and the threads add up their elements. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
{% include "attention/snippets/rotated.wgsl" %}
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
{% include "weights/snippets/weights.wgsl" %}

const GROUPS = 4u;  // slices whose sums a thread adds up
override SLICES = WG / UNITS_EACH;      // threads that share an element
override WORDS_EACH = 4u * UNITS_EACH;  // vectors of 4 elements that are added up at a time: half of the item's
override STRIDE = WG + UNITS_EACH;       // padded, so that threads read from different banks
override STORED = 4u * STRIDE;
override TRIPS = (KEY_DIM + SLICES - 1u) / SLICES;

var<workgroup> parts: array<vec4<f32>, STORED>;
var<workgroup> quarters: array<vec4<f32>, WG>;

// Rotate the last part of a head's query.
fn rotate(row: u32, head: u32, t: u32) {
    let at = row * HEADS + head;
    let source = at * (KEY_DIM + 2u * PAIRS) + KEY_DIM;
    let end = at * (LATENT + 2u * PAIRS) + LATENT;
    for (var pair = t; pair < PAIRS; pair += WG) {
        let a = first_of_pair(pair);
        let b = partner(a);
        let angle = table[current.row[row].position * PAIRS + pair];
        let result = rotated(f32(q[source + a]), f32(q[source + b]), angle);
        queries[end + a] = value(result.x);
        queries[end + b] = value(result.y);
    }
}

// Add up what the threads have put into `parts`, and store it as elements of a query: in each of the item's units
// those from `first` on, 16 of them.
fn store_sums(query: u32, unit0: u32, first: u32, is_row: bool, t: u32) {
    workgroupBarrier();
    let start = t / UNITS_EACH % 4u * STRIDE + t % UNITS_EACH;
    var sum = vec4<f32>(0.0);
    for (var i = 0u; i < GROUPS; i++) {
        sum += parts[start + (t / WORDS_EACH + i * (SLICES / GROUPS)) * UNITS_EACH];
    }
    quarters[t] = sum;
    workgroupBarrier();
    if (t < WORDS_EACH && is_row) {
        var total = vec4<f32>(0.0);
        for (var i = t; i < WG; i += WORDS_EACH) {
            total += quarters[i];
        }
        let element = 32u * (unit0 + t % UNITS_EACH) + first + 4u * (t / UNITS_EACH);
        if (element < LATENT) {
{% for i in range(4) %}
            queries[query + element + {{ i }}u] = value(total[{{ i }}]);
{% endfor %}
        }
    }
}

fn phase(item: u32, row: u32, thread: Thread) {
    let t = thread.index;
    let head = item % HEADS;
    let unit0 = (item / HEADS) * UNITS_EACH;
    let unit = min(unit0 + t % UNITS_EACH, UNITS - 1u);
    let slice = t / UNITS_EACH;
    if (item < HEADS) {
{% for r in range(ROWS) %}
        if (row + {{ r }}u < current.rows) {
            rotate(row + {{ r }}u, head, t);
        }
{% endfor %}
    }
{% for r in range(ROWS) %}
    let at{{ r }} = min(row + {{ r }}u, current.rows - 1u) * HEADS + head;
{% for i in range(8) %}
    var acc{{ r }}_{{ i }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
    for (var trip = 0u; trip < TRIPS; trip++) {
        let d = trip * SLICES + slice;
        let w = weights0(head * (KEY_DIM + VALUE_DIM) + min(d, KEY_DIM - 1u), unit);
{% for r in range(ROWS) %}
        let x{{ r }} = select(0.0, f32(q[at{{ r }} * (KEY_DIM + 2u * PAIRS) + min(d, KEY_DIM - 1u)]), d < KEY_DIM);
{% for i in range(8) %}
        acc{{ r }}_{{ i }} += x{{ r }} * w[{{ i }}];
{% endfor %}
{% endfor %}
    }
{% for r in range(ROWS) %}
{% for half in range(2) %}
{% for i in range(4) %}
    parts[{{ i }}u * STRIDE + t] = acc{{ r }}_{{ 4 * half + i }};
{% endfor %}
    store_sums(at{{ r }} * (LATENT + 2u * PAIRS), unit0, {{ 16 * half }}u, row + {{ r }}u < current.rows, t);
{% endfor %}
{% endfor %}
}
