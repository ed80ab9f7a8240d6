// Inputs of the rows of an item in workgroup memory.
{% if STAGED > 1 %}
override PART: u32;            // units that are staged at a time
{% endif %}
override STAGED_VECTORS: u32;  // 5 for each row and unit; naga cannot compile an expression here
var<workgroup> staged: array<vec4<u32>, STAGED_VECTORS>;

{% if NORM %}
{% include "products/snippets/stage_normed.wgsl" %}
{% else %}
// Stage the inputs of all rows, from unit `first` on.
fn stage(row: u32, first: u32, t: u32) {
    // Rows that the step does not have are not written.
    for (var i = t; i < STAGED_VECTORS; i += {{ LOADS }}u * WG) {
{% for l in range(LOADS) %}
        let at{{ l }} = min(i + {{ l }}u * WG, STAGED_VECTORS - 1u);
{% endfor %}
{% for l in range(LOADS) %}
        let v{{ l }} = x[(5u * row + at{{ l }} / {{ PART }}) * UNITS + min(first + at{{ l }} % {{ PART }}, UNITS - 1u)];
{% endfor %}
{% for l in range(LOADS) %}
        if (row + at{{ l }} / (5u * {{ PART }}) < current.rows) {
            staged[at{{ l }}] = v{{ l }};
        }
{% endfor %}
    }
    workgroupBarrier();
}
{% endif %}
