// planes = blocks: repack the stored blocks of a matrix without loss into the layout of formats.py.
//
// blocks   bytes of a chunk of stored rows, each of chunk.blocks blocks
// planes   words of the whole part, of which the units of the chunk are written
// chunk    sizes of the chunk, and where it is written
//
{% set F, B = FORM, STORED %}
{% if F.column %}
// A stored row holds the weights of one input for many outputs. A thread writes 32 codes of one output,
// or the scales or super-block scales of four inputs for a group of outputs. Padding inputs are zeros.
{% else %}
// A stored row holds one output, or one block if flat blocks cross rows. A thread writes 32 codes of it;
// the first thread of a unit also writes the scales. Codes after the last block are zeros.
{% endif %}
// An item is the work of WG threads.
var<storage, read> blocks: array<u32>;
var<storage, read_write> planes: array<u32>;
var<storage, read> chunk: Chunk;

// These are not overrides, so that one pipeline serves every matrix of a type.
struct Chunk {
    blocks: u32,         // blocks of a stored row
    skip: u32,           // {{ "blocks of a row" if F.column else "stored rows" }} before those of this part
    outputs: u32,        // rows of the planes to write
    first_output: u32,   // index of the first of them in the part
    row_units: u32,      // units of a row
    rows: u32,           // stored rows of the chunk
    first: u32,          // unit of a row that the chunk begins with
    part_rows: u32,      // rows of the part
    high: u32,           // offsets of the planes, in words of 16 bytes
    scales: u32,
    super_scales: u32,
}

{% set S, ROW_UNITS, PART_ROWS = "", "chunk.row_units", "chunk.part_rows" %}
{% include "weights/snippets/unit_at.wgsl" %}

{% include "snippets/half_scale.wgsl" %}

fn byte_at(at: u32) -> u32 {
    return (blocks[at / 4u] >> (8u * (at % 4u))) & 255u;
}

fn half_at(at: u32) -> u32 {
    return byte_at(at) | (byte_at(at + 1u) << 8u);
}

// Byte offset of the block that holds an element of a stored row.
fn block_of(row: u32, element: u32) -> u32 {
    return (row * chunk.blocks + element / {{ BLOCK }}u) * {{ BLOCK_BYTES }}u;
}

fn exists(row: u32, element: u32) -> bool {
    return {{ "row < chunk.rows" if F.column else "element < chunk.blocks * " ~ BLOCK ~ "u" }};
}

{% macro bits(field) %}
    let base = block_of(row, element);
    let e = element % {{ BLOCK }}u;
    let byte = byte_at(base + {{ field.offset }}u + e / {{ field.run * field.stack }}u * {{ field.run }}u + e % {{ field.run }}u);
    let found = (byte >> (e / {{ field.run }}u % {{ field.stack }}u * {{ field.step }}u)) & {{ 2 ** field.bits - 1 }}u;
{% endmacro %}
{% set lowest = B.codes[0].bits %}
// The lower {{ lowest }} bits of the code of an element of a stored row; zero for a padding element.
fn low_bits(row: u32, element: u32) -> u32 {
    if (!exists(row, element)) {
        return 0u;
    }
{{ bits(B.codes[0]) }}    return found{{ " ^ " ~ B.zero_point ~ "u" if not F.high }};
}
{% if F.high %}

