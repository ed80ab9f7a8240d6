{% if ADDS %}
// x[r, :] = x[r, :] + features[r, :] where row r is a token of an image
{% else %}
// x[r, :] = features[r, :] where row r is a token of an image
{% endif %}
//
// current   Step; the tokens from FIRST on are those of images
// x         {{ VALUE }} [rows, WIDTH]
// features  f32 [rows, WIDTH]
//
// An item is WG elements of a row, one for each thread.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
var<storage, read> current: Step;
var<storage, read_write> x: array<{{ VALUE }}>;
var<storage, read> features: array<f32>;

override WIDTH: u32;
override FIRST: u32;

fn phase(item: u32, row: u32, thread: Thread) {
    let i = item * WG + thread.index;
    if (i >= WIDTH || current.row[row].token < FIRST) {
        return;
    }
    let at = row * WIDTH + i;
    x[at] = value(features[at]{{ " + f32(x[at])" if ADDS else "" }});
}
