// bins[b] = the weight of the keys that may still be the least that top-k or top-p keeps and whose
// next eight bits are b: one level of the search for it.
//
// Every workgroup first works out for itself what the level before has found. Weights are whole
// numbers (tokens, or probabilities over the largest in units of 2^-29), in two words of 16 bits
// and a carry, so that the sums do not depend on the order of the additions.
//
// params      Params{% if ROWS %}; all_params those of each sequence{% endif %}

// stage       Stage
// keys        u32 [{{ "rows, " if ROWS }}WIDTH]
// group_tops  u32 [{{ "rows, " if ROWS }}GROUPS]
// searches    Search [{{ "rows, " if ROWS }}STAGES]
// bins        u32 [{{ "rows, " if ROWS }}2 STAGES BINS]
// slot_mapping  (u32, u32) [rows]: sequence and slot, only of rows
//
// Threads stride over the tokens.
{% include "snippets/sampling.wgsl" %}
@group(0) @binding(0) var<storage, read> {{ "all_params: array<Params>" if ROWS else "params: Params" }};
@group(0) @binding(1) var<storage, read> stage: Stage;
@group(0) @binding(2) var<storage, read> keys: array<u32>;
@group(0) @binding(3) var<storage, read> group_tops: array<u32>;
@group(0) @binding(4) var<storage, read_write> searches: array<Search>;
@group(0) @binding(5) var<storage, read_write> bins: array<atomic<u32>>;
{% if ROWS %}
@group(0) @binding(6) var<storage, read> slot_mapping: array<vec2<u32>>;
{% endif %}

override WIDTH: u32;

{% include "snippets/narrow.wgsl" %}

var<workgroup> local_bins: array<atomic<u32>, 2 * BINS>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
{% if ROWS %}
    begin_row(wid.y);
{% endif %}
    let search = narrowed(stage, thread);
    if (wid.x == 0u && thread == 0u) {
        searches[row * STAGES + stage.index] = search;
    }
    atomicStore(&local_bins[2u * thread], 0u);
    atomicStore(&local_bins[2u * thread + 1u], 0u);
    let top = score_of(largest(thread));
    let shift = 8u * (LEVELS - 1u - stage.level);
    for (var i = wid.x * WG + thread; i < WIDTH; i += GROUPS * WG) {
        let key = keys[row * WIDTH + i];
        // The bits above those of this level; none at level 0.
        let differs = ((key ^ search.prefix) >> shift) >> 8u;
        if (key >= search.low && differs == 0u) {
            let at = 2u * ((key >> shift) & 255u);
            if (stage.mass == 1u) {
                let weight = u32(exp(score_of(key) - top) * 0x1p29 + 0.5);
                atomicAdd(&local_bins[at], weight & 0xffffu);
                atomicAdd(&local_bins[at + 1u], weight >> 16u);
            } else {
                atomicAdd(&local_bins[at], 1u);
            }
        }
    }
    workgroupBarrier();
    let low = atomicLoad(&local_bins[2u * thread]);
    let high = atomicLoad(&local_bins[2u * thread + 1u]) + (low >> 16u);
    let at = 2u * ((row * STAGES + stage.index) * BINS + thread);
    if (low > 0u || high > 0u) {
        atomicAdd(&bins[at], low & 0xffffu);
        atomicAdd(&bins[at + 1u], high);
    }
}
