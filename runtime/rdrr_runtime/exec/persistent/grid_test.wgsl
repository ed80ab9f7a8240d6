// Test of an adapter: whether all workgroups of a dispatch are resident together, whether each of them sees what
// the others have written before a wait, and whether it sees what they hand over word by word.
//
// gate    see gate.wgsl; words1, words2, words4  see handover.wgsl
// values  u32 [workgroups], what each workgroup wrote in the current round
// wrong   u32 [1], number of values that were not those of their round
const WG = {{ WG }}u;
const ROUNDS = {{ ROUNDS }}u;

{% include "gate.wgsl" %}

{% include "handover.wgsl" %}

@coherent
var<storage, read_write> values: array<u32>;
var<storage, read_write> wrong: array<atomic<u32>>;

fn value_of(round: u32, group: u32) -> u32 {
    return round * 65536u + group;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    enter();
    first_word = 4u;
    var goal = 0u;
    for (var round = 1u; round <= ROUNDS; round++) {
        if (index == 0u) {
            values[group.x] = value_of(round, group.x);
        }
        goal += groups.x;
        if (!all_arrived(index, goal)) {
            break;
        }
{% if ALIASED %}
        let other = (group.x + round * 37u + index) % groups.x;
        if (values[other] != value_of(round, other)) {
            atomicAdd(&wrong[0], 1u);
        }
{% endif %}
        goal += groups.x;
        if (!all_arrived(index, goal)) {
            break;
        }
    }
    // A chain without waits: each round needs the words that others have written in the round before.
    for (var round = 1u; round <= ROUNDS; round++) {
        let own = first_word + (round - 1u) * groups.x;
        if (index == 0u) {
            put1(own + group.x, value_of(round, group.x));
        }
        let other = (group.x + round * 37u + index) % groups.x;
        if (taken1(own + other) != value_of(round, other)) {
            atomicAdd(&wrong[0], 1u);
        }
        workgroupBarrier();  // until all threads have seen the words of this round
    }
    _ = leave(index, groups.x);
}
