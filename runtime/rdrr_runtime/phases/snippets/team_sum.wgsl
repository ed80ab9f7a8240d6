// Sum over the threads of a team; valid in all of them. T is a power of two. If subgroups have at least T
// threads, a team is a subgroup or consecutive lanes of one.
fn team_sum(v: Sums, thread: Thread, subgroup_size: u32, team: u32) -> Sums {
{% if SUBGROUPS %}
    if (subgroup_size == T) {
        return subgroupAdd(v);
    }
    if (subgroup_size > T) {
        var total = v;
        for (var half = T / 2u; half > 0u; half /= 2u) {
            total += subgroupShuffleXor(total, half);
        }
        return total;
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
