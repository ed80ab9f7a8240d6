// Place of a thread in its workgroup; the subgroup fields exist only with subgroups.
struct Thread {
    @builtin(local_invocation_index) index: u32,
{% if SUBGROUPS %}
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
{% endif %}
}
