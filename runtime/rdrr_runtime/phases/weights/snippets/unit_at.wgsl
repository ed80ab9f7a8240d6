{# The order of the units of a matrix. ROW_UNITS and PART_ROWS are the units of a row and the rows of the part. #}
// Index of a unit among all units of {{ "matrix " ~ S if S is number else "the part" }}.
fn unit_at{{ S }}(row: u32, unit: u32) -> u32 {
    return {{ "unit * " ~ PART_ROWS ~ " + row" if F.units_first else "row * " ~ ROW_UNITS ~ " + unit" }};
}
{% if F.levels == 2 and not F.column %}

// Index of the super-block that a unit belongs to.
fn super_block_at{{ S }}(row: u32, unit: u32) -> u32 {
    return {{ "unit / 4u * " ~ PART_ROWS ~ " + row" if F.units_first else "unit_at" ~ S ~ "(row, unit) / 4u" }};
}
{% endif %}
