// The weights that a thread stages in a step: {{ 64 // PARTS }} of the 64 weights of a row.
{% if PLANES == 1 %}
struct Raw {
    codes: Half0,
    scale_words: ScaleWords0,
}

fn fetch(row: u32, step: u32, part: u32) -> Raw {
    let unit = row * ROW_UNITS0 + step;
    return Raw(half0(unit, part), scale_words0(unit));
}

fn unpack(raw: Raw, at: u32, part: u32) {
    tile_w[at + 2u * part * {{ WS }}u] = first_codes0(raw.codes);
    tile_w[at + (2u * part + 1u) * {{ WS }}u] = last_codes0(raw.codes);
    let s = scales0(raw.scale_words, part);
{% if GROUP == 16 %}
    scale_w[at + 2u * part * {{ WS }}u] = s.x;
    scale_w[at + (2u * part + 1u) * {{ WS }}u] = s.y;
{% else %}
    scale_w[at + part * {{ WS }}u] = s{{ ".x" if not MINIMUM }};
{% endif %}
}
{% else %}
{% include "snippets/split_int8.wgsl" %}

alias Raw = array<vec4<u32>, 2>;

// A row may end within a step; the values read instead do not matter, because x is zero there.
fn fetch(row: u32, step: u32, part: u32) -> Raw {
    let word = step * 8u + part * 2u;
    let first = row * ROW_UNITS0;
    return Raw(
        weight0[first + min(word, ROW_UNITS0 - 1u)], weight0[first + min(word + 1u, ROW_UNITS0 - 1u)]
    );
}

fn unpack(raw: Raw, at: u32, inverse: f32, part: u32) {
{% for i in range(4) %}
    let v{{ i }} = split_int8(quad_{{ F.values }}(raw[{{ i // 2 }}].{{ ["xy", "zw"][i % 2] }}), inverse);
{% endfor %}
{% for plane in range(2) %}
    tile_w[at + ({{ 4 * plane }}u + part) * {{ WS }}u] =
        vec4<u32>({% for i in range(4) %}v{{ i }}.{{ "xy"[plane] }}{{ ", " if i < 3 }}{% endfor %});
{% endfor %}
}
{% endif %}
