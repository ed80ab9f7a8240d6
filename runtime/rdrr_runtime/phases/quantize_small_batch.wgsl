// Quantize a small batch of token rows to int8: in(x) = scale q for each 32 elements of a vector, with
// scale = max|in(x)| / 127.
//
// in   plain    in(x) = x
//      norm     in(x) = x / sqrt(mean(x^2) + EPS) * (OFFSET + gain)
//      combine  in(x)[h] = sum_s e^(m_s - m) x[h, s] / sum_s e^(m_s - m) l_s, which combines the partial
//               results of split attention, with (m_s, l_s) = stats[h, s] and m = max_s m_s
//
// x        f32 {{ "[rows, K / HEAD_DIM, SPLITS, HEAD_DIM]" if INPUT == "combine" else "[rows, PER_ROW, K]" }}
// gain     f32 [K], only for norm
// stats    f32 [rows, K / HEAD_DIM, SPLITS, 2], only for combine
// y        vec4<u32> [rows, PER_ROW, 5, UNITS]: for each unit of 64 elements four vectors of 16 codes, then
//          one of f32: the scale of the first 32 elements, this scale times the sum of their codes, and
//          the same two numbers of the last 32 elements
//
// An item is STEPS iterations, in each of which every thread quantizes 16 elements; for norm these are
// all elements of a vector, and those of the first iteration are loaded with their gains before the sum of
// squares is known: a load behind a barrier waits for it. Elements from K on are zeros. Accumulates in f32.
var<storage, read> x: array<vec4<f32>>;
var<storage, read_write> y: array<vec4<u32>>;
{% if INPUT == "norm" %}
var<storage, read> gain: array<vec4<f32>>;
{% elif INPUT == "combine" %}
var<storage, read> stats: array<vec2<f32>>;
{% endif %}

override K: u32;
override UNITS: u32;             // units of 64 elements of a vector, zero padding included
override PER_ROW: u32;           // vectors of a token row
override VECTOR_ITEMS: u32;      // items of a vector
override STEPS: u32;             // iterations of an item
{% if INPUT == "norm" %}
override EPS: f32;
override OFFSET: f32;
{% elif INPUT == "combine" %}
override SPLITS: u32;
override HEAD_DIM: u32;
{% endif %}

{% include "snippets/abs_max.wgsl" %}
{% if INPUT == "norm" %}
{% include "snippets/reduce_sum.wgsl" %}
{% endif %}
var<workgroup> chunk_max: array<u32, WG>;  // as bits
var<workgroup> sums: array<i32, WG>;

{% if INPUT == "combine" %}
const LOWEST = -3.0e38;
{% include "snippets/has_keys.wgsl" %}
{% endif %}
fn load(vector: u32, i: u32) -> vec4<f32> {
    let inside = i < K;
    return select(vec4<f32>(0.0), x[(vector * K + select(0u, i, inside)) / 4u], inside);
}

{% if INPUT == "norm" %}
fn gain_of(word: u32) -> vec4<f32> {
    return gain[min(word, K / 4u - 1u)];
}

{% endif %}
fn phase(item: u32, row: u32, thread: Thread) {
    let vector = row * PER_ROW + item / VECTOR_ITEMS;
    let t = thread.index;
{% if INPUT == "norm" %}
{% for i in range(4) %}
    var v{{ i }} = load(vector, 16u * t + {{ 4 * i }}u);
    var gain{{ i }} = gain_of(4u * t + {{ i }}u);
{% endfor %}
    var squares = v0 * v0 + v1 * v1 + v2 * v2 + v3 * v3;
    for (var i = 4u * (4u * WG + t); i < K; i += 4u * WG) {
        let v = load(vector, i);
        squares += v * v;
    }
    let mean = dot(reduce_sum(squares, thread), vec4<f32>(1.0)) / f32(K);
    let factor = inverseSqrt(mean + EPS);
{% endif %}
    for (var step = 0u; step < STEPS; step++) {
        let chunk = (item % VECTOR_ITEMS * STEPS + step) * WG + t;
{% if INPUT == "combine" %}
{% for i in range(4) %}
        var v{{ i }} = vec4<f32>(0.0);
{% endfor %}
        if (16u * chunk < K) {
            let words = HEAD_DIM / 4u;
            let head = (vector * K + 16u * chunk) / HEAD_DIM * SPLITS;
            var max_score = LOWEST;
            for (var s = 0u; s < SPLITS; s++) {
                let split = stats[head + s];
                max_score = max(max_score, select(LOWEST, split.x, has_keys(split.y)));
            }
            var denominator = 0.0;
            for (var s = 0u; s < SPLITS; s++) {
                let split = stats[head + s];
                if (has_keys(split.y)) {  // the sums of a split without keys are uninitialised
                    let weight = exp(split.x - max_score);
                    let at = (head + s) * words + 4u * chunk % words;
                    denominator += weight * split.y;
{% for i in range(4) %}
                    v{{ i }} += weight * x[at + {{ i }}u];
{% endfor %}
                }
            }
{% for i in range(4) %}
            v{{ i }} /= denominator;
{% endfor %}
        }
{% elif INPUT == "norm" %}
        if (step > 0u) {
{% for i in range(4) %}
            v{{ i }} = load(vector, 16u * chunk + {{ 4 * i }}u);
            gain{{ i }} = gain_of(4u * chunk + {{ i }}u);
{% endfor %}
        }
{% for i in range(4) %}
        v{{ i }} *= factor * (OFFSET + gain{{ i }});
{% endfor %}
{% else %}
{% for i in range(4) %}
        let v{{ i }} = load(vector, 16u * chunk + {{ 4 * i }}u);
{% endfor %}
{% endif %}
        workgroupBarrier();  // the previous iteration may still be reading
        chunk_max[t] =
            max(max(bits_of_abs_max(v0), bits_of_abs_max(v1)), max(bits_of_abs_max(v2), bits_of_abs_max(v3)));
        workgroupBarrier();
        let bits = max(chunk_max[t], chunk_max[t ^ 1u]);
        let amax = bitcast<f32>(bits);
        let inverse = select(0.0, 127.0 / amax, amax > 0.0);
{% for i in range(4) %}
        let q{{ i }} = vec4<i32>(round(v{{ i }} * inverse));
{% endfor %}
        let q = q0 + q1 + q2 + q3;
        sums[t] = q.x + q.y + q.z + q.w;
        workgroupBarrier();
        let group = chunk / 4u;
        if (group < UNITS) {
            let at = 5u * vector * UNITS + group;
            y[at + chunk % 4u * UNITS] =
                vec4<u32>(pack4xI8(q0), pack4xI8(q1), pack4xI8(q2), pack4xI8(q3));
            if (t % 4u == 0u) {
                let second = max(chunk_max[t + 2u], chunk_max[t + 3u]);
                let scale = vec2<f32>(amax, bitcast<f32>(second)) / 127.0;
                let sum = vec2<f32>(vec2<i32>(sums[t] + sums[t + 1u], sums[t + 2u] + sums[t + 3u]));
                y[at + 4u * UNITS] =
                    bitcast<vec4<u32>>(vec4<f32>(scale.x, scale.x * sum.x, scale.y, scale.y * sum.y));
            }
        }
    }
}
