{# The module of a whole pass. All workgroups stay until the pass is done: each makes its share of the
   calls of one phase after the other, and waits for the others where a phase needs their results.

   table  u32 [calls, WORDS]: unit, items, token rows of a call (0: the items are all calls), whether to
          wait first, and the first element of each buffer
   gate   see gate.wgsl

   Everything that one phase leaves for another is in buffers that are declared @coherent. #}
const WG = {{ WG }}u;
const CALLS = {{ CALLS }}u;

{{ THREAD }}
{% include "gate.wgsl" %}

{{ STRUCTS }}

{{ BUFFERS }}
var<storage, read> table: array<u32>;

{{ SHARED }}

{% for unit in UNITS %}
{{ unit.text }}

{% endfor %}
struct Call {
    unit: u32,
    items: u32,
    rows: u32,
    waits: bool,
    at: array<u32, {{ WORDS - 4 }}>,
}

fn load_call(number: u32) -> Call {
    let first = {{ WORDS }}u * min(number, CALLS - 1u);
    return Call(
        table[first],
        table[first + 1u],
        table[first + 2u],
        table[first + 3u] != 0u,
        array<u32, {{ WORDS - 4 }}>(
{% for i in range(WORDS - 4) %}
            table[first + {{ 4 + i }}u],
{% endfor %}
        ),
    );
}

@compute @workgroup_size({{ WG }})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
{% if SUBGROUPS %}
    @builtin(subgroup_size) subgroup_size: u32,
{% endif %}
    thread: Thread,
) {
    enter();
    if (has_failed(thread.index)) {
        leave(thread.index, groups.x);
        return;
    }
    let token_rows = {{ STEP }}.rows;
    var goal = 0u;
    var call = load_call(0u);
    for (var number = 0u; number < CALLS; number++) {
        if (call.waits) {
            goal += groups.x;
            if (!all_arrived(thread.index, goal)) {
                break;
            }
        }
        switch (call.unit) {
{% for unit in UNITS %}
            case {{ unit.number }}u: {
{% for i in unit.offsets %}
                at_{{ unit.number }}_{{ i }} = call.at[{{ i }}];
{% endfor %}
{% if unit.by_rows %}
                let calls = call.items * ((token_rows + call.rows - 1u) / call.rows);
{% else %}
                let calls = call.items;
{% endif %}
                for (var i = group.x; i < calls; i += groups.x) {
{% if unit.by_rows %}
                    let item = i % call.items;
                    let row = i / call.items * call.rows;
{% else %}
                    let item = i;
{% endif %}
                    {{ unit.call }};
                    workgroupBarrier();  // until all threads are done with workgroup memory
                }
            }
{% endfor %}
            default: {}
        }
        call = load_call(number + 1u);
    }
    leave(thread.index, groups.x);
}
