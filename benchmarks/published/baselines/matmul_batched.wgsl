// c[z, m, n] = SCALE sum_k a[z, m, k] b[z / GROUP, n, k]{% if not TRANSPOSED %}, with b stored as [k, n]{% endif %}.
//
// a, b, c  f32; element [z, i, j] of a is at z * A_BATCH + i * A_ROW + j, and likewise for b and c
//
// An item is 16 x 16 outputs. Each of 256 threads computes one, from tiles in workgroup memory. Among
// the items, n varies fastest and z slowest.
var<storage, read> a: array<f32>;
var<storage, read> b: array<f32>;
var<storage, read_write> c: array<f32>;

override M: u32;
override N: u32;
override K: u32;
override GROUP: u32;
override SCALE: f32;
override A_BATCH: u32;
override A_ROW: u32;
override B_BATCH: u32;
override B_ROW: u32;
override C_BATCH: u32;
override C_ROW: u32;

// Rows are padded by one element, so that the elements of a column are in different banks.
var<workgroup> a_tile: array<f32, 272>;
var<workgroup> b_tile: array<f32, 272>;

fn phase(item: u32, thread: Thread) {
    let wide = (N + 15u) / 16u;
    let high = (M + 15u) / 16u;
    let z = item / (wide * high);
    let n0 = item % wide * 16u;
    let i = thread.index % 16u;
    let j = thread.index / 16u;
    let m = item / wide % high * 16u + j;
    let n = n0 + i;
    let b_at = (z / GROUP) * B_BATCH;
    var sum = 0.0;
    for (var k0 = 0u; k0 < K; k0 += 16u) {
        var left = 0.0;
        if (m < M && k0 + i < K) {
            left = a[z * A_BATCH + m * A_ROW + k0 + i];
        }
        a_tile[j * 17u + i] = left;
        var right = 0.0;
{% if TRANSPOSED %}
        let row = n0 + j;
        if (row < N && k0 + i < K) {
            right = b[b_at + row * B_ROW + k0 + i];
        }
        b_tile[i * 17u + j] = right;
{% else %}
        if (n < N && k0 + j < K) {
            right = b[b_at + (k0 + j) * B_ROW + n];
        }
        b_tile[j * 17u + i] = right;
{% endif %}
        workgroupBarrier();
{% for i in range(16) %}
        sum += a_tile[j * 17u + {{ i }}u] * b_tile[{{ i * 17 }}u + i];
{% endfor %}
        workgroupBarrier();
    }
    if (m < M && n < N) {
        c[z * C_BATCH + m * C_ROW + n] = SCALE * sum;
    }
}
