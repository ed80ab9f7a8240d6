// sizes[t] = subgroup size that thread t sees: what no adapter of wgpu 0.32 tells.
//
// sizes  u32 [256]
@group(0) @binding(0) var<storage, read_write> sizes: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) t: u32, @builtin(subgroup_size) size: u32) {
    sizes[t] = size;
}
