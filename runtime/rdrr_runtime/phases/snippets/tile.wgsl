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
    tile_w[at + 2u * part * {{ TILE_N }}u] = first_codes0(raw.codes);
    tile_w[at + (2u * part + 1u) * {{ TILE_N }}u] = last_codes0(raw.codes);
    let s = scales0(raw.scale_words, part);
{% if GROUP == 16 %}
    scale_w[at + 2u * part * {{ TILE_N }}u] = s.x;
    scale_w[at + (2u * part + 1u) * {{ TILE_N }}u] = s.y;
{% else %}
    scale_w[at + part * {{ TILE_N }}u] = s{{ ".x" if not MINIMUM }};
{% endif %}
}
{% else %}
{% include "snippets/split_int8.wgsl" %}

{% if F.values %}
alias Raw = array<vec4<u32>, 2>;

// A row may end within a step; the values read instead do not matter, because x is zero there.
fn fetch(row: u32, step: u32, part: u32) -> Raw {
    let word = step * 8u + part * 2u;
    let first = row * ROW_UNITS0;
    return Raw(
        weight0[first + min(word, ROW_UNITS0 - 1u)], weight0[first + min(word + 1u, ROW_UNITS0 - 1u)]
    );
}
{% else %}
alias Raw = array<vec4<f32>, 8>;

fn fetch(row: u32, step: u32, part: u32) -> Raw {
    return weights0(row, 2u * step + part);
}
{% endif %}

fn unpack(raw: Raw, at: u32, inverse: f32, part: u32) {
{% set sixteens = 4 // PARTS %}
{% for h in range(sixteens) %}
{% for i in range(4) %}
    let v{{ 4 * h + i }} = split_int8({{ "quad_" ~ F.values ~ "(raw[" ~ i // 2 ~ "]." ~ ["xy", "zw"][i % 2] ~ ")" if F.values else "raw[" ~ (4 * h + i) ~ "]" }}, inverse);
{% endfor %}
{% for plane in range(2) %}
    tile_w[at + ({{ 4 * plane + h }}u + {{ sixteens }}u * part) * {{ TILE_N }}u] =
        vec4<u32>({% for i in range(4) %}v{{ 4 * h + i }}.{{ "xy"[plane] }}{{ ", " if i < 3 }}{% endfor %});
{% endfor %}
{% endfor %}
}
{% endif %}
