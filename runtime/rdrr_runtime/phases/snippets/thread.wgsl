// Indices of a thread in its workgroup. The subgroup fields exist only with subgroups.
//
// The subgroup size is not a field, because Tint treats a whole structure as non-uniform if one of its
// fields is. A phase that needs it declares the parameter `subgroup_size`, which the entry point passes
// on; without subgroups the name is the constant below.
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
