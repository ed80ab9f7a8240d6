// y[t, :] = FACTOR * the mean of x[r, :] over the rows r from ranges[t].x up to, but not including, ranges[t].y{{ " - shift" if SHIFTS }};
// a mean of zeros if there are none
//
// ranges  u32 [texts, 2]
// x       {{ VALUE }} [rows, WIDTH]
{% if SHIFTS %}
// shift   f32 [WIDTH]
{% endif %}
// y       f32 [texts, WIDTH]; the phase runs for each text
//
// An item is 4 COLUMNS elements of a row of y; 4 of them are summed by WG / COLUMNS threads.
var<storage, read> ranges: array<vec2<u32>>;
var<storage, read> x: array<vec4<{{ VALUE }}>>;
{% if SHIFTS %}
var<storage, read> shift: array<vec4<f32>>;
{% endif %}
var<storage, read_write> y: array<vec4<f32>>;

override WIDTH: u32;
override COLUMNS: u32;
override FACTOR: f32 = 1.0;

var<workgroup> sums: array<vec4<f32>, WG>;

fn phase(item: u32, row: u32, thread: Thread) {
    let column = item * COLUMNS + thread.index % COLUMNS;
    let words = WIDTH / 4u;
    let rows = ranges[row];
    var sum = vec4<f32>(0.0);
    if (column < words) {
        for (var r = rows.x + thread.index / COLUMNS; r < rows.y; r += WG / COLUMNS) {
            sum += vec4<f32>(x[r * words + column]);
        }
    }
    sums[thread.index] = sum;
    workgroupBarrier();
    if (thread.index < COLUMNS && column < words) {
        for (var other = thread.index + COLUMNS; other < WG; other += COLUMNS) {
            sum += sums[other];
        }
        y[row * words + column] = FACTOR * (sum / f32(max(rows.y, rows.x + 1u) - rows.x)){{ " - shift[column]" if SHIFTS }};
    }
}
