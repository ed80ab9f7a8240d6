// counts[id] = count and bias[id] = bias for each entry (id, count, bias) of a sparse list.
//
// entries  Entries: number of entries, and the entries
// counts   u32 [vocabulary]
// bias     f32 [vocabulary]
//
// An item is WG entries, one for each thread. The ids are distinct.
struct Entry {
    id: u32,
    count: u32,
    bias: f32,
}

struct Entries {
    size: u32,
    list: array<Entry>,
}

var<storage, read> entries: Entries;
var<storage, read_write> counts: array<u32>;
var<storage, read_write> bias: array<f32>;

fn phase(item: u32, thread: Thread) {
    let i = item * WG + thread.index;
    if (i < entries.size) {
        let entry = entries.list[i];
        counts[entry.id] = entry.count;
        bias[entry.id] = entry.bias;
    }
}
