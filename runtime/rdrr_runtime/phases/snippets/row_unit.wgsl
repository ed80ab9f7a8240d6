// A unit of a stored row. Blocks of a flat matrix run across rows, whose units are then counted from
// the first row on.
fn load_row_unit(row: u32, unit: u32) -> array<vec4<f32>, 8> {
{% if FLAT %}
    return load_unit(0u, row * UNITS + unit);
{% else %}
    return load_unit(row * ROW_WORDS, unit);
{% endif %}
}
