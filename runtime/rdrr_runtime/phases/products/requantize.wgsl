// rows = Q8_0(weight0): round a part of a matrix to Q8_0 rows, w = scale q for each 32 inputs of an output,
// with scale = max|w| / 127.
//
// weight0  {{ "blocks along the outputs" if FORMATS[0].column else "zero-padded rows of 16-bit values" }}, layout as in formats.py
// rows     OUTPUTS rows of PAIRS times 128 inputs, layout of Q8_0 in formats.py
//
// An item is 32 outputs by 256 inputs; the items of the same outputs come first. Each of the 256 threads rounds
// 32 inputs of an output. Codes and scales pass through workgroup memory, so that consecutive threads write
// consecutive words. Inputs from the last unit of weight0 on repeat it; no product reads them.
{% if FORMATS[0].column %}
// The factors of the inputs, which the outputs of a group share, are staged in workgroup memory first.
{% endif %}
{% set F = FORMATS[0] %}
{% if F.column %}
{% set GROUPS = 32 // F.group %}
{% endif %}
{% set unpacked = "unpack4xI8" if F.signed else "unpack4xU8" %}
var<storage, read> weight0: array<vec4<u32>>;
var<storage, read_write> rows: array<vec4<u32>>;

override FIRST: u32;             // row of weight0 that becomes the first, a multiple of 32
override OUTPUTS: u32;
override PAIRS: u32;             // pairs of units of a row
override TARGET_SCALES: u32;     // offset of the scales in rows, in words of 16 bytes

{% if F.column %}
var<workgroup> factors: array<vec4<f32>, {{ GROUPS * 72 }}>;   // [groups, 8 times 32 inputs, and 4 for padding]
{% if F.minimum %}
var<workgroup> minimums: array<vec4<f32>, {{ GROUPS * 72 }}>;
{% endif %}
{% endif %}
var<workgroup> codes: array<vec4<u32>, {{ 32 * 17 }}>;         // [outputs, 16 times 16 codes, and one for padding]
var<workgroup> row_factors: array<f32, 256>;             // [outputs, 8 times 32 inputs]

{% include "weights/snippets/weights.wgsl" %}
{% set HALVES = False %}
{% include "products/snippets/int8_group.wgsl" %}

fn phase(item: u32, thread: Thread) {
    let items = (PAIRS + 1u) / 2u;   // of the same outputs
    let output = item / items * 32u;
    let pair = item % items * 2u;
    let t = thread.index;
    // 8 consecutive threads read contiguous bytes of an output.
    let own = t / 8u;
    let part = t % 8u;
    let source = FIRST + min(output + own, OUTPUTS - 1u);
{% if F.values %}
{% for i in range(4) %}
    let v{{ i }} = weight0[unit_at0(source, min(16u * pair + 4u * part + {{ i }}u, ROW_UNITS0 - 1u))];
{% endfor %}
    let made = int8_group(array<vec4<f32>, 8>(
{% for i in range(4) %}
        quad_{{ F.values }}(v{{ i }}.xy), quad_{{ F.values }}(v{{ i }}.zw),
{% endfor %}
    ));
{% else %}
    if (t < {{ GROUPS * 64 }}u) {
        let scales = unpacked_scales0(stored_scales0(
            group0(FIRST + output + t / 64u * {{ F.group }}u), min(32u * pair + t % 64u, 16u * ROW_UNITS0 - 1u)
        ));
        let to = t + t / 8u;
        factors[to] = scales.scale;
{% if F.minimum %}
        minimums[to] = scales.minimum;
{% endif %}
    }
    let unit = min(2u * pair + part / 2u, ROW_UNITS0 - 1u);
    let half = half0(unit_at0(source, unit), part % 2u);
    let first = first_codes0(half);
    let last = last_codes0(half);
    workgroupBarrier();
    let at = {{ "own / " ~ F.group ~ "u * 72u + " if GROUPS > 1 }}9u * part;
    let made = int8_group(array<vec4<f32>, 8>(
{% for i in range(8) %}
        factors[at + {{ i }}u] * vec4<f32>({{ unpacked }}({{ "last" if i >= 4 else "first" }}[{{ i % 4 }}])){{ " - minimums[at + " ~ i ~ "u]" if F.minimum }},
{% endfor %}
    ));
{% endif %}
    codes[own * 17u + 2u * part] = made.first;
    codes[own * 17u + 2u * part + 1u] = made.last;
    row_factors[own * 8u + part] = made.factors.x;
    workgroupBarrier();
{% for i in range(2) %}
    {
        let row = t / 16u + {{ 16 * i }}u;
        let word = t % 16u;
        if (output + row < OUTPUTS && pair + word / 8u < PAIRS) {
            rows[(output + row) * 8u * PAIRS + 8u * pair + word] = codes[row * 17u + word];
        }
    }
{% endfor %}
    let row = t / 2u;
    if (t < 64u && output + row < OUTPUTS && pair + t % 2u < PAIRS) {
        rows[TARGET_SCALES + (output + row) * PAIRS + pair + t % 2u] = bitcast<vec4<u32>>(vec4<f32>(
            row_factors[4u * t], row_factors[4u * t + 1u], row_factors[4u * t + 2u], row_factors[4u * t + 3u]
        ));
    }
}
