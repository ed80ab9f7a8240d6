// The vectors of an item of attention_decode.wgsl: the queries of its group, the new key and the new value,
// with the norms, rope and scale of queries that snippets/head_transform.wgsl describes. They are written to
// `query`; before that `partial` has them as projected.

// The first word of a vector of a row and a group: its queries are vectors 0 to GROUP - 1, then come the new key
// and the new value.
fn vector_at(row: u32, first_head: u32, vector: u32) -> u32 {
    let query_at = QUERY_STEP * (first_head + vector);
    let key_at = QUERY_STEP * HEADS + first_head / SHARED + select(0u, KV_HEADS, vector > GROUP);
    let own = select(query_at, key_at, vector >= GROUP);
    return (row * (QUERY_STEP * HEADS + NEW_HEADS * KV_HEADS) + own) * WORDS;
}

{% if NORM %}
const SUMMERS = {{ SUMMERS }}u;  // threads that sum up the squares of one vector

{% if FORM.norm_spans_heads %}
// The norm spans all queries, or all keys.
fn compute_inverse_rms(row: u32, t: u32) {
    let row_first = row * (HEADS + NEW_HEADS * KV_HEADS) * HEAD_DIM;
{% for first, count, vectors in (("0u", "HEADS", "t < GROUP"), ("HEADS * HEAD_DIM", "KV_HEADS", "t == GROUP"))[: 2 if STORES else 1] %}
    {
        var own = 0.0;
        for (var i = t; i < {{ count }} * HEAD_DIM; i += WG) {
            let at = row_first + {{ first }} + i;
            let v = f32(projected[at / 4u][at % 4u]);
            own += v * v;
        }
        squares[t] = own;
        workgroupBarrier();
        own = 0.0;
        if (t < 16u) {
            for (var i = t; i < WG; i += 16u) {
                own += squares[i];
            }
        }
        workgroupBarrier();
        if (t < 16u) {
            squares[t] = own;
        }
        workgroupBarrier();
        if ({{ vectors }}) {
            var sum = 0.0;
            for (var i = 0u; i < 16u; i++) {
                sum += squares[i];
            }
            inverse_rms[t] = inverseSqrt(sum / f32({{ count }} * HEAD_DIM) + EPS);
        }
        workgroupBarrier();
    }
{% endfor %}
}
{% else %}
fn compute_inverse_rms(row: u32, t: u32) {
    let vector = t / SUMMERS;
    if (vector < {{ NORMED }}) {
        var sum = 0.0;
        for (var i = t % SUMMERS; i < WORDS; i += SUMMERS) {
            let v = partial[vector * WORDS + i];
            sum += dot(v, v);
        }
        squares[t] = sum;
    }
    workgroupBarrier();
    if (t < {{ NORMED }}) {
        var sum = 0.0;
        for (var i = 0u; i < SUMMERS; i++) {
            sum += squares[SUMMERS * t + i];
        }
        inverse_rms[t] = inverseSqrt(sum / f32(HEAD_DIM) + EPS);
    }
    workgroupBarrier();
}
{% endif %}

// The gains of word i of a vector.
fn gains_at(first_head: u32, vector: u32, i: u32) -> vec4<f32> {
{% if FORM.norm_spans_heads %}
    return gains[select(first_head + vector, HEADS + first_head / SHARED, vector >= GROUP) * WORDS + i];
{% else %}
    return gains[select(0u, WORDS, vector == GROUP) + i];
{% endif %}
}
{% endif %}
{% set EARLY_NORM = NORM and not FORM.norm_after_rope %}
{% set PARTNER = ROPE and not INTERLEAVED %}

// What a thread loads for a word, beside the vectors: all of it comes from memory. What a layer lacks is zero and unused.
struct Constants {
    gain: vec4<f32>,
    partner_gain: vec4<f32>,
    cosine: vec4<f32>,
    sine: vec4<f32>,  // negative for the first element of a pair
}
{% if PARTNER %}

// The word whose elements form pairs with those of word i.
fn partner_of(i: u32) -> u32 {
    return select(i - PAIRS / 4u, i + PAIRS / 4u, i < PAIRS / 4u);
}
{% endif %}

// The constants of word i of a vector at a position. Words that rope does not rotate have some angles of the table.
fn constants_of(position: u32, first_head: u32, vector: u32, i: u32) -> Constants {
    var constants: Constants;
{% if ROPE and INTERLEAVED %}
    let angles = table[(position * PAIRS + min(2u * i, PAIRS - 2u)) / 2u];
    constants.cosine = angles.xxzz;
    constants.sine = vec4<f32>(-angles.y, angles.y, -angles.w, angles.w);
{% elif ROPE %}
    let first = (position * PAIRS + 4u * (i % (PAIRS / 4u))) / 2u;
    let angles = table[first];
    let next_angles = table[first + 1u];
    constants.cosine = vec4<f32>(angles.xz, next_angles.xz);
    constants.sine = select(-1.0, 1.0, i >= PAIRS / 4u) * vec4<f32>(angles.yw, next_angles.yw);
{% endif %}
{% if NORM %}
    constants.gain = gains_at(first_head, vector, i);
{% if EARLY_NORM and PARTNER %}
    constants.partner_gain = gains_at(first_head, vector, min(partner_of(i), WORDS - 1u));
{% endif %}
{% endif %}
    return constants;
}

// Word i of a vector after norm and rope. A rotation does not change the mean square of a head.
fn transformed(vector: u32, i: u32, constants: Constants) -> vec4<f32> {
    var v = partial[vector * WORDS + i];
{% if EARLY_NORM %}
    v *= inverse_rms[vector] * (OFFSET + constants.gain);
{% endif %}
{% if ROPE %}
    if (i < PAIRS / 2u) {
{% if INTERLEAVED %}
        v = v * constants.cosine + v.yxwz * constants.sine;
{% else %}
        let partner = partial[vector * WORDS + partner_of(i)]{{ " * (inverse_rms[vector] * (OFFSET + constants.partner_gain))" if EARLY_NORM }};
        v = v * constants.cosine + partner * constants.sine;
{% endif %}
    }
{% endif %}
{% if NORM and FORM.norm_after_rope %}
    v *= inverse_rms[vector] * (OFFSET + constants.gain);
{% endif %}
    return v;
}

// Store the queries of the group in `query`, and if `has_new` the new key and the new value, which only the
// last split needs.
fn load_vectors(row: u32, first_head: u32, has_new: bool, t: u32) {
    let words = select(GROUP * WORDS, VECTORS, has_new);
    let position = current.row[row].position;
    // Loaded together with the projections, so that all of them wait for memory at the same time.
    var constants = constants_of(position, first_head, min(t, VECTORS - 1u) / WORDS, t % WORDS);
    for (var word = t; word < words; word += WG) {
        partial[word] = vec4<f32>(projected[vector_at(row, first_head, word / WORDS) + word % WORDS]);
    }
    workgroupBarrier();
{% if NORM %}
    compute_inverse_rms(row, t);
{% endif %}
    let query_scale = SCALE * query_factor(position);
    for (var word = t; word < words; word += WG) {
        let vector = word / WORDS;
        if (vector > GROUP) {
            query[word] = partial[word]{{ " * inverse_rms[GROUP + 1u]" if FORM.values_normed }};
            continue;
        }
        if (word != t{{ " && WG % WORDS != 0u" if not NORM }}) {  // all words of a thread may have the same angles
            constants = constants_of(position, first_head, vector, word % WORDS);
        }
        query[word] = select(query_scale, 1.0, vector == GROUP) * transformed(vector, word % WORDS, constants);
    }
    workgroupBarrier();
}
