// groups[e] = how many rows go to expert e, then which: routes r TOP_K + s, in the order of rows.
//
// current  Step
// routes   Route [rows, TOP_K]
// groups   u32 [EXPERTS, 1 + MAX_ROWS]
//
// One workgroup an expert, which a row goes to at most once; a thread looks at a row at a time.
{% include "snippets/step.wgsl" %}
{% include "snippets/route.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> routes: array<Route>;
@group(0) @binding(2) var<storage, read_write> groups: array<u32>;

override TOP_K: u32;
override MAX_ROWS: u32;

const WG = 64u;

var<workgroup> goes: array<u32, WG>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let first = wid.x * (1u + MAX_ROWS);
    let rows = min(current.rows, MAX_ROWS);
    var count = 0u;  // alike in every thread
    for (var row0 = 0u; row0 < rows; row0 += WG) {
        let row = row0 + thread;
        var route = 0u;
        var found = 0u;
        if (row < rows) {
            for (var s = 0u; s < TOP_K; s++) {
                if (routes[row * TOP_K + s].expert == wid.x) {
                    route = row * TOP_K + s;
                    found = 1u;
                }
            }
        }
        goes[thread] = found;
        workgroupBarrier();
        var before = 0u;
        var all = 0u;
        for (var i = 0u; i < WG; i++) {
            before += select(0u, goes[i], i < thread);
            all += goes[i];
        }
        if (found == 1u) {
            groups[first + 1u + count + before] = route;
        }
        count += all;
        workgroupBarrier();
    }
    if (thread == 0u) {
        groups[first] = count;
    }
}
