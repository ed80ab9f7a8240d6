{# The module of a whole pass. All workgroups stay until the pass is done: each makes its share of the
   calls of one phase after the other, and waits for the others where a phase needs their results.

   table  u32 [calls, {{ WORDS }}]: unit, items, token rows of a call (0: the items are all calls), whether to
          wait first, and the first element of each operand
   gate   see gate.wgsl; words1, words2, words4  see handover.wgsl

   What a phase leaves for another is handed over word by word, or in buffers that are declared @coherent; then
   the other one waits for all workgroups. #}
const WG = {{ WG }}u;
const CALLS = {{ CALLS }}u;

{{ THREAD }}
{% include "gate.wgsl" %}

{% include "handover.wgsl" %}

{{ STRUCTS }}

{{ BUFFERS }}
var<storage, read> table: array<vec4<u32>>;

{{ SHARED }}

{% for unit in UNITS %}
{{ unit.text }}

{% endfor %}
struct Call {
    unit: u32,
    items: u32,
    rows: u32,
    waits: bool,
    at: array<vec4<u32>, {{ WORDS // 4 - 1 }}>,
}

// Four words at a time: every thread reads the call.
fn load_call(number: u32) -> Call {
    let first = {{ WORDS // 4 }}u * min(number, CALLS - 1u);
    let head = table[first];
    return Call(
        head.x,
        head.y,
        head.z,
        head.w != 0u,
        array<vec4<u32>, {{ WORDS // 4 - 1 }}>(
{% for i in range(1, WORDS // 4) %}
            table[first + {{ i }}u],
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
    let second_half = enter_half();
    let token_rows = {{ STEP }}.rows;
    var call = load_call(0u);
    if (has_failed(thread.index)) {
        _ = leave(thread.index, groups.x);
        return;
    }
    empty_half(!second_half, group.x, groups.x, thread.index);
    var goal = 0u;
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
{% for at in unit.offsets %}
                {{ at.variable }} = call.at[{{ loop.index0 // 4 }}][{{ loop.index0 % 4 }}]{{ " + first_word / %du" % at.words if at.words }};
{% endfor %}
{% if unit.by_rows %}
                let calls = call.items * ((token_rows + call.rows - 1u) / call.rows);
{% else %}
                let calls = call.items;
{% endif %}
                {{ "for (var i = group.x; i < calls; i += groups.x)" if unit.loops else "if (group.x < calls)" }} {
{% if unit.by_rows %}
                    let item = i % call.items;
                    let row = i / call.items * call.rows;
{% else %}
                    let item = {{ "i" if unit.loops else "group.x" }};
{% endif %}
                    {{ unit.call }};
                    workgroupBarrier();  // until all threads are done with workgroup memory
                }
            }
{% endfor %}
            // A phase that is left out waits for what it reads, and fills what it hands over.
            case {{ OMITTED }}u: {
                for (var i = thread.index; i < call.at[0][1]; i += WG) {
                    _ = taken1(first_word + call.at[0][0] + i);
                }
                workgroupBarrier();
{% for r in range(1, RANGES) %}
                for (var i = group.x * WG + thread.index; i < call.at[{{ r // 2 }}][{{ 2 * r % 4 + 1 }}]; i += groups.x * WG) {
                    put1(first_word + call.at[{{ r // 2 }}][{{ 2 * r % 4 }}] + i, 0u);
                }
{% endfor %}
            }
            default: {}
        }
        call = load_call(number + 1u);
    }
    if (leave(thread.index, groups.x)) {
        put1(0u, seen1(0u) + 1u);
    }
}
