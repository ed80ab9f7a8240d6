// keys[row * WIDTH + i] = key of (logit after penalties and bias) / temperature, 0 where the mask forbids i;
// group_tops[g] = the largest of workgroup g; the bins of the searches are emptied.
//
//   seen c times:  x = x > 0 ? x / repeat : x * repeat;  x -= presence + c * frequency
//   then           x += bias[i]
//
// params      Params{% if ROWS %}; all_params those of each sequence{% endif %}

// logits      f32 [{{ "rows, " if ROWS }}WIDTH]
// counts      u32 [{{ "sequences, COUNTS" if ROWS else "WIDTH" }}]: times that a token was seen
// bias        f32 [WIDTH]
// mask        u32 [ceil(WIDTH / 32)]: bit i mod 32 of word i / 32{% if ROWS %}; not of rows{% endif %}

// keys        u32 [{{ "rows, " if ROWS }}WIDTH]
// group_tops  u32 [{{ "rows, " if ROWS }}GROUPS]
// bins        u32 [{{ "rows, " if ROWS }}2 STAGES BINS]
// slot_mapping  (u32, u32) [rows]: sequence and slot, only of rows
//
// Threads stride over the tokens.
{% include "snippets/sampling.wgsl" %}
@group(0) @binding(0) var<storage, read> {{ "all_params: array<Params>" if ROWS else "params: Params" }};
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> counts: array<u32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> {{ "slot_mapping: array<vec2<u32>>" if ROWS else "mask: array<u32>" }};
@group(0) @binding(5) var<storage, read_write> keys: array<u32>;
@group(0) @binding(6) var<storage, read_write> group_tops: array<u32>;
@group(0) @binding(7) var<storage, read_write> bins: array<u32>;

override WIDTH: u32;
override COUNTS: u32 = 0u;       // from one sequence to the next

const LARGEST = 3e38;

var<workgroup> tops: array<u32, WG>;

fn adjusted(i: u32) -> f32 {
    var x = logits[row * WIDTH + i];
    let seen = counts[sequence * COUNTS + i];
    if (seen > 0u) {
        x *= select(params.repeat, params.inverse_repeat, x > 0.0);
        x -= params.presence + f32(seen) * params.frequency;
    }
    return clamp((x + bias[i]) * params.inverse_temperature, -LARGEST, LARGEST);
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
{% if ROWS %}
    begin_row(wid.y);
{% endif %}
    let first = wid.x * WG + thread;
    for (var i = first; i < 2u * STAGES * BINS; i += GROUPS * WG) {
        bins[row * 2u * STAGES * BINS + i] = 0u;
    }
    var top = 0u;
    for (var i = first; i < WIDTH; i += GROUPS * WG) {
{% if ROWS %}
        let key = key_of(adjusted(i));
{% else %}
        var key = key_of(adjusted(i));
        if (params.masked == 1u && ((mask[i / 32u] >> (i % 32u)) & 1u) == 0u) {
            key = 0u;
        }
{% endif %}
        keys[row * WIDTH + i] = key;
        top = max(top, key);
    }
    tops[thread] = top;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) {
            tops[thread] = max(tops[thread], tops[thread + half]);
        }
    }
    if (thread == 0u) {
        group_tops[row * GROUPS + wid.x] = tops[0];
    }
}
