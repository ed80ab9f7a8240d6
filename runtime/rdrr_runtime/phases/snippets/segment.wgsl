// The text that a token row belongs to, in passes over packed texts; records.py describes it.
struct Segment {
    first: u32,  // slot of the first token of the text
    end: u32,    // slot after its last one
    kind: u32,   // type of the token
}

var<storage, read> segments: array<Segment>;  // by slot
