// The best candidate of each row becomes the next token of its sequence.
{% if SAMPLED %}
// The token count of the sequence and its number of sampled tokens are incremented.
{% endif %}
{% if ADVANCES %}
// The token of the only row is written to the step and to the ring, where it is marked if the logits are
// not finite, and the step advances.
{% else %}
// picks[r] = (id, 0), which `batch_advance` reads. Ids are marked if the logits are not finite.
{% endif %}
//
// best     (f32, u32) [rows, CANDIDATES]
// current  Step
{% if ADVANCES %}
// ring     u32 [RING]
{% else %}
// picks    (u32, f32) [rows]: id, and 0 instead of the entropy, which is not computed
{% endif %}
{% if SAMPLED %}
// params   Params [sequences]
// counts   u32 [sequences, COUNTS_STRIDE]
{% endif %}
//
// One call for each row; no two rows belong to the same sequence.
{% include "snippets/step.wgsl" %}
{% if SAMPLED %}
{% include "sampling/snippets/sampling_params.wgsl" %}
{% endif %}
var<storage, read> best: array<vec2<u32>>;
var<storage, {{ "read_write" if ADVANCES else "read" }}> current: Step;
{% if ADVANCES %}
var<storage, read_write> ring: array<u32>;
{% else %}
var<storage, read_write> picks: array<vec2<u32>>;
{% endif %}
{% if SAMPLED %}
var<storage, read_write> params: array<Params>;
var<storage, read_write> counts: array<u32>;
{% endif %}

override CANDIDATES: u32;
{% if ADVANCES %}
override RING: u32;
{% endif %}
{% if SAMPLED %}
override COUNTS_STRIDE: u32;
{% endif %}

{% include "snippets/candidate.wgsl" %}
{% if ADVANCES %}
{% include "sampling/snippets/advance.wgsl" %}
{% endif %}

fn phase(row: u32, thread: Thread) {
    let first = row * CANDIDATES;
    var mine = candidate_of(best[first]);
    for (var i = thread.index; i < CANDIDATES; i += WG) {
        mine = better(mine, candidate_of(best[first + i]));
    }
    let winner = best_of_workgroup(mine, thread.index);
    if (thread.index == 0u) {
{% if SAMPLED %}
        let sequence = current.row[row].sequence;
        counts[sequence * COUNTS_STRIDE + winner.index] += 1u;
        params[sequence].sampled += 1u;
{% endif %}
{% if ADVANCES %}
        advance(marked(winner.index, winner.value));
{% else %}
        picks[row] = vec2<u32>(marked(winner.index, winner.value), 0u);
{% endif %}
    }
}
