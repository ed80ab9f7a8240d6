// The input times the factors of one group of outputs in workgroup memory, as int8 with a scale
// for each 16 elements, at stage 0 or 1; sums of squares and of minimums are kept for `kept_sums`.
// Four threads share a scale: by shuffles where subgroups are that wide.
var<workgroup> kept: array<vec3<f32>, WG>;  // squares of x, minimums of stage 0, of stage 1

struct Scaled {
    value: vec4<f32>,
    low: f32,
}

fn scaled(segment: u32, group: vec2<u32>, i: u32, v: vec4<f32>) -> Scaled {
{% for type in SEGMENTS %}
    if (segment == {{ loop.index0 }}u) {
        return factor{{ loop.index0 }}(group, i, v);
    }
{% endfor %}
    return Scaled(v, 0.0);
}

fn group_of(segment: u32, row: u32) -> vec2<u32> {
{% for type in SEGMENTS %}
    if (segment == {{ loop.index0 }}u) {
        return group_of{{ loop.index0 }}(row);
    }
{% endfor %}
    return vec2<u32>(0u);
}

// Quantize elements 4 i to 4 i + 3, whose group's largest magnitude is `most`.
fn quantize(at: u32, i: u32, v: vec4<f32>, most: f32) {
    let inverse = select(0.0, 127.0 / most, most > 0.0);
    staged[at + i / 4u][i % 4u] = pack4xI8(vec4<i32>(round(v * inverse)));
    if (i % 4u == 0u) {
        scales[at + i / 4u] = most / 127.0;
    }
}

{% if not SUBGROUPS %}
var<workgroup> shared_max: array<f32, WG>;

{% endif %}
fn stage(thread: Thread, subgroup_size: u32, segment: u32, row: u32, number: u32) {
    var squared = 0.0;
    var low = 0.0;
    let at = number * (K_STAGED / 16u);
    let end = K_STAGED / 4u;  // a multiple of 64, so that neighbours never part
    let group = group_of(segment, row);
{% if SUBGROUPS %}
    if (subgroup_size >= 4u) {
        // All threads make every round, since Tint wants shuffles where none has left.
        let mine = thread.subgroup * subgroup_size + thread.lane;
        for (var first = 0u; first < end; first += WG) {
            let i = first + mine;
            var one = Scaled(vec4<f32>(0.0), 0.0);
            if (i < end) {
                one = scaled(segment, group, i, input(i, &squared));
            }
            low += one.low;
            var most = largest(one.value);
            most = max(most, subgroupShuffleXor(most, 1u));
            most = max(most, subgroupShuffleXor(most, 2u));
            if (i < end) {
                quantize(at, i, one.value, most);
            }
        }
    } else {
        for (var i = 4u * thread.index; i < end; i += 4u * WG) {
            stage_alone(segment, group, at, i, &squared, &low);
        }
    }
    keep(vec3<f32>(subgroupAdd(squared), subgroupAdd(low), 0.0), thread, number);
{% else %}
    for (var i = 4u * thread.index; i < end; i += 4u * WG) {
        stage_alone(segment, group, at, i, &squared, &low);
    }
    keep(vec3<f32>(squared, low, 0.0), thread, number);
{% endif %}
}

// A whole group of 16 by one thread.
fn stage_alone(
    segment: u32, group: vec2<u32>, at: u32, i: u32,
    squared: ptr<function, f32>, low: ptr<function, f32>,
) {
    var most = 0.0;
{% for j in range(4) %}
    let one{{ j }} = scaled(segment, group, i + {{ j }}u, input(i + {{ j }}u, squared));
    *low += one{{ j }}.low;
    most = max(most, largest(one{{ j }}.value));
{% endfor %}
{% for j in range(4) %}
    quantize(at, i + {{ j }}u, one{{ j }}.value, most);
{% endfor %}
}

// x: squares; y: minimums of this stage.
fn keep(sums: vec3<f32>, thread: Thread, number: u32) {
    let mine = select(vec3<f32>(sums.x, sums.y, 0.0), vec3<f32>(sums.x, 0.0, sums.y), number == 1u);
    let slot = {{ "thread.subgroup" if SUBGROUPS else "thread.index" }};
{% if SUBGROUPS %}
    if (thread.lane != 0u) {
        return;
    }
{% endif %}
    if (number == 0u) {
        kept[slot] = mine;
    } else {
        kept[slot] += mine;
    }
}

// After a barrier: the sums over the workgroup.
fn kept_sums(thread: Thread) -> vec3<f32> {
    var total = vec3<f32>(0.0);
    for (var i = 0u; i < {{ "thread.subgroups" if SUBGROUPS else "WG" }}; i++) {
        total += kept[i];
    }
    return total;
}
