// Joins the splits of attention: out = sum_s e_s sums_s / sum_s e_s mass_s,
// e_s = exp(largest_s - max_s largest_s). An empty split has mass 0 and sums 0.
//
// current  Step
// sums     f32 [rows, HEADS, SPLITS, HEAD_DIM]
// stats    f32 [rows, HEADS, SPLITS, 2]: largest score, sum of exponentials
// out      {{ VALUE }} [rows, HEADS, HEAD_DIM]
//
// One workgroup a row and head, one thread for 4 elements.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> sums: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> stats: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4<{{ VALUE }}>>;

override HEADS: u32;
override HEAD_DIM: u32;
override SPLITS: u32;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let words = HEAD_DIM / 4u;
    if (wid.y >= current.rows || thread >= words) {
        return;
    }
    let at = wid.y * HEADS + wid.x;
    var largest = -3.0e38;
    for (var s = 0u; s < SPLITS; s++) {
        largest = max(largest, stats[at * SPLITS + s].x);
    }
    var mass = 0.0;
    var sum = vec4<f32>(0.0);
    for (var s = 0u; s < SPLITS; s++) {
        let stat = stats[at * SPLITS + s];
        let e = exp(stat.x - largest);
        mass += e * stat.y;
        sum += e * sums[(at * SPLITS + s) * words + thread];
    }
    out[at * words + thread] = value4(sum / mass);
}
