// A unit of matrix {{ S }} as stored: 64 codes and the words of their scales.
struct Unit{{ S }} {
    codes: Halves{{ S }},
    scale_words: ScaleWords{{ S }},
}

fn unit{{ S }}(row: u32, unit: u32) -> Unit{{ S }} {
    return Unit{{ S }}(halves{{ S }}(unit_at{{ S }}(row, unit)), scale_words{{ S }}(row, unit));
}
