// Sum over a team's threads, valid in all of them.
fn team_sum(v: Sums, thread: Thread, team: u32) -> Sums {
{% if SUBGROUPS %}
    if (thread.size == T) {
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
