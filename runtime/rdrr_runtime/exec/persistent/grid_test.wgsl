// Test of an adapter: whether all workgroups of a dispatch are resident together, and whether each of
// them sees what the others have written before a wait.
//
// gate    see gate.wgsl
// values  u32 [workgroups], what each workgroup wrote in the current round
// wrong   u32 [1], number of values that were not those of their round
{% include "gate.wgsl" %}

@coherent
var<storage, read_write> values: array<u32>;
var<storage, read_write> wrong: array<atomic<u32>>;

override WG: u32;
override ROUNDS: u32;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    enter();
    var goal = 0u;
    for (var round = 1u; round <= ROUNDS; round++) {
        if (index == 0u) {
            values[group.x] = round * 65536u + group.x;
        }
        goal += groups.x;
        if (!all_arrived(index, goal)) {
            break;
        }
        let other = (group.x + round * 37u + index) % groups.x;
        if (values[other] != round * 65536u + other) {
            atomicAdd(&wrong[0], 1u);
        }
        goal += groups.x;
        if (!all_arrived(index, goal)) {
            break;
        }
    }
    leave(index, groups.x);
}
