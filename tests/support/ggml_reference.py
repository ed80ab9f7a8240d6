"""A slow reference of Q4_K and Q6_K after ggml: NumPy, one element of every group per step.

It is the oracle for random rows for which no blocks of the C library are recorded. It shares no
code with the codecs. Groups are the last axis of every array here: [elements, groups].
"""

from __future__ import annotations

import numpy as np

F = np.float32


def _round(values):
    return np.rint(values).astype(np.float32)


def _sum(terms):
    total = terms[0].copy()
    for term in terms[1:]:
        total = total + term
    return total


def _search_q4(x):
    """Return scale, minimum and codes of groups [32, n]."""
    mean = np.zeros(x.shape[1], F)
    for row in x:
        mean = mean + row * row
    w = np.sqrt(mean / F(32)) + np.abs(x)
    low, top = np.minimum(x.min(axis=0), F(0)), x.max(axis=0)
    live = top > low
    top = np.where(live, top, low + F(1))
    sum_w, sum_x = _sum(w), _sum(w * x)

    def codes_for(inverse):
        return np.clip(_round(inverse * (x - low)), 0, 15).astype(F)

    inverse = F(15) / (top - low)
    scale = F(1) / inverse
    kept = codes_for(inverse)
    best = _sum(w * (scale * kept + low - x) ** 2)
    for step in range(21):
        trial = codes_for((F(-1) + F(0.1) * F(step) + F(15)) / (top - low))
        sl, sl2, sxl = _sum(w * trial), _sum(w * trial * trial), _sum(w * trial * x)
        d = sum_w * sl2 - sl * sl
        with np.errstate(all="ignore"):
            slope = (sum_w * sxl - sum_x * sl) / d
            floor = (sl2 * sum_x - sl * sxl) / d
            slope = np.where(floor > 0, sxl / sl2, slope)
            floor = np.minimum(floor, F(0))
            miss = slope * trial + floor - x
            error = _sum(w * (miss * miss))
        better = live & (d > 0) & (error < best)
        kept = np.where(better, trial, kept)
        best, scale = np.where(better, error, best), np.where(better, slope, scale)
        low = np.where(better, floor, low)
    return np.where(live, scale, F(0)), -low, np.where(live, kept, F(0))


def q4_k(rows):
    """Encode rows [n, 256] as blocks [n, 144]."""
    scales, mins, kept = _search_q4(rows.reshape(-1, 32).T)
    blocks = []
    for n in range(len(rows)):
        s, m = scales[8 * n : 8 * n + 8], mins[8 * n : 8 * n + 8]
        ls = np.minimum(_round(F(63) / s.max() * s), 63) if s.max() > 0 else np.zeros(8, F)
        lm = np.minimum(_round(F(63) / m.max() * m), 63) if m.max() > 0 else np.zeros(8, F)
        d, dmin = np.float16(max(F(0), s.max()) / F(63)), np.float16(max(F(0), m.max()) / F(63))
        packed = np.zeros(12, int)
        for j in range(8):
            a, b = int(ls[j]), int(lm[j])
            if j < 4:
                packed[j] |= a
                packed[j + 4] |= b
            else:
                packed[j + 4] |= (a & 15) | (b & 15) << 4
                packed[j - 4] |= (a >> 4) << 6
                packed[j] |= (b >> 4) << 6
        codes = []
        for j in range(8):
            x, step = rows[n, 32 * j : 32 * j + 32], F(d) * ls[j]
            offset = F(dmin) * lm[j]
            old = kept[:, 8 * n + j]
            codes.append(np.clip(_round((x + offset) / step), 0, 15) if step != 0 else old)
        quants = [
            int(codes[2 * c][i]) | int(codes[2 * c + 1][i]) << 4
            for c in range(4)
            for i in range(32)
        ]
        blocks.append(d.tobytes() + dmin.tobytes() + bytes(packed.tolist()) + bytes(quants))
    return np.frombuffer(b"".join(blocks), np.uint8).reshape(len(rows), 144)


def _search_q6(x):
    """Return scale and signed codes of groups [16, n]; 0 and the lowest code for all zeros."""
    peak = np.take_along_axis(x, np.abs(x).argmax(axis=0)[None], axis=0)[0]
    silent = np.abs(peak) < F(1e-15)
    peak, x = np.where(silent, F(1), peak), np.where(silent, F(0), x)
    w = x * x
    scale = best = kept = None
    for step in [0, *range(-9, 0), *range(1, 10)]:
        numerator = -F(32) if step == 0 else -(F(32) + F(0.1) * F(step))
        trial = np.clip(_round(numerator / peak * x), -32, 31).astype(F)
        sxl, sl2 = _sum(w * x * trial), _sum(w * trial * trial)
        if step == 0:
            scale, kept = sxl / np.where(silent, F(1), sl2), trial
            best = scale * sxl
            continue
        better = (sl2 > 0) & (sxl * sxl > best * sl2)
        scale = np.where(better, sxl / np.where(better, sl2, F(1)), scale)
        best = np.where(better, scale * sxl, best)
        kept = np.where(better, trial, kept)
    return scale, np.where(silent, F(-32), kept)


def q6_k(rows):
    """Encode rows [n, 256] as blocks [n, 210]."""
    scales, kept = _search_q6(rows.reshape(-1, 16).T)
    blocks = []
    for n in range(len(rows)):
        s = scales[16 * n : 16 * n + 16]
        if np.abs(s).max() < F(1e-15):
            blocks.append(bytes(210))
            continue
        inverse = F(-128) / s[np.abs(s).argmax()]
        d = np.float16(F(1) / inverse)
        sc = np.minimum(127, _round(inverse * s)).astype(np.int8)
        q = np.zeros(256, int)
        for j in range(16):
            step = F(d) * F(sc[j])
            x = rows[n, 16 * j : 16 * j + 16]
            codes = np.clip(_round(x / step), -32, 31) if step != 0 else kept[:, 16 * n + j]
            q[16 * j : 16 * j + 16] = codes.astype(int) + 32
        low, high = [], []
        for half in (q[:128], q[128:]):
            a, b, c, e = half.reshape(4, 32)
            low += [*((a & 15) | (c & 15) << 4), *((b & 15) | (e & 15) << 4)]
            high += list(a >> 4 | (b >> 4) << 2 | (c >> 4) << 4 | (e >> 4) << 6)
        blocks.append(bytes(map(int, low)) + bytes(map(int, high)) + sc.tobytes() + d.tobytes())
    return np.frombuffer(b"".join(blocks), np.uint8).reshape(len(rows), 210)
