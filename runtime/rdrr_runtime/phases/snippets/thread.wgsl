// Where a thread stands in its workgroup; the subgroup fields exist only with subgroups.
//
// The subgroup size is no field: Tint calls a whole structure non-uniform where one field is. A
// kernel that needs it takes an entry parameter `@builtin(subgroup_size) subgroup_size: u32` with
// subgroups and hands it on; without subgroups the name is the constant below.
struct Thread {
    @builtin(local_invocation_index) index: u32,
{% if SUBGROUPS %}
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
{% endif %}
}
{% if not SUBGROUPS %}
const subgroup_size = 0u;
{% endif %}
