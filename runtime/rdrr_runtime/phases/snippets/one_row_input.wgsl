// The input of a product with one token row, four elements at a time: as it is, with the gain of its
// norm (whose common factor is applied at the end), or joined from the parts of split attention.
{% if INPUT == "combine" %}
var<workgroup> shares: array<f32, SHARES>;  // largest score of each part of each head
var<workgroup> final_shares: array<f32, SHARES>;
var<workgroup> masses: array<f32, SHARES>;
var<workgroup> live: u32;  // parts that have keys: equally many in all heads of a token

// Two reads of memory and no loop but over the parts of a head, all heads at once: the whole
// workgroup waits for this.
fn prepare(t: u32) {
    for (var i = t; i < SHARES; i += WG) {
        let part = stats[i];
        shares[i] = part.x;
        masses[i] = part.y;
    }
    workgroupBarrier();
    for (var i = t; i < SHARES; i += WG) {
        let first = i / SPLITS * SPLITS;
        var most = -3.0e38;
        for (var s = 0u; s < SPLITS; s++) {
            most = max(most, select(-3.0e38, shares[first + s], masses[first + s] > 0.0));
        }
        var mass = 0.0;
        var parts = 0u;
        for (var s = 0u; s < SPLITS; s++) {
            let has_keys = masses[first + s] > 0.0;
            mass += select(0.0, exp(shares[first + s] - most) * masses[first + s], has_keys);
            parts = select(parts, s + 1u, has_keys);
        }
        final_shares[i] = select(0.0, exp(shares[i] - most) / mass, masses[i] > 0.0);
        if (i == 0u) {
            live = parts;
        }
    }
    workgroupBarrier();
}
{% endif %}

{% if INPUT != "quantized" %}
// Four inputs from element 4 i on, without the norm's common factor, whose squares it adds to totals.x.
fn input(i: u32, totals: ptr<function, vec2<f32>>) -> vec4<f32> {
    if (4u * i >= K) {
        return vec4<f32>(0.0);
    }
{% if INPUT == "norm" %}
    let v = vec4<f32>(x[i]);
    (*totals).x += dot(v, v);
    return v * (OFFSET + gain[i]);
{% elif INPUT == "combine" %}
    let width = HEAD_DIM / 4u;
    let first = i / width * SPLITS;
    var sum = vec4<f32>(0.0);
    // Four at a time, so that their loads overlap. Parts without keys come last; their share is 0.
    for (var s = 0u; s < live; s += 4u) {
{% for j in range(4) %}
        let share{{ j }} = final_shares[first + min(s + {{ j }}u, SPLITS - 1u)];
        let part{{ j }} = x[(first + min(s + {{ j }}u, SPLITS - 1u)) * width + i % width];
{% endfor %}
{% for j in range(4) %}
        if (s + {{ j }}u < live) {
            sum += share{{ j }} * part{{ j }};
        }
{% endfor %}
    }
    return sum;
{% else %}
    return vec4<f32>(x[i]);
{% endif %}
}

fn largest(v: vec4<f32>) -> f32 {
    let a = abs(v);
    return max(max(a.x, a.y), max(a.z, a.w));
}
{% endif %}
