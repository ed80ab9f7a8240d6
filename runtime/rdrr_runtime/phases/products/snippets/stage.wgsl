// Stage in(x) in workgroup memory{% if INT8 %}, as int8: x = scale q for each
// 16 elements, with scale = max|x| / 127. Four threads share a scale; they exchange their values by
// subgroup shuffles if subgroups have at least 4 threads{% endif %}.
{% set STAGED = "STAGED" if COLUMN and DOWN else STAGES ~ "u * K_STAGED" %}
{% set UNIT_VECTORS = 4 if INT8 else (FORMATS | map(attribute="unit") | max) // 4 %}
var<workgroup> staged: array<{{ "vec4<u32>" if INT8 else "vec4<f32>" }}, {{ STAGED }} / {{ 16 if INT8 else 4 }}u>;
{% if INT8 %}
var<workgroup> scales: array<f32, {{ STAGED }} / 16u>;
{% if not COLUMN %}
var<workgroup> sums: array<f32, K_STAGED / 16u>;  // of 16 elements as rounded
{% endif %}
{% endif %}

// Neighbouring threads read the same vector of neighbouring units, {{ UNIT_VECTORS }} vectors apart.
{% if UNIT_VECTORS >= 4 %}
// They would lie in the same banks of workgroup memory, so the order of a unit's vectors is swizzled.
{% else %}
// Swizzling them would cost more than reading from the same banks one after the other.
{% endif %}
fn swizzle_of(at: u32) -> u32 {
    return {{ "(at >> 3u) & 3u" if UNIT_VECTORS == 4 else "(at >> 4u) & 7u" if UNIT_VECTORS == 16 else "0u" }};
}

// Where vector `at` lies. All vectors of a unit have the same swizzle.
fn place(at: u32) -> u32 {
    return at ^ swizzle_of(at);
}

{% if INPUT == "quantized" %}
fn stage(thread: Thread) {
{% if WHOLE %}
    {
        let first = thread.index;
{% else %}
    for (var first = thread.index; first < K_STAGED / 16u; first += {{ HELD }}u * WG) {
{% endif %}
{% for h in range(HELD) %}
        let i{{ h }} = first + {{ h }}u * WG;
        let codes{{ h }} = x[min(i{{ h }}, K / 16u - 1u)];
        let scale{{ h }} = x_scales[min(i{{ h }}, K / 16u - 1u)];
{% endfor %}
{% for h in range(HELD) %}
        if (i{{ h }} < K_STAGED / 16u) {
            let inside = 16u * i{{ h }} < K;
            staged[place(i{{ h }})] = select(vec4<u32>(0u), codes{{ h }}, inside);
            scales[i{{ h }}] = select(0.0, scale{{ h }}.x, inside);
            sums[i{{ h }}] = select(0.0, scale{{ h }}.x * f32(bitcast<i32>(scale{{ h }}.y)), inside);
        }
{% endfor %}
    }
}
{% else %}
{% if INT8 %}

// Quantize four elements of a group of 16 whose largest magnitude is `amax`.
fn codes_of(v: vec4<f32>, amax: f32) -> u32 {
    let inverse = select(0.0, 127.0 / amax, amax > 0.0);
    return pack4xI8(vec4<i32>(round(v * inverse)));
}

// Stage 16 elements. One thread writes the whole vector, because a write to one component may rewrite the
// others and so undo what other threads write there.
fn stage16(at: u32, codes: vec4<u32>, amax: f32) {
    let scale = amax / 127.0;
    staged[place(at)] = codes;
    scales[at] = scale;
{% if not COLUMN %}
    sums[at] = scale * f32(dot16(0i, codes, vec4<u32>(0x01010101u)));
{% endif %}
}

var<workgroup> shared_max: array<u32, WG>;  // as bits
var<workgroup> shared_codes: array<u32, WG>;

// The index of the first quad of inputs that this thread stages; four threads of a subgroup that exchange
// their values have consecutive ones.
fn first_quad(thread: Thread, subgroup_size: u32) -> u32 {
{% if SUBGROUPS %}
    if (subgroup_size >= 4u) {
        return thread.subgroup * subgroup_size + thread.lane;
    }
{% endif %}
    return thread.index;
}

// Stage quad `at`, with values `v`, if it is inside of the input. All threads of a workgroup call this.
fn stage_quad(thread: Thread, subgroup_size: u32, at: u32, inside: bool, v: vec4<f32>) {
{% if SUBGROUPS %}
    if (subgroup_size >= 4u) {
        var bits = bits_of_abs_max(v);
        bits = max(bits, subgroupShuffleXor(bits, 1u));
        bits = max(bits, subgroupShuffleXor(bits, 2u));
        let amax = bitcast<f32>(bits);
        let own = codes_of(v, amax);
        let codes = vec4<u32>(
            own, subgroupShuffleXor(own, 1u), subgroupShuffleXor(own, 2u), subgroupShuffleXor(own, 3u)
        );
        if (inside && at % 4u == 0u) {
            stage16(at / 4u, codes, amax);
        }
        return;
    }
{% endif %}
    let t = thread.index;
    workgroupBarrier();
    shared_max[t] = bits_of_abs_max(v);
    workgroupBarrier();
    let first = t & ~3u;
    let bits = max(max(shared_max[first], shared_max[first + 1u]),
                   max(shared_max[first + 2u], shared_max[first + 3u]));
    let amax = bitcast<f32>(bits);
    shared_codes[t] = codes_of(v, amax);
    workgroupBarrier();
    if (inside && at % 4u == 0u) {
        let codes = vec4<u32>(
            shared_codes[t], shared_codes[t + 1u], shared_codes[t + 2u], shared_codes[t + 3u]
        );
        stage16(at / 4u, codes, amax);
    }
}
{% endif %}

{% if not COLUMN %}
// Stage the input. Returns this thread's sum of squares for a norm.
fn stage(thread: Thread, subgroup_size: u32) -> f32 {
    var squares = 0.0;
    let end = K_STAGED / 4u;  // a multiple of 16, so that the 4 threads of a scale are never split
{% if not INT8 %}
    for (var i = thread.index; i < end; i += WG) {
        staged[place(i)] = input(i, &squares);
    }
{% else %}
{% if WHOLE %}
    {
        let i = first_quad(thread, subgroup_size);
{% else %}
    for (var first = 0u; first < end; first += {{ HELD }}u * WG) {
        let i = first + first_quad(thread, subgroup_size);
{% endif %}
{% if HELD == 1 %}
        var v = vec4<f32>(0.0);
        if (i < end) {
            v = input(i, &squares);
        }
        stage_quad(thread, subgroup_size, i, i < end, v);
{% else %}
        // All of them are looked at before the first one is waited for.
{% for h in range(HELD) %}
        let i{{ h }} = i + {{ h }}u * WG;
{% if INPUT == "norm" %}
        let gain{{ h }} = gain[min(i{{ h }}, K / 4u - 1u)];
{% endif %}
{% endfor %}
{% for h in range(HELD) %}
        let x{{ h }} = vec4<f32>(x[min(i{{ h }}, K / 4u - 1u)]);
{% endfor %}
{% for h in range(HELD) %}
        let v{{ h }} = select(vec4<f32>(0.0), x{{ h }}, 4u * i{{ h }} < K);
        squares += dot(v{{ h }}, v{{ h }});
        stage_quad(thread, subgroup_size, i{{ h }}, i{{ h }} < end, v{{ h }}{{ " * (OFFSET + gain" ~ h ~ ")" if INPUT == "norm" }});
{% endfor %}
{% endif %}
    }
{% endif %}
    return squares;
}
{% endif %}
{% endif %}
