// Evaluates a level of a radix select: which bin of the last histogram contains the threshold.
struct Stage {
    index: u32,    // number of stages before this one
    counting: u32, // number of stages that count tokens (top-k); later ones sum probabilities (top-p)
}

var<workgroup> sums: array<f32, BINS>;
var<workgroup> chosen_bin: atomic<u32>;

fn bin_weight(row: u32, stage: u32, bin: u32) -> f32 {
    let at = 2u * (stage * BINS + bin);
    let low = atomicLoad(&selections[row].bins[at]);
    return f32(low) + 65536.0 * f32(atomicLoad(&selections[row].bins[at + 1u]));
}

// The search after the histogram of the previous stage; the same in every workgroup.
fn refined_search(stage: Stage, row: u32, top_k: f32, top_p: f32, thread: u32) -> Search {
    if (stage.index == 0u) {
        return Search(1u, 0u, top_k, 0u);
    }
    let last = stage.index - 1u;
    let level = last % LEVELS;
    // Thread t reads the bin with the t-th largest scores; then a prefix sum over all bins.
    sums[thread] = bin_weight(row, last, BINS - 1u - thread);
    if (thread == 0u) {
        atomicStore(&chosen_bin, BINS);
    }
    for (var stride = 1u; stride < BINS; stride *= 2u) {
        workgroupBarrier();
        var mine = sums[thread];
        if (thread >= stride) {
            mine += sums[thread - stride];
        }
        workgroupBarrier();
        sums[thread] = mine;
    }
    workgroupBarrier();
    var search = selections[row].searches[last];
    if (last >= stage.counting && level == 0u) {
        search.remaining = top_p * sums[BINS - 1u];
    }
    if (search.remaining <= sums[thread]) {
        atomicMin(&chosen_bin, thread);
    }
    workgroupBarrier();
    // If no bin contains the threshold, all tokens are kept: the last bin excludes none.
    let bin = min(atomicLoad(&chosen_bin), BINS - 1u);
    if (bin > 0u) {
        search.remaining -= sums[bin - 1u];
    }
    search.prefix |= (BINS - 1u - bin) << (8u * (LEVELS - 1u - level));
    if (level == LEVELS - 1u) {
        search.low = max(search.prefix, search.low);
        search.prefix = 0u;
    }
    return search;
}

// Key of the largest score of a row.
fn row_max_key(row: u32, thread: u32) -> u32 {
    var key = 0u;
    if (thread < GROUPS) {
        key = selections[row].max_keys[thread];
    }
    return workgroup_max_key(key, thread);
}
