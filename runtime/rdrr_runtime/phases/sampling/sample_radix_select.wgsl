// One level of a radix select for the smallest key that top-k or top-p keeps: the histogram
// bins[b] = the total weight of the keys that match the prefix found so far and whose next 8 bits are b.
//
// Every workgroup first evaluates the histogram of the previous level. Weights are integers, so that
// sums do not depend on the order of the additions: for top-k the number of tokens, for top-p
// probabilities relative to the largest in units of 2^-29. A sum takes two words, the lower of 16 bits.
//
// current     Step
// params      Params [sequences]
// stage       Stage
// keys        u32 [rows, WIDTH]
// selections  Selection [rows]
//
// An item is one of GROUPS workgroups of BINS threads, which stride over the tokens of a row.
{% include "snippets/step.wgsl" %}
{% include "sampling/snippets/sampling_params.wgsl" %}
{% include "sampling/snippets/selection.wgsl" %}
var<storage, read> current: Step;
var<storage, read> params: array<Params>;
var<storage, read> stage: Stage;
var<storage, read> keys: array<u32>;
var<storage, read_write> selections: array<Selection>;

override WIDTH: u32;
override GROUPS: u32;

{% include "sampling/snippets/radix_select.wgsl" %}

var<workgroup> local_bins: array<atomic<u32>, 2u * BINS>;

fn phase(item: u32, row: u32, thread: Thread) {
    let t = thread.index;
    let sequence = current.row[row].sequence;
    let search = refined_search(stage, row, params[sequence].top_k, params[sequence].top_p, t);
    if (item == 0u && t == 0u) {
        selections[row].searches[stage.index] = search;
    }
    atomicStore(&local_bins[2u * t], 0u);
    atomicStore(&local_bins[2u * t + 1u], 0u);
    let top = from_ordered(row_max_key(row, t));
    let shift = 8u * (LEVELS - 1u - stage.index % LEVELS);
    let counts_tokens = stage.index < stage.counting;
    for (var i = item * WG + t; i < WIDTH; i += GROUPS * WG) {
        let key = keys[row * WIDTH + i];
        // The bits above those of this level must match the prefix; at level 0 there are none.
        let differs = ((key ^ search.prefix) >> shift) >> 8u;
        if (key >= search.low && differs == 0u) {
            let at = 2u * ((key >> shift) & 255u);
            if (counts_tokens) {
                atomicAdd(&local_bins[at], 1u);
            } else {
                let weight = u32(exp(from_ordered(key) - top) * 0x1p29 + 0.5);
                atomicAdd(&local_bins[at], weight & 0xffffu);
                atomicAdd(&local_bins[at + 1u], weight >> 16u);
            }
        }
    }
    workgroupBarrier();
    let low = atomicLoad(&local_bins[2u * t]);
    let high = atomicLoad(&local_bins[2u * t + 1u]) + (low >> 16u);
    let at = 2u * (stage.index * BINS + t);
    if (low > 0u || high > 0u) {
        atomicAdd(&selections[row].bins[at], low & 0xffffu);
        atomicAdd(&selections[row].bins[at + 1u], high);
    }
}
