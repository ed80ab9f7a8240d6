// y = x, the plainest use of memory: what other kernels' speeds are compared with.
//
// x, y  u32 by 4 [WORDS]
//
// A thread copies words that lie a launch apart.
@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<u32>>;

override WG: u32;
override WORDS: u32;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    for (var i = id.x; i < WORDS; i += groups.x * WG) {
        y[i] = x[i];
    }
}
