// A unit of matrix {{ S }} as stored: 64 codes and the words of their scales.
struct Unit{{ S }} {
    codes: Halves{{ S }},
    scale_words: ScaleWords{{ S }},
}

fn unit{{ S }}(row: u32, unit: u32) -> Unit{{ S }} {
    let at = row * ROW_UNITS{{ S }} + unit;
    return Unit{{ S }}(halves{{ S }}(at), scale_words{{ S }}(at));
}
