// A causal convolution along the tokens, with KERNEL taps for each channel:
//
//   u[r, c] = {{ "b[r, c] v[r, c], where a row of x is b, g, v" if GATED else "x[r, c]" }}
//   y[r, c] = {{ "g[r, c] " if GATED }}{{ ACT + "(" if ACT else "" }}{{ "factor(c) " if FACTORS }}sum_j weight[c, j] u[r - KERNEL + 1 + j, c]{{ " + bias[c]" if BIAS }}{{ ")" if ACT }}
//
// Earlier rows of the same sequence come from the pass if they are in it, else from the state, and are
// zero before slot 0.
//
// current  Step; the rows of a sequence are consecutive and in slot order
// x        {{ VALUE }} [rows, {{ "3, " if GATED }}CHANNELS]
// weight   f32 [CHANNELS, KERNEL]
{% if BIAS %}
// bias     f32 [CHANNELS]
{% endif %}
// state    f32 [sequences, KERNEL, CHANNELS]: the u of slot s is entry s mod KERNEL
{% if STORE %}
//
// This phase only writes the state: the last KERNEL rows of each sequence, of those that are kept.
{% else %}
// y        {{ VALUE }} [rows, CHANNELS]
{% endif %}
//
// An item is WG channels of a row, one for each thread. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
var<storage, read> current: Step;
var<storage, read> x: array<{{ VALUE }}>;
var<storage, read_write> state: array<f32>;
{% if not STORE %}
var<storage, read> weight: array<f32>;
{% if BIAS %}
var<storage, read> bias: array<f32>;
{% endif %}
var<storage, read_write> y: array<{{ VALUE }}>;
{% endif %}

override CHANNELS: u32;
override KERNEL: u32;

{% include "states/snippets/kept.wgsl" %}
{% if ACT and not STORE %}
{% include "snippets/activate.wgsl" %}
{% endif %}

{% if FACTORS %}
fn factor(channel: u32) -> f32 {
{% for end, number in FACTORS %}
    if (channel < {{ end }}u) {
        return {{ number }};
    }
{% endfor %}
    return 1.0;
}

{% endif %}
fn input(row: u32, channel: u32) -> f32 {
{% if GATED %}
    let first = row * 3u * CHANNELS + channel;
    return f32(x[first]) * f32(x[first + 2u * CHANNELS]);
{% else %}
    return f32(x[row * CHANNELS + channel]);
{% endif %}
}

fn entry(sequence: u32, slot: u32, channel: u32) -> u32 {
    return (sequence * KERNEL + slot % KERNEL) * CHANNELS + channel;
}

fn phase(item: u32, row: u32, thread: Thread) {
    let channel = item * WG + thread.index;
    if (channel >= CHANNELS) {
        return;
    }
    let own = current.row[row];
{% if STORE %}
    let after = row + KERNEL;
    let kept = kept_rows();
    if (row < kept && (after >= kept || current.row[after].sequence != own.sequence)) {
        state[entry(own.sequence, own.slot, channel)] = input(row, channel);
    }
{% else %}
    let latest = input(row, channel);
    var sum = latest * weight[channel * KERNEL + KERNEL - 1u];
    for (var back = 1u; back < KERNEL; back++) {
        if (own.slot < back) {
            break;
        }
        var u: f32;
        if (row >= back && current.row[row - back].sequence == own.sequence) {
            u = input(row - back, channel);
        } else {
            u = state[entry(own.sequence, own.slot - back, channel)];
        }
        sum += u * weight[channel * KERNEL + KERNEL - 1u - back];
    }
{% if FACTORS %}
    sum *= factor(channel);
{% endif %}
{% if BIAS %}
    sum += bias[channel];
{% endif %}
    let v = {{ "activate(sum)" if ACT else "sum" }};
{% if GATED %}
    y[row * CHANNELS + channel] = value(f32(x[(row * 3u + 1u) * CHANNELS + channel]) * v);
{% else %}
    y[row * CHANNELS + channel] = value(v);
{% endif %}
{% if SINGLE %}
    // No other row of this pass reads the entry: it was the input of slot - KERNEL.
    state[entry(own.sequence, own.slot, channel)] = latest;
{% endif %}
{% endif %}
}
