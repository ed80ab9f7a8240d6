// One step of the search for a threshold: which bin of the last histogram holds it.
struct Stage {
    index: u32,    // stages before it
    counting: u32, // stages that count tokens (top-k); those after weigh probabilities (top-p)
}

var<workgroup> sums: array<f32, BINS>;
var<workgroup> chosen: atomic<u32>;

fn weight_of_bin(row: u32, stage: u32, bin: u32) -> f32 {
    let at = 2u * (stage * BINS + bin);
    let low = atomicLoad(&selections[row].bins[at]);
    return f32(low) + 65536.0 * f32(atomicLoad(&selections[row].bins[at + 1u]));
}

// The search as the histogram of the stage before leaves it; the same in every workgroup.
fn narrowed(stage: Stage, row: u32, top_k: f32, top_p: f32, thread: u32) -> Search {
    if (stage.index == 0u) {
        return Search(1u, 0u, top_k, 0u);
    }
    let last = stage.index - 1u;
    let level = last % LEVELS;
    // Thread t has the bin of the t-th largest scores.
    sums[thread] = weight_of_bin(row, last, BINS - 1u - thread);
    if (thread == 0u) {
        atomicStore(&chosen, BINS);
    }
    for (var reach = 1u; reach < BINS; reach *= 2u) {
        workgroupBarrier();
        var mine = sums[thread];
        if (thread >= reach) {
            mine += sums[thread - reach];
        }
        workgroupBarrier();
        sums[thread] = mine;
    }
    workgroupBarrier();
    var search = selections[row].searches[last];
    if (last >= stage.counting && level == 0u) {
        search.goal = top_p * sums[BINS - 1u];
    }
    if (search.goal <= sums[thread]) {
        atomicMin(&chosen, thread);
    }
    workgroupBarrier();
    // In no bin: all tokens are kept, and the last bin leaves none out.
    let bin = min(atomicLoad(&chosen), BINS - 1u);
    if (bin > 0u) {
        search.goal -= sums[bin - 1u];
    }
    search.prefix |= (BINS - 1u - bin) << (8u * (LEVELS - 1u - level));
    if (level == LEVELS - 1u) {
        search.low = max(search.prefix, search.low);
        search.prefix = 0u;
    }
    return search;
}

// Key of the row's largest score.
fn largest(row: u32, thread: u32) -> u32 {
    var key = 0u;
    if (thread < GROUPS) {
        key = selections[row].tops[thread];
    }
    return largest_key(key, thread);
}
