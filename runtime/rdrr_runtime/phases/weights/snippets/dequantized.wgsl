{# A shader may set FACTOR, such as "2.0 * ", for weights in blocks along K. #}
{% set factor = FACTOR if FACTOR is defined and not (F.values or F.column) else "" %}
// 32 weights of a row of matrix {{ S }} as stored, {{ "without their scales" if F.column else "with their scales" if not F.values else "four or eight values in a vector" }}.
struct Stored{{ S }} {
{% if F.values %}
    words: array<vec4<u32>, {{ 8 if F.values == "f32" else 4 }}>,
{% else %}
    codes: Half{{ S }},
{% if not F.column %}
    scale_words: ScaleWords{{ S }},
{% endif %}
{% endif %}
}

// Load the inputs 32 half to 32 half + 31 of a row.
fn stored{{ S }}(row: u32, half: u32) -> Stored{{ S }} {
{% if F.values %}
    // A row may end within the 32 weights; the values read instead are multiplied by zero.
    let last = ROW_UNITS{{ S }} - 1u;
    var stored: Stored{{ S }};
{% set words = 8 if F.values == "f32" else 4 %}
{% for i in range(words) %}
    stored.words[{{ i }}] = weight{{ S }}[unit_at{{ S }}(row, min({{ words }}u * half + {{ i }}u, last))];
{% endfor %}
    return stored;
{% elif F.column %}
    return Stored{{ S }}(half{{ S }}(unit_at{{ S }}(row, half / 2u), half % 2u));
{% else %}
    return Stored{{ S }}(half{{ S }}(unit_at{{ S }}(row, half / 2u), half % 2u), scale_words{{ S }}(row, half / 2u));
{% endif %}
}

// Dequantize what was loaded{{ ", multiplied by FACTOR" if factor }}.
fn dequantized{{ S }}(stored: Stored{{ S }}, row: u32, half: u32) -> array<vec4<f32>, 8> {
    var w: array<vec4<f32>, 8>;
{% if F.values == "f32" %}
{% for i in range(8) %}
    w[{{ i }}] = bitcast<vec4<f32>>(stored.words[{{ i }}]);
{% endfor %}
{% elif F.values %}
{% for i in range(4) %}
    w[{{ 2 * i }}] = quad_{{ F.values }}(stored.words[{{ i }}].xy);
    w[{{ 2 * i + 1 }}] = quad_{{ F.values }}(stored.words[{{ i }}].zw);
{% endfor %}
{% else %}
{% set unpacked = "unpack4xI8" if F.signed else "unpack4xU8" %}
    let codes0 = first_codes{{ S }}(stored.codes);
    let codes1 = last_codes{{ S }}(stored.codes);
{% if F.column %}
    let group = group{{ S }}(row);
{% for i in range(8) %}
{% if F.levels == 2 %}
{% set per_word = 2 if F.minimum else 4 %}
{% if i % per_word == 0 %}
    let bytes{{ i // per_word }} = weight{{ S }}[group.x + {{ 8 // per_word }}u * half + {{ i // per_word }}u];
{% endif %}
    let f{{ i }} = unpacked_scales{{ S }}(stored_with{{ S }}(bytes{{ i // per_word }}.{{ ["xy", "zw"][i % 2] if F.minimum else "xyzw"[i % 4] }}, group, 8u * half + {{ i }}u));
{% else %}
    let f{{ i }} = unpacked_scales{{ S }}(stored_scales{{ S }}(group, 8u * half + {{ i }}u));
{% endif %}
    w[{{ i }}] = f{{ i }}.scale * vec4<f32>({{ unpacked }}(codes{{ i // 4 }}[{{ i % 4 }}])){{ " - f" ~ i ~ ".minimum" if F.minimum }};
{% endfor %}
{% else %}
    let s = {{ factor }}scales{{ S }}(stored.scale_words, half % 2u);
{% for i in range(8) %}
    w[{{ i }}] = s.{{ "y" if F.group == 16 and i >= 4 else "x" }} * vec4<f32>({{ unpacked }}(codes{{ i // 4 }}[{{ i % 4 }}])){{ " - s.y" if F.minimum }};
{% endfor %}
{% endif %}
{% endif %}
    return w;
}

// Dequantize 32 weights of a row of matrix {{ S }}: inputs 32 half to 32 half + 31.
fn weights{{ S }}(row: u32, half: u32) -> array<vec4<f32>, 8> {
    return dequantized{{ S }}(stored{{ S }}(row, half), row, half);
}
