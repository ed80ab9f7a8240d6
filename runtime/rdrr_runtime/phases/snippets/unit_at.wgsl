// Index of a unit of a row among all units of matrix {{ S }}.
fn unit_at{{ S }}(row: u32, unit: u32) -> u32 {
    return row * ROW_UNITS{{ S }} + unit;
}
