// in(x) in workgroup memory as f32.
var<workgroup> staged: array<vec4<f32>, K_STAGED / 4u>;

fn stage(t: u32) {
    for (var i = t; i < K_STAGED / 4u; i += WG) {
        staged[i] = input(i);
    }
}
