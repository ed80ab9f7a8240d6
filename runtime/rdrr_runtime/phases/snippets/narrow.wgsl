// One step of the search for a threshold: which bin of the last histogram holds it.
struct Stage {
    index: u32,   // stages of this chain before it
    level: u32,   // of its own histogram
    mass: u32,    // 1: weighs probabilities (top-p); 0: counts tokens (top-k)
    before: u32,  // 1: the stage before weighed probabilities
}

var<workgroup> sums: array<f32, BINS>;
var<workgroup> chosen: atomic<u32>;
var<workgroup> tops: array<u32, BINS>;

fn weight_of_bin(stage: u32, bin: u32) -> f32 {
    let at = 2u * ((row * STAGES + stage) * BINS + bin);
    return f32(atomicLoad(&bins[at])) + 65536.0 * f32(atomicLoad(&bins[at + 1u]));
}

// The search as the histogram of the stage before leaves it; the same in every workgroup.
fn narrowed(stage: Stage, thread: u32) -> Search {
    if (stage.index == 0u) {
        return Search(1u, 0u, params.top_k, 0u);
    }
    let last = stage.index - 1u;
    let level = last % LEVELS;
    // Thread t has the bin of the t-th largest scores.
    sums[thread] = weight_of_bin(last, BINS - 1u - thread);
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
    var search = searches[row * STAGES + last];
    if (stage.before == 1u && level == 0u) {
        search.goal = params.top_p * sums[BINS - 1u];
    }
    if (search.goal <= sums[thread]) {
        atomicMin(&chosen, thread);
    }
    workgroupBarrier();
    // Nowhere: all are wanted, and the last bin leaves none out.
    let place = min(atomicLoad(&chosen), BINS - 1u);
    if (place > 0u) {
        search.goal -= sums[place - 1u];
    }
    search.prefix |= (BINS - 1u - place) << (8u * (LEVELS - 1u - level));
    if (level == LEVELS - 1u) {
        search.low = max(search.prefix, search.low);
        search.prefix = 0u;
    }
    return search;
}

// Key of the largest score.
fn largest(thread: u32) -> u32 {
    tops[thread] = 0u;
    if (thread < GROUPS) {
        tops[thread] = group_tops[row * GROUPS + thread];
    }
    for (var half = BINS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) {
            tops[thread] = max(tops[thread], tops[thread + half]);
        }
    }
    workgroupBarrier();
    return tops[0];
}
