// s[h, r, :] = softmax over the slots 0..r; the slots beyond r become zero.
//
// s  f32 [heads, ROWS, ROWS]
//
// An item is one row of one head; the rows of the first head come first.
var<storage, read_write> s: array<f32>;

override ROWS: u32;

{% include "snippets/reduce_sum.wgsl" %}
{% include "snippets/reduce_max.wgsl" %}

fn phase(item: u32, thread: Thread) {
    let row = item % ROWS;
    let at = item * ROWS;
    var most = -3.0e38;
    for (var i = thread.index; i <= row; i += WG) {
        most = max(most, s[at + i]);
    }
    most = reduce_max(most, thread);
    var sum = 0.0;
    for (var i = thread.index; i <= row; i += WG) {
        sum += exp(s[at + i] - most);
    }
    let total = reduce_sum(vec4<f32>(sum), thread).x;
    for (var i = thread.index; i < ROWS; i += WG) {
        s[at + i] = select(0.0, exp(s[at + min(i, row)] - most) / total, i <= row);
    }
}
