// Sums over teams of T threads, any number of them, through workgroup memory. Thread t has that of team t / SUMMERS:
// SUMMERS threads share the values of a team, or each of them adds up all where subgroups are smaller.
const SUMMERS = {{ SUMMERS }}u;

fn team_sum(v: Sums, thread: Thread, subgroup_size: u32, t: u32) -> Sums {
    workgroupBarrier();  // until all threads have read the sums before
    partial[t] = v;
    workgroupBarrier();
    var sum = Sums();
    let shares = {{ "subgroup_size >= SUMMERS" if SUBGROUPS else "false" }};
    let team = t / SUMMERS;
    if (team < ROWS) {
        for (var i = select(0u, t % SUMMERS, shares); i < T; i += select(1u, SUMMERS, shares)) {
            sum += partial[{{ "i * ROWS + team" if CROSSED else "team * T + i" }}];
        }
    }
{% if SUBGROUPS %}
    if (shares) {
        for (var other = 1u; other < SUMMERS; other *= 2u) {
            sum += subgroupShuffleXor(sum, other);
        }
    }
{% endif %}
    return sum;
}
