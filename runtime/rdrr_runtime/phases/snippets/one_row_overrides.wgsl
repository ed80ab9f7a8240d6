// Overrides of one_row_input.wgsl, apart from it: naga ends the process where a plain override follows
// one that is computed from others.
{% if INPUT == "norm" %}
override EPS: f32;
override OFFSET: f32;
{% endif %}
{% if INPUT == "combine" %}
override SPLITS: u32;
override HEAD_DIM: u32;
override SHARES: u32;            // heads times SPLITS
{% endif %}
