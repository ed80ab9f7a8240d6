{# The shader module of one phase: the declarations that the executor adds, the phase itself, and the
   entry point, which makes one call of the phase in each workgroup. The constants come first, because
   naga ends the process if a plain override follows one that is computed from others. #}
override WG: u32;
{% if "row" in PARAMETERS %}
override ITEM_ROWS: u32 = 1u;  // token rows of a call
{% endif %}
{% if FLAT %}
override ITEMS: u32;
{% endif %}
{% if STOP is not none %}
override STOPPED_AT: u32;
@group(0) @binding({{ STOP }}) var<storage, read> stopped: array<u32>;
{% endif %}

{% include "snippets/thread.wgsl" %}

{{ PHASE }}
@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
{% if FLAT %}
    @builtin(num_workgroups) groups: vec3<u32>,
{% endif %}
{% if SUBGROUPS and "subgroup_size" in PARAMETERS %}
    @builtin(subgroup_size) subgroup_size: u32,
{% endif %}
    thread: Thread,
) {
{% if STOP is not none %}
    if (stopped[STOPPED_AT] != 0u) {
        return;
    }
{% endif %}
{% if FLAT %}
    let item = group.x + group.y * groups.x;
    if (item >= ITEMS) {
        return;
    }
{% else %}
    let item = group.x;
{% endif %}
{% if "row" in PARAMETERS %}
    let row = group.z * ITEM_ROWS;
{% endif %}
    phase({{ PARAMETERS | join(", ") }});
}
