// c[z, m, n] = SCALE sum_k a[z, m, k] b[z / GROUP, n, k]{% if not TRANSPOSED %}, where b lies as [k, n]{% endif %}.
//
// a, b, c  f32; element [z, i, j] of each at z * its BATCH + i * its ROW + j
//
// A workgroup computes 16 x 16 outputs from tiles in workgroup memory.
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> c: array<f32>;

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

// Rows are padded by one element, so that columns lie in different banks.
var<workgroup> a_tile: array<f32, 272>;
var<workgroup> b_tile: array<f32, 272>;

@compute @workgroup_size(16, 16)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(local_invocation_id) lid: vec3<u32>,
) {
    let m = wid.y * 16u + lid.y;
    let n = wid.x * 16u + lid.x;
    let b_at = (wid.z / GROUP) * B_BATCH;
    var sum = 0.0;
    for (var k0 = 0u; k0 < K; k0 += 16u) {
        var left = 0.0;
        if (m < M && k0 + lid.x < K) {
            left = a[wid.z * A_BATCH + m * A_ROW + k0 + lid.x];
        }
        a_tile[lid.y * 17u + lid.x] = left;
        var right = 0.0;
{% if TRANSPOSED %}
        let row = wid.x * 16u + lid.y;
        if (row < N && k0 + lid.x < K) {
            right = b[b_at + row * B_ROW + k0 + lid.x];
        }
        b_tile[lid.x * 17u + lid.y] = right;
{% else %}
        if (n < N && k0 + lid.y < K) {
            right = b[b_at + (k0 + lid.y) * B_ROW + n];
        }
        b_tile[lid.y * 17u + lid.x] = right;
{% endif %}
        workgroupBarrier();
{% for i in range(16) %}
        sum += a_tile[lid.y * 17u + {{ i }}u] * b_tile[{{ i * 17 }}u + lid.x];
{% endfor %}
        workgroupBarrier();
    }
    if (m < M && n < N) {
        c[wid.z * C_BATCH + m * C_ROW + n] = SCALE * sum;
    }
}
