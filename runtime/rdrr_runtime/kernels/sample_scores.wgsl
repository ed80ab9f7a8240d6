// keys[i] = key of (logit after penalties and bias) / temperature, 0 where the mask forbids i;
// group_tops[g] = the largest of workgroup g; the bins of the searches are emptied.
//
//   seen c times:  x = x > 0 ? x / repeat : x * repeat;  x -= presence + c * frequency
//   then           x += bias[i]
//
// params      Params
// logits      f32 [WIDTH]
// counts      u32 [WIDTH]: times that a token was seen
// bias        f32 [WIDTH]
// mask        u32 [ceil(WIDTH / 32)]: bit i mod 32 of word i / 32
// keys        u32 [WIDTH]
// group_tops  u32 [GROUPS]
// bins        u32 [2 STAGES BINS]
//
// Threads stride over the tokens.
{% include "snippets/sampling.wgsl" %}
@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> counts: array<u32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> mask: array<u32>;
@group(0) @binding(5) var<storage, read_write> keys: array<u32>;
@group(0) @binding(6) var<storage, read_write> group_tops: array<u32>;
@group(0) @binding(7) var<storage, read_write> bins: array<u32>;

override WIDTH: u32;

const LARGEST = 3e38;

var<workgroup> tops: array<u32, WG>;

fn adjusted(i: u32) -> f32 {
    var x = logits[i];
    let seen = counts[i];
    if (seen > 0u) {
        x *= select(params.repeat, params.inverse_repeat, x > 0.0);
        x -= params.presence + f32(seen) * params.frequency;
    }
    return clamp((x + bias[i]) * params.inverse_temperature, -LARGEST, LARGEST);
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = wid.x * WG + thread;
    for (var i = first; i < 2u * STAGES * BINS; i += GROUPS * WG) {
        bins[i] = 0u;
    }
    var top = 0u;
    for (var i = first; i < WIDTH; i += GROUPS * WG) {
        var key = key_of(adjusted(i));
        if (params.masked == 1u && ((mask[i / 32u] >> (i % 32u)) & 1u) == 0u) {
            key = 0u;
        }
        keys[i] = key;
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
        group_tops[wid.x] = tops[0];
    }
}
