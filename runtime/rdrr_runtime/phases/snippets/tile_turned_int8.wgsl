// Turned blocks in two planes of int8: a weight is 256 high + low, in units of its row's scale, since
// the factors of blocks that lie across the inputs differ from one input to the next. A part is 32
// weights.
{% include "snippets/weight_" ~ WEIGHT ~ ".wgsl" %}
{% include "snippets/planes.wgsl" %}

fn fetch0(base: u32, step: u32, part: u32) -> array<vec4<f32>, 8> {
    return load_unit(base, 2u * step + part);
}

fn unpack0(raw: array<vec4<f32>, 8>, at: u32, inverse: f32, part: u32) {
{% for i in range(8) %}
    let v{{ i }} = planes(raw[{{ i }}], inverse);
{% endfor %}
{% for half in range(2) %}
{% set own = range(4 * half, 4 * half + 4) | list %}
    tile_w0[at + (2u * part + {{ half }}u) * {{ TILE_N }}u] =
        vec4<u32>({% for i in own %}v{{ i }}.x{{ ", " if not loop.last }}{% endfor %});
    tile_w0[at + (4u + 2u * part + {{ half }}u) * {{ TILE_N }}u] =
        vec4<u32>({% for i in own %}v{{ i }}.y{{ ", " if not loop.last }}{% endfor %});
{% endfor %}
}
