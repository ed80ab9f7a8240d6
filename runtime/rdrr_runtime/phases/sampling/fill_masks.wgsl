// Fill masks of a window, and write the step of the next pass. Mask m becomes its most probable id if
// entropy[m] + penalties[distance of m from the first mask] < tau; at most the first `most` of them do. If
// none does, that with the lowest sum does.
//
// The step holds a window of positions after the sequence: first the rows of its tokens, then those of its
// masks, each in ascending order of positions. Tokens before the first mask leave the window with the next
// pass, which runs them. The window gets as many new masks, as long as the budget lasts.
//
// picks    Pick [masks]: most probable id and entropy in nats of each mask
// current  Step; rows from `rows` on have no effect when they are launched
// rules    Rules, see fill_masks.py
// record   u32 [2 + WINDOW]: rows of the pass, number of tokens that have become the next ones of the
//          sequence, and their ids
//
// One call for the pass, with one thread for each row.
{% include "snippets/step.wgsl" %}
struct Pick {
    index: u32,
    entropy: f32,
}
struct Rules {
    mask_id: u32,
    most: u32,                // most masks filled in a pass
    budget: u32,              // positions that may still be added to the window
    tau: f32,
    penalties: array<f32>,    // by distance from the first mask
}
var<storage, read> picks: array<Pick>;
var<storage, read_write> current: Step;
var<storage, read_write> rules: Rules;
var<storage, read_write> record: array<u32>;

override MAX_ROWS: u32;
override WINDOW: u32;

const NO_SLOT = 0xffffffffu;

// The places are positions counted from the first one of the window.
var<workgroup> places: array<u32, WG>;     // of each row
var<workgroup> raised: array<f32, WG>;     // entropy plus penalty of each mask, by row
var<workgroup> token_at: array<u32, WG>;   // token at each place
var<workgroup> is_token: array<u32, WG>;   // whether it is one, 0 or 1

fn phase(thread: Thread) {
    let t = thread.index;
    let base = current.row[0].slot;
    let rows = select(min(current.rows, MAX_ROWS), 0u, base == NO_SLOT);
    let masks = min(current.last_n, rows);
    let tokens = rows - masks;
    let mask_id = rules.mask_id;
    let most = rules.most;
    let budget = rules.budget;
    let tau = rules.tau;
    let own = current.row[min(t, MAX_ROWS - 1u)];
    var token = own.token;
    places[t] = own.position - base;
    is_token[t] = 0u;
    if (t >= tokens && t < rows) {
        let pick = picks[t - tokens];
        token = pick.index;
        raised[t] = pick.entropy + rules.penalties[own.position - current.row[tokens].position];
    }
    storageBarrier();
    workgroupBarrier();

    if (t < rows) {
        var fills = t < tokens;
        if (!fills) {
            var below = 0u;
            var below_before = 0u;
            var lowest = tokens;
            for (var i = tokens; i < rows; i++) {
                let is_below = raised[i] < tau;
                below += u32(is_below);
                below_before += u32(is_below && i < t);
                if (raised[i] < raised[lowest]) {
                    lowest = i;
                }
            }
            fills = select(t == lowest, tau > raised[t] && most > below_before, below > 0u);
        }
        if (fills) {
            token_at[places[t]] = token;
            is_token[places[t]] = 1u;
        }
    }
    workgroupBarrier();

    // The leading tokens are in the cache now; tokens right behind them continue the sequence.
    var first = 0u;
    while (first < tokens && places[first] == first) {
        first++;
    }
    var end = first;
    while (end < rows && is_token[end] == 1u) {
        end++;
    }
    let fresh = end - first;
    let added = min(fresh, budget);
    let next_rows = rows - first + added;
    var next_tokens = 0u;
    var tokens_before = 0u;
    for (var i = first; i < rows; i++) {
        next_tokens += is_token[i];
        tokens_before += select(0u, is_token[i], i < first + t);
    }
    let place = first + t;
    if (t < next_rows) {
        let known = place < rows && is_token[min(place, WG - 1u)] == 1u;
        let index = select(next_tokens + t - tokens_before, tokens_before, known);
        let id = select(mask_id, token_at[min(place, WG - 1u)], known);
        current.row[index] = Row(id, base + place, 0u, base + first + index);
    } else if (t < MAX_ROWS) {
        current.row[t] = Row(0u, 0u, 0u, NO_SLOT);
    }
    if (t < min(fresh, WINDOW)) {
        record[2u + t] = token_at[place];
    }
    if (t == 0u) {
        record[0] = rows;
        record[1] = min(fresh, WINDOW);
        current.rows = max(next_rows, 1u);
        current.last_n = next_rows - next_tokens;
        rules.budget = budget - added;
    }
}
