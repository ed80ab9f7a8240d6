// The vectors of an item of attention_decode.wgsl: the queries of its group, the new key and the new value,
// with the norms, rope and scale of queries that snippets/head_transform.wgsl describes. They are written to
// `query`; before that `partial` has them as projected.

// Index of the first element of a vector of a row and a group: its queries are vectors 0 to GROUP - 1, then
// come the new key and the new value.
fn vector_at(row: u32, first_head: u32, vector: u32) -> u32 {
    let query_at = QUERY_STEP * (first_head + vector);
    let key_at = QUERY_STEP * HEADS + first_head / SHARED + select(0u, KV_HEADS, vector > GROUP);
    let own = select(query_at, key_at, vector >= GROUP);
    return (row * (QUERY_STEP * HEADS + NEW_HEADS * KV_HEADS) + own) * HEAD_DIM;
}

{% if NORM %}
const SUMMERS = {{ SUMMERS }}u;  // threads that sum up the squares of one vector

{% if FORM.norm_spans_heads %}
var<private> own_first_head: u32;

// The norm spans all queries, or all keys.
fn compute_inverse_rms(row: u32, first_head: u32, t: u32) {
    own_first_head = first_head;
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
fn compute_inverse_rms(row: u32, first_head: u32, t: u32) {
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

// The factor of the norm on element i of a vector.
fn norm_factor(vector: u32, i: u32) -> f32 {
{% if FORM.norm_spans_heads %}
    let head = select(own_first_head + vector, HEADS + own_first_head / SHARED, vector == GROUP);
    return inverse_rms[vector] * (OFFSET + gains[head * HEAD_DIM + i]);
{% else %}
    return inverse_rms[vector] * (OFFSET + gains[select(0u, HEAD_DIM, vector == GROUP) + i]);
{% endif %}
}
{% endif %}

// Element i of a vector, with the norm before the rotation.
fn normed(vector: u32, i: u32) -> f32 {
    let v = partial[vector * WORDS + i / 4u][i % 4u];
    return v{{ " * norm_factor(vector, i)" if NORM and not FORM.norm_after_rope }};
}

{% if ROPE %}
// The angles of elements i to i + 3 of a head at a position, each of them a column (cos, sin). Elements that
// rope does not rotate have some angle of the table.
fn angles_of(position: u32, i: u32) -> mat4x2<f32> {
    let first = position * PAIRS;
    return mat4x2<f32>(
{% for j in range(4) %}
        table[first + min(pair_of(i + {{ j }}u), PAIRS - 1u)],
{% endfor %}
    );
}
{% else %}
fn angles_of(position: u32, i: u32) -> mat4x2<f32> {
    return mat4x2<f32>();
}
{% endif %}

// Element i of a vector after norm and rope, by `angle`, multiplied by `scale`. A rotation does not change
// the mean square of a head.
fn transformed(vector: u32, i: u32, angle: vec2<f32>, scale: f32) -> f32 {
{% if NORM and FORM.norm_after_rope %}
    return norm_factor(vector, i) * placed(vector, i, angle, scale);
}

fn placed(vector: u32, i: u32, angle: vec2<f32>, scale: f32) -> f32 {
{% endif %}
{% if ROPE %}
    if (i < 2u * PAIRS) {
        let start = first_of_pair(pair_of(i));
        let a = scale * normed(vector, start);
        let b = scale * normed(vector, partner(start));
        let result = rotated(a, b, angle);
        return select(result.x, result.y, is_second(i));
    }
{% endif %}
    return scale * normed(vector, i);
}

// Store the queries of the group in `query`, and if `has_new` the new key and the new value, which only the
// last split needs. A thread writes whole vectors, because a write to one component may rewrite the others
// and so undo what other threads write there. For that it computes both elements of each rotated pair, even
// if it stores only one.
fn load_vectors(row: u32, first_head: u32, has_new: bool, t: u32) {
    let words = select(GROUP * WORDS, VECTORS, has_new);
    let position = current.row[row].position;
    // These angles and the projections are loaded together, so that both wait for memory at the same time.
    var angles = angles_of(position, 4u * (t % WORDS));
    for (var word = t; word < words; word += WG) {
        let first = vector_at(row, first_head, word / WORDS) + 4u * (word % WORDS);
        partial[word] = vec4<f32>(projected[first / 4u]);
    }
    workgroupBarrier();
{% if NORM %}
    compute_inverse_rms(row, first_head, t);
{% endif %}
    let query_scale = SCALE * query_factor(position);
    for (var word = t; word < words; word += WG) {
        let vector = word / WORDS;
        if (vector > GROUP) {
            query[word] = partial[word]{{ " * inverse_rms[GROUP + 1u]" if FORM.values_normed }};
            continue;
        }
        let i = 4u * (word % WORDS);
        let scale = select(query_scale, 1.0, vector == GROUP);
        if (WG % WORDS != 0u) {  // otherwise all words of a thread have the same angles
            angles = angles_of(position, i);
        }
        query[word] = vec4<f32>(
            transformed(vector, i, angles[0], scale),
            transformed(vector, i + 1u, angles[1], scale),
            transformed(vector, i + 2u, angles[2], scale),
            transformed(vector, i + 3u, angles[3], scale),
        );
    }
    workgroupBarrier();
}
