// groups[e] = the number of rows that are routed to expert e, followed by their routes r TOP_K + s in
// ascending order of the rows r.
//
// current  Step
// routes   Route [rows, TOP_K]
// groups   u32 [experts, 1 + MAX_ROWS]
//
// An item is one expert. Each thread checks one row at a time; a row is routed to an expert at most
// once.
{% include "snippets/step.wgsl" %}
{% include "snippets/route.wgsl" %}
var<storage, read> current: Step;
var<storage, read> routes: array<Route>;
var<storage, read_write> groups: array<u32>;

override TOP_K: u32;
override MAX_ROWS: u32;

var<workgroup> matches: array<u32, WG>;

fn phase(item: u32, thread: Thread) {
    let first = item * (1u + MAX_ROWS);
    let rows = min(current.rows, MAX_ROWS);
    var count = 0u;  // routes found so far, the same in every thread
    for (var row0 = 0u; row0 < rows; row0 += WG) {
        let row = row0 + thread.index;
        var route = 0u;
        var found = 0u;
        if (row < rows) {
            for (var s = 0u; s < TOP_K; s++) {
                if (routes[row * TOP_K + s].expert == item) {
                    route = row * TOP_K + s;
                    found = 1u;
                }
            }
        }
        matches[thread.index] = found;
        workgroupBarrier();
        var before = 0u;
        var total = 0u;
        for (var i = 0u; i < WG; i++) {
            before += select(0u, matches[i], i < thread.index);
            total += matches[i];
        }
        if (found == 1u) {
            groups[first + 1u + count + before] = route;
        }
        count += total;
        workgroupBarrier();
    }
    if (thread.index == 0u) {
        groups[first] = count;
    }
}
