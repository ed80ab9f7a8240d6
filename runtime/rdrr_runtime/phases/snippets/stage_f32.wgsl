// in(x) in workgroup memory as f32; returns this thread's sum of squares.
var<workgroup> staged: array<vec4<f32>, K_STAGED / 4u>;

fn stage(thread: Thread, subgroup_size: u32) -> f32 {
    var squared = 0.0;
    for (var i = thread.index; i < K_STAGED / 4u; i += WG) {
        staged[i] = input(i, &squared);
    }
    return squared;
}
