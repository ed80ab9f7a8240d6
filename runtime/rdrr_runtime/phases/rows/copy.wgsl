// y = x; measures the memory bandwidth that the throughput of other kernels is compared with.
//
// x, y  vec4<u32> [WORDS]
//
// The threads of all GROUPS items stride over the vectors.
var<storage, read> x: array<vec4<u32>>;
var<storage, read_write> y: array<vec4<u32>>;

override WORDS: u32;
override GROUPS: u32;

fn phase(item: u32, thread: Thread) {
    for (var i = item * WG + thread.index; i < WORDS; i += GROUPS * WG) {
        y[i] = x[i];
    }
}
