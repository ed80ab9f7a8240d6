// counts[id], bias[id] = those of the entry with that id, for the tokens of a sparse list.
//
// entries  Entries: how many, and (id, count, bias) of each
// counts   u32 [vocabulary]
// bias     f32 [vocabulary]
//
// A thread for each entry; ids do not repeat.
struct Entry {
    id: u32,
    count: u32,
    bias: f32,
}

struct Entries {
    size: u32,
    list: array<Entry>,
}

@group(0) @binding(0) var<storage, read> entries: Entries;
@group(0) @binding(1) var<storage, read_write> counts: array<u32>;
@group(0) @binding(2) var<storage, read_write> bias: array<f32>;

override WG: u32;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) gid: vec3<u32>) {
    if (gid.x < entries.size) {
        let entry = entries.list[gid.x];
        counts[entry.id] = entry.count;
        bias[entry.id] = entry.bias;
    }
}