// The bits of the code above those of `low_bits`.
fn high_bits(row: u32, element: u32) -> u32 {
    if (!exists(row, element)) {
        return 0u;
    }
{{ bits(B.codes[1]) }}    return found ^ {{ B.zero_point // 16 }}u;
}
{% endif %}

// The factor of the block at `base`: its scale as f32, or its f16 scale and f16 minimum as stored.
fn factor(base: u32) -> u32 {
{% if F.minimum %}
    return half_at(base + {{ B.scale }}u) | (half_at(base + {{ B.minimum }}u) << 16u);
{% else %}
{% if B.scale_encoding == "e8m0" %}
    // 2^(e - 128); the two smallest, which are subnormal in f32, become 0.
    return (max(byte_at(base + {{ B.scale }}u), 1u) - 1u) << 23u;
{% else %}
    return bitcast<u32>(half_scale(half_at(base + {{ B.scale }}u)) * {{ 1 / 2 ** F.shift }});
{% endif %}
{% endif %}
}

{% if F.levels == 2 %}
// Scale (bits 0 to 7) and minimum (bits 8 to 15) of group `group` of the block at `base`.
fn group_scale(base: u32, group: u32) -> u32 {
{% if B.groups.encoding == "int8" %}
    return byte_at(base + {{ B.groups.offset }}u + group);
{% else %}
    let at = base + {{ B.groups.offset }}u + group % 4u;
    let a = byte_at(at);
    let b = byte_at(at + 4u);
    let c = byte_at(at + 8u);
    if (group < 4u) {
        return (a & 63u) | ((b & 63u) << 8u);
    }
    return (c & 15u) | ((a >> 6u) << 4u) | ((c >> 4u) << 8u) | ((b >> 6u) << 12u);
{% endif %}
}
{% endif %}

// Element i of the 32 codes is element {{ "element" if F.column else "element + i" }} of stored row {{ "row + i" if F.column else "row" }}.
{% set at = "row + %s, element" if F.column else "row, element + %s" %}
// Write the 32 codes of half `half` of a unit.
fn put_codes(unit: u32, half: u32, row: u32, element: u32) {
{% set words = 8 if F.bits == 8 else 4 %}
    for (var word = 0u; word < {{ words }}u; word++) {
        var bits = 0u;
        for (var i = 0u; i < 4u; i++) {
            let own = 4u * word + i;
{% if F.bits == 8 %}
            bits |= low_bits({{ at | format("own") }}) << (8u * i);
{% else %}
            bits |= (low_bits({{ at | format("own") }}) | (low_bits({{ at | format("own + 16u") }}) << 4u)) << (8u * i);
{% endif %}
        }
        planes[{{ 2 * words }}u * unit + {{ words }}u * half + word] = bits;
    }
{% if F.high %}
{% set spread = 4 * (8 // F.high) %}
    for (var word = 0u; word < {{ F.high }}u; word++) {
        var bits = 0u;
        for (var i = 0u; i < {{ spread }}u; i++) {
            let own = {{ spread }}u * word + i;
            bits |= high_bits({{ at | format("own") }}) << (8u * (i % 4u) + {{ F.high }}u * (i / 4u));
        }
        planes[4u * chunk.high + {{ 2 * F.high }}u * unit + {{ F.high }}u * half + word] = bits;
    }
{% endif %}
}
{% if F.column %}

// Write 32 codes of output `n` of the part: half unit `half` of the chunk.
fn put_column_codes(n: u32, half: u32) {
    let unit = unit_at(chunk.first_output + n, chunk.first + half / 2u);
    put_codes(unit, half % 2u, 32u * half, chunk.skip * {{ BLOCK }}u + n);
}

// Write the scales of a group of outputs for inputs 4 quad to 4 quad + 3 of the chunk.
fn put_scales(group: u32, quad: u32) {
    let own = chunk.first_output / {{ F.group }}u + group;
    let n = chunk.skip * {{ BLOCK }}u + group * {{ F.group }}u;
    let at = own * (16u * chunk.row_units) + 16u * chunk.first + quad;
{% if F.levels == 2 %}
    var scales = 0u;
    var minimums = 0u;
    for (var i = 0u; i < 4u; i++) {
        let row = 4u * quad + i;
        if (row < chunk.rows) {
            let both = group_scale(block_of(row, n), n % {{ BLOCK }}u / {{ F.group }}u);
            scales |= (both & 255u) << (8u * i);
            minimums |= (both >> 8u) << (8u * i);
        }
    }
    planes[4u * chunk.scales + {{ F.factors }}u * at] = scales;
{% if F.minimum %}
    planes[4u * chunk.scales + 2u * at + 1u] = minimums;
{% endif %}
{% else %}
    for (var i = 0u; i < 4u; i++) {
        let row = 4u * quad + i;
        planes[4u * (chunk.scales + at) + i] = select(0u, factor(block_of(min(row, chunk.rows - 1u), n)), row < chunk.rows);
    }
{% endif %}
}
{% if F.levels == 2 %}

// Write the super-block scales of a block of outputs for inputs 4 quad to 4 quad + 3 of the chunk.
fn put_super_scales(block: u32, quad: u32) {
    let own = chunk.first_output / {{ BLOCK }}u + block;
    let at = chunk.super_scales + own * ({{ 16 * F.factors }}u * chunk.row_units) + 16u * chunk.first + quad;
    for (var i = 0u; i < 4u; i++) {
        let row = 4u * quad + i;
        if (row < chunk.rows) {
            let bits = factor(block_of(row, (chunk.skip + block) * {{ BLOCK }}u));
{% if F.minimum %}
            planes[4u * at + i] = bitcast<u32>(half_scale(bits & 0xffffu) * {{ 1 / 2 ** F.shift }});
            planes[4u * (at + 16u * chunk.row_units) + i] = bitcast<u32>(half_scale(bits >> 16u));
{% else %}
            planes[4u * at + i] = bits;
{% endif %}
        }
    }
}
{% endif %}

fn phase(item: u32, thread: Thread) {
    var id = item * WG + thread.index;
    let halves = (chunk.rows + 63u) / 64u * 2u;
    if (id < chunk.outputs * halves) {
        put_column_codes(id % chunk.outputs, id / chunk.outputs);
        return;
    }
    id -= chunk.outputs * halves;
    let quads = 8u * halves;
    let scale_groups = chunk.outputs / {{ F.group }}u;
    if (id < scale_groups * quads) {
        put_scales(id % scale_groups, id / scale_groups);
        return;
    }
{% if F.levels == 2 %}
    id -= scale_groups * quads;
    let super_groups = chunk.outputs / {{ BLOCK }}u;
    if (id < super_groups * quads) {
        put_super_scales(id % super_groups, id / super_groups);
    }
{% endif %}
}
{% else %}

// Write the scales of a unit of output `output` of the part, and the super-block scale that four units share.
fn put_scales(output: u32, unit: u32, row: u32) {
    let element = 64u * unit;
    let at = unit_at(output, unit);
    let base = block_of(row, element);
{% if F.levels == 2 %}
    var bits = 0u;
{% for g in range(64 // F.group) %}
    bits |= group_scale(base, element % {{ BLOCK }}u / {{ F.group }}u + {{ g }}u) << {{ g * F.group // 2 }}u;
{% endfor %}
    planes[4u * chunk.scales + at] = bits;
    if (unit % 4u == 0u) {
        planes[4u * chunk.super_scales + super_block_at(output, unit)] = factor(base);
    }
{% else %}
    planes[4u * chunk.scales + 2u * at] = factor(base);
    var second = 0u;
    if (element + 32u < chunk.blocks * {{ BLOCK }}u) {
        second = factor(block_of(row, element + 32u));
    }
    planes[4u * chunk.scales + 2u * at + 1u] = second;
{% endif %}
}

fn phase(item: u32, thread: Thread) {
    let id = item * WG + thread.index;
    let output = id / (2u * chunk.row_units);
    if (output >= chunk.outputs) {
        return;
    }
    let row = chunk.skip + output;
    let half = id % (2u * chunk.row_units);
    let own = chunk.first_output + output;
    put_codes(unit_at(own, half / 2u), half % 2u, row, 32u * half);
    if (half % 2u == 0u && 32u * half < chunk.blocks * {{ BLOCK }}u) {
        put_scales(own, half / 2u, row);
    }
}
{% endif %}
