// Sum over a team's threads, valid in all of them.
fn team_sum(v: Sums, thread: Thread, subgroup_size: u32, team: u32) -> Sums {
{% if SUBGROUPS %}
    if (subgroup_size == T) {
        return subgroupAdd(v);
    }
{% endif %}
    workgroupBarrier();
    partial[thread.index] = v;
    workgroupBarrier();
    var sum = partial[team * T];
    for (var i = 1u; i < T; i++) {
        sum += partial[team * T + i];
    }
    return sum;
}
