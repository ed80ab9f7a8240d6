// Each row's pick becomes its next token, one place further on in its sequence.
//
// picks      (u32, f32) [rows]: id and entropy
// current    Step
// tokens     u32 [max_rows]
// positions  u32 [max_rows]
// slot_mapping  (u32, u32) [max_rows]: sequence and slot
// ring       u32 [STEPS, MAX_ROWS]
//
// One workgroup, a thread a row.
{% include "snippets/step.wgsl" %}
@group(0) @binding(0) var<storage, read> picks: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> current: Step;
@group(0) @binding(2) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(3) var<storage, read_write> positions: array<u32>;
@group(0) @binding(4) var<storage, read_write> slot_mapping: array<vec2<u32>>;
@group(0) @binding(5) var<storage, read_write> ring: array<u32>;

override MAX_ROWS: u32;
override STEPS: u32;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) row: u32) {
    let step = current.ring;
    storageBarrier();
    if (row < current.rows) {
        let id = picks[row].x;
        tokens[row] = id;
        positions[row] += 1u;
        slot_mapping[row].y += 1u;
        ring[(step % STEPS) * MAX_ROWS + row] = id;
    }
    if (row == 0u) {
        current.ring = step + 1u;
    }
}
