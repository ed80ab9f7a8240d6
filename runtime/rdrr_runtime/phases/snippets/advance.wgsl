// The sampled id becomes the next input, and the step moves on; run by one thread.
fn advance(id: u32) {
    tokens[0] = id;
    ring[current.ring % arrayLength(&ring)] = id;
    current.base += current.rows;
    positions[0] = current.base;
    current.rows = 1u;
    current.ring += 1u;
}
