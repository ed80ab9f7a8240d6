// The weights that a thread stages in a step: 32 of the 64 weights of a row.
struct Raw {
    codes: Half0,
    scale_words: ScaleWords0,
}

fn fetch(row: u32, step: u32, part: u32) -> Raw {
    return Raw(half0(unit_at0(row, step), part), scale_words0(row, step));
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
