// x[r, :] = x[r, :] + sum over j of factors[r, j] table[nearest[r, j], :]
//
// nearest  u32 [rows, 4]: rows of the table
// factors  f32 [rows, 4]
// table    f32 [table rows, WIDTH]
// x        {{ VALUE }} [rows, WIDTH]
//
// An item is 4 WG elements of a row, 4 for each thread.
{% include "snippets/value.wgsl" %}
var<storage, read> nearest: array<vec4<u32>>;
var<storage, read> factors: array<vec4<f32>>;
var<storage, read> table: array<vec4<f32>>;
var<storage, read_write> x: array<vec4<{{ VALUE }}>>;

override WIDTH: u32;

fn phase(item: u32, row: u32, thread: Thread) {
    let words = WIDTH / 4u;
    let i = item * WG + thread.index;
    if (i >= words) {
        return;
    }
    let at = nearest[row] * words + i;
    let by = factors[row];
    let sum = by.x * table[at.x] + by.y * table[at.y] + by.z * table[at.z] + by.w * table[at.w];
    x[row * words + i] = value4(vec4<f32>(x[row * words + i]) + sum);
}
