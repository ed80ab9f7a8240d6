// The pick of each row becomes its next token, unmarked, at the next position and slot of its sequence;
// ring[sampled mod STEPS, r] = the id of picks[r].
//
// picks    (u32, f32) [rows]: id, marked if the logits of the row are not finite, and entropy
// current  Step
// ring     u32 [STEPS, MAX_ROWS]
//
// One call for the pass, with one thread for each row.
{% include "snippets/step.wgsl" %}
{% include "snippets/finite.wgsl" %}
var<storage, read> picks: array<vec2<u32>>;
var<storage, read_write> current: Step;
var<storage, read_write> ring: array<u32>;

override MAX_ROWS: u32;
override STEPS: u32;

fn phase(thread: Thread) {
    let row = thread.index;
    let step = current.sampled;
    storageBarrier();
    if (row < current.rows) {
        let id = picks[row].x;
        let last = current.row[row];
        current.row[row] = Row(id & ~NOT_FINITE, last.position + 1u, last.sequence, last.slot + 1u);
        ring[(step % STEPS) * MAX_ROWS + row] = id;
    }
    if (row == 0u) {
        current.sampled = step + 1u;
    }
}
