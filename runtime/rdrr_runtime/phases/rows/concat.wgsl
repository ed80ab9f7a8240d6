// z[r, :] = [x[r, :], y[r, :]]
//
// x  {{ VALUE }} [rows, FIRST]
// y  {{ VALUE }} [rows, SECOND]
// z  {{ VALUE }} [rows, FIRST + SECOND]
//
// An item is 4 WG elements of a row of z, 4 for each thread.
var<storage, read> x: array<vec4<{{ VALUE }}>>;
var<storage, read> y: array<vec4<{{ VALUE }}>>;
var<storage, read_write> z: array<vec4<{{ VALUE }}>>;

override FIRST: u32;
override SECOND: u32;

fn phase(item: u32, row: u32, thread: Thread) {
    let first = FIRST / 4u;
    let second = SECOND / 4u;
    let i = item * WG + thread.index;
    if (i < first) {
        z[row * (first + second) + i] = x[row * first + i];
    } else if (i < first + second) {
        z[row * (first + second) + i] = y[row * second + i - first];
    }
}
