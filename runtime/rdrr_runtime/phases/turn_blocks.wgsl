// turned[n, k] = stored[k, n]: blocks stored by columns, reordered without loss for products with one
// row: codes by rows of K that are packed again, and beside them the factors of each group of
// outputs, along k.
//
// stored   [INPUTS, ROW_WORDS] words of type {{ WEIGHT }} as packing.py leaves them
// turned   codes [OUTPUTS, K / 64 units], then factors for each {{ BLOCK }} outputs; see
//          snippets/turned_{{ WEIGHT }}.wgsl. Inputs beyond INPUTS get zeros.
//
// A thread makes one word.
@group(0) @binding(0) var<storage, read> stored: array<u32>;
@group(0) @binding(1) var<storage, read_write> turned: array<u32>;

override INPUTS: u32;
override ROW_WORDS: u32;
override K: u32;                 // INPUTS rounded up to whole units
override CODE_WORDS: u32;        // of all outputs
override WORDS: u32;             // with the factors

{% include "snippets/turn_" ~ WEIGHT ~ ".wgsl" %}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let word = (wid.x + wid.y * groups.x) * 64u + thread;
    if (word >= WORDS) {
        return;
    }
    if (word >= CODE_WORDS) {
        turned[word] = factor_word(word - CODE_WORDS);
        return;
    }
    let per_unit = {{ UNIT_WORDS }}u;
    let unit = word / per_unit;
    turned[word] = code_word(unit / (K / 64u), unit % (K / 64u) * 64u, word % per_unit);
}
