// y = x, the plainest use of memory: what other kernels' speeds are compared with.
//
// x, y  u32 by 4 [WORDS]
//
// The threads of all GROUPS items stride over the words.
var<storage, read> x: array<vec4<u32>>;
var<storage, read_write> y: array<vec4<u32>>;

override WORDS: u32;
override GROUPS: u32;

fn phase(item: u32, thread: Thread) {
    for (var i = item * WG + thread.index; i < WORDS; i += GROUPS * WG) {
        y[i] = x[i];
    }
}
