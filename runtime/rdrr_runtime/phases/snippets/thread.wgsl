// Where a thread stands in its workgroup; the subgroup fields exist only with subgroups, and their
// size only where a kernel sets TEAMS, because its teams may be subgroups.
struct Thread {
    @builtin(local_invocation_index) index: u32,
{% if SUBGROUPS %}
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
{% if TEAMS is defined %}
    @builtin(subgroup_size) size: u32,
{% endif %}
{% endif %}
}
