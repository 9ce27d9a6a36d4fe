"""Triton kernels of one decoded token, where a GPU spends its time on reading weights.

Each program of a matrix-vector kernel owns a few rows of the weight and walks along them; the
norm before a product is folded into the same walk, since its factor is one number. Accumulation is
in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _weights(w, rows, there, start, K: tl.constexpr, TILE: tl.constexpr):
    cols = start + tl.arange(0, TILE)
    return tl.load(w + rows[:, None].to(tl.int64) * K + cols[None, :],
                   mask=there[:, None] & (cols < K)[None, :], other=0.0,
                   eviction_policy='evict_first')


@triton.jit
def matvec(x, gamma, w, scale, out, N, epsilon, K: tl.constexpr, ROWS: tl.constexpr,
           TILE: tl.constexpr, NORM: tl.constexpr, ADD: tl.constexpr, GATED: tl.constexpr,
           SCALED: tl.constexpr, PDL: tl.constexpr):
    """out[N] (+)= W norm(x); GATED: silu(gate) * up, the rows of up follow N rows of gate.

    PDL: the kernel starts while the one before ends, and fetches weights until that is done.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = rows < N
    ahead = _weights(w, rows, there, 0, K, TILE)
    if GATED:
        ahead_up = _weights(w, rows + N, there, 0, K, TILE)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    total = tl.zeros([ROWS, TILE], tl.float32)
    other = tl.zeros([ROWS, TILE], tl.float32)
    squares = tl.zeros([TILE], tl.float32)
    for start in tl.static_range(0, K, TILE):
        cols = start + tl.arange(0, TILE)
        inside = cols < K
        values = tl.load(x + cols, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            squares += values * values
            values *= tl.load(gamma + cols, mask=inside, other=0.0).to(tl.float32)
        weights = ahead if start == 0 else _weights(w, rows, there, start, K, TILE)
        total += weights.to(tl.float32) * values[None, :]
        if GATED:
            weights = ahead_up if start == 0 else _weights(w, rows + N, there, start, K, TILE)
            other += weights.to(tl.float32) * values[None, :]
    made = tl.sum(total, 1)
    factor = 1.0
    if NORM:
        factor = tl.rsqrt(tl.sum(squares, 0) / K + epsilon)
    made *= factor
    if SCALED:
        made *= tl.load(scale + rows, mask=there, other=0.0)
    if GATED:
        up = tl.sum(other, 1) * factor
        if SCALED:
            up *= tl.load(scale + N + rows, mask=there, other=0.0)
        made = made * tl.sigmoid(made) * up
    if ADD:
        made += tl.load(out + rows, mask=there, other=0.0).to(tl.float32)
    tl.store(out + rows, made.to(out.dtype.element_ty), mask=there)


@triton.jit
def _words(w, rows, there, start, WORDS: tl.constexpr, TILE: tl.constexpr):
    lanes = start + tl.arange(0, TILE)
    return tl.load(w + rows[:, None].to(tl.int64) * WORDS + lanes[None, :],
                   mask=there[:, None] & (lanes < WORDS)[None, :], other=0,
                   eviction_policy='evict_first')


@triton.jit
def _scales(scale, rows, there, start, WORDS: tl.constexpr, SHARE: tl.constexpr,
            TILE: tl.constexpr):
    lanes = start + tl.arange(0, TILE)
    return tl.load(scale + rows[:, None].to(tl.int64) * (WORDS // SHARE) + (lanes // SHARE)[None],
                   mask=there[:, None] & (lanes < WORDS)[None, :], other=0.0).to(tl.float32)


@triton.jit
def _fraction(words, FIELD: tl.constexpr, BITS: tl.constexpr):
    SHIFT: tl.constexpr = 23 - BITS - FIELD * BITS
    MASK: tl.constexpr = ((1 << BITS) - 1) << (23 - BITS)
    moved = words << SHIFT if SHIFT >= 0 else words >> -SHIFT
    return ((moved & MASK) | 0x3F800000).to(tl.float32, bitcast=True)


@triton.jit
def _halves(x, gamma, cols, mask, NORM: tl.constexpr):
    """Activations for `_eight`, as float16 bits in the low half of int32, and their squares."""
    values = tl.load(x + cols, mask=mask, other=0.0).to(tl.float32)
    square = values * values
    if NORM:
        values *= tl.load(gamma + cols, mask=mask, other=0.0).to(tl.float32)
    # A 64th, so that no sum of eight products leaves the range of float16.
    bits = (values * 0.015625).to(tl.float16).to(tl.int16, bitcast=True)
    return bits.to(tl.int32) & 0xFFFF, square


@triton.jit
def _eight(words, x0, x1, x2, x3):
    """sum((q - 8) x) of the eight fields of each word, float32.

    x0 holds the activations of fields 0 (low half) and 4 (high half), and so on. The bits 0x6400
    over a field make the float16 1024 + q, or 1024 + 16 q one field higher.
    """
    return tl.inline_asm_elementwise("""
        {
        .reg .b32 t, u, acc, most, part, less;
        .reg .b16 low, high;
        .reg .f32 a, b;
        mov.b32 most, 0x64086408;
        mov.b32 part, 0x2C002C00;
        mov.b32 less, 0xD480D480;
        lop3.b32 t, $1, 0x000F000F, 0x64006400, 0xEA;
        sub.rn.f16x2 t, t, most;
        mul.rn.f16x2 acc, t, $2;
        lop3.b32 t, $1, 0x00F000F0, 0x64006400, 0xEA;
        fma.rn.f16x2 t, t, part, less;
        fma.rn.f16x2 acc, t, $3, acc;
        shr.u32 u, $1, 8;
        lop3.b32 t, u, 0x000F000F, 0x64006400, 0xEA;
        sub.rn.f16x2 t, t, most;
        fma.rn.f16x2 acc, t, $4, acc;
        lop3.b32 t, u, 0x00F000F0, 0x64006400, 0xEA;
        fma.rn.f16x2 t, t, part, less;
        fma.rn.f16x2 acc, t, $5, acc;
        mov.b32 {low, high}, acc;
        cvt.f32.f16 a, low;
        cvt.f32.f16 b, high;
        add.f32 $0, a, b;
        }
        """, '=f,r,r,r,r,r', [words, x0, x1, x2, x3], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def matvec_nibbles(x, gamma, w, scale, out, N, epsilon, K: tl.constexpr, GROUP: tl.constexpr,
                   ROWS: tl.constexpr, TILE: tl.constexpr, NORM: tl.constexpr, ADD: tl.constexpr,
                   GATED: tl.constexpr, PDL: tl.constexpr):
    """As `matvec_words` with fields of 4 bits, two products in one instruction.

    Products of eight weights are summed in float16, everything else in float32.
    """
    WORDS: tl.constexpr = K // 8
    SHARE: tl.constexpr = GROUP // 8
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = rows < N
    ahead = _words(w, rows, there, 0, WORDS, TILE)
    if GATED:
        ahead_up = _words(w, rows + N, there, 0, WORDS, TILE)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    total = tl.zeros([ROWS, TILE], tl.float32)
    other = tl.zeros([ROWS, TILE], tl.float32)
    squares = tl.zeros([TILE], tl.float32)
    for start in tl.static_range(0, WORDS, TILE):
        lanes = start + tl.arange(0, TILE)
        inside = lanes < WORDS
        words = ahead if start == 0 else _words(w, rows, there, start, WORDS, TILE)
        if GATED:
            ups = ahead_up if start == 0 else _words(w, rows + N, there, start, WORDS, TILE)
        cols = (lanes // SHARE) * GROUP + lanes % SHARE
        l0, s0 = _halves(x, gamma, cols, inside, NORM)
        l1, s1 = _halves(x, gamma, cols + SHARE, inside, NORM)
        l2, s2 = _halves(x, gamma, cols + 2 * SHARE, inside, NORM)
        l3, s3 = _halves(x, gamma, cols + 3 * SHARE, inside, NORM)
        h0, s4 = _halves(x, gamma, cols + 4 * SHARE, inside, NORM)
        h1, s5 = _halves(x, gamma, cols + 5 * SHARE, inside, NORM)
        h2, s6 = _halves(x, gamma, cols + 6 * SHARE, inside, NORM)
        h3, s7 = _halves(x, gamma, cols + 7 * SHARE, inside, NORM)
        if NORM:
            squares += ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))
        x0 = (l0 | (h0 << 16))[None, :]
        x1 = (l1 | (h1 << 16))[None, :]
        x2 = (l2 | (h2 << 16))[None, :]
        x3 = (l3 | (h3 << 16))[None, :]
        total += _eight(words, x0, x1, x2, x3) * _scales(scale, rows, there, start, WORDS, SHARE,
                                                         TILE)
        if GATED:
            other += _eight(ups, x0, x1, x2, x3) * _scales(scale, rows + N, there, start, WORDS,
                                                           SHARE, TILE)
    factor = 64.0
    if NORM:
        factor = 64.0 * tl.rsqrt(tl.sum(squares, 0) / K + epsilon)
    made = tl.sum(total, 1) * factor
    if GATED:
        made = made * tl.sigmoid(made) * tl.sum(other, 1) * factor
    if ADD:
        made += tl.load(out + rows, mask=there, other=0.0).to(tl.float32)
    tl.store(out + rows, made.to(out.dtype.element_ty), mask=there)


@triton.jit
def matvec_words(x, gamma, w, scale, out, N, epsilon, K: tl.constexpr, BITS: tl.constexpr,
                 GROUP: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, NORM: tl.constexpr,
                 ADD: tl.constexpr, GATED: tl.constexpr, PDL: tl.constexpr):
    """As `matvec`, for int32 words [N, K BITS / 32] of unsigned fields with a scale a group.

    The field i of word j of a group belongs to weight i * (words of a group) + j. A field becomes
    the fraction of a number between 1 and 2 by its bits alone, without a conversion:
    sum((q - half) x) = 2^BITS (sum((1 + q / 2^BITS) x) - 1.5 sum(x)).
    """
    FIELDS: tl.constexpr = 32 // BITS
    WORDS: tl.constexpr = K // FIELDS
    SHARE: tl.constexpr = GROUP // FIELDS
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = rows < N
    ahead = _words(w, rows, there, 0, WORDS, TILE)
    if GATED:
        ahead_up = _words(w, rows + N, there, 0, WORDS, TILE)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    total = tl.zeros([ROWS, TILE], tl.float32)
    other = tl.zeros([ROWS, TILE], tl.float32)
    squares = tl.zeros([TILE], tl.float32)
    for start in tl.static_range(0, WORDS, TILE):
        lanes = start + tl.arange(0, TILE)
        inside = lanes < WORDS
        words = ahead if start == 0 else _words(w, rows, there, start, WORDS, TILE)
        if GATED:
            ups = ahead_up if start == 0 else _words(w, rows + N, there, start, WORDS, TILE)
        part = tl.zeros([ROWS, TILE], tl.float32)
        part_up = tl.zeros([ROWS, TILE], tl.float32)
        plain = tl.zeros([TILE], tl.float32)
        for field in tl.static_range(FIELDS):
            cols = (lanes // SHARE) * GROUP + field * SHARE + lanes % SHARE
            values = tl.load(x + cols, mask=inside, other=0.0).to(tl.float32)
            if NORM:
                squares += values * values
                values *= tl.load(gamma + cols, mask=inside, other=0.0).to(tl.float32)
            plain += values
            part += _fraction(words, field, BITS) * values[None, :]
            if GATED:
                part_up += _fraction(ups, field, BITS) * values[None, :]
        plain *= 1.5
        total += (part - plain[None, :]) * _scales(scale, rows, there, start, WORDS, SHARE, TILE)
        if GATED:
            other += (part_up - plain[None, :]) * _scales(scale, rows + N, there, start, WORDS,
                                                          SHARE, TILE)
    factor = 1.0
    if NORM:
        factor = tl.rsqrt(tl.sum(squares, 0) / K + epsilon)
    made = tl.sum(total, 1) * factor * (1 << BITS)
    if GATED:
        made = made * tl.sigmoid(made) * tl.sum(other, 1) * factor * (1 << BITS)
    if ADD:
        made += tl.load(out + rows, mask=there, other=0.0).to(tl.float32)
    tl.store(out + rows, made.to(out.dtype.element_ty), mask=there)


@triton.jit
def rope_write(qkv, row_scale, col_scale, cosines, sines, positions, slots, k_cache, v_cache,
               HEADS: tl.constexpr, KV: tl.constexpr, T: tl.constexpr, D: tl.constexpr,
               D2: tl.constexpr, BLOCK: tl.constexpr, SCALED: tl.constexpr):
    """Turn q and k of qkv [R, (H + 2 KV) D] in place; k and v go to cache [slots, T, KV, D].

    A row with position -1 is padding: it goes nowhere. SCALED: qkv times a factor a row and a
    column comes first.
    """
    row = tl.program_id(0)
    heads = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    lanes = tl.arange(0, D2)[None, :]
    position = tl.load(positions + row)
    slot = tl.load(slots + row).to(tl.int64)
    real = (lanes < D // 2) & (heads < HEADS + 2 * KV)
    turns = real & (heads < HEADS + KV)
    base = qkv + row.to(tl.int64) * ((HEADS + 2 * KV) * D) + heads * D + lanes
    at = tl.maximum(position, 0)
    cosine = tl.load(cosines + at * (D // 2) + lanes, mask=lanes < D // 2, other=0.0)
    sine = tl.load(sines + at * (D // 2) + lanes, mask=lanes < D // 2, other=0.0)
    first = tl.load(base, mask=real, other=0.0).to(tl.float32)
    second = tl.load(base + D // 2, mask=real, other=0.0).to(tl.float32)
    if SCALED:
        factor = tl.load(row_scale + row)
        first *= factor * tl.load(col_scale + heads * D + lanes, mask=real, other=0.0)
        second *= factor * tl.load(col_scale + heads * D + D // 2 + lanes, mask=real, other=0.0)
    made = tl.where(turns, first * cosine - second * sine, first).to(qkv.dtype.element_ty)
    made2 = tl.where(turns, second * cosine + first * sine, second).to(qkv.dtype.element_ty)
    tl.store(base, made, mask=real)
    tl.store(base + D // 2, made2, mask=real)
    line = (slot * T + at) * (KV * D)
    keys = turns & (heads >= HEADS) & (position >= 0)
    to = k_cache + line + (heads - HEADS) * D + lanes
    tl.store(to, made, mask=keys)
    tl.store(to + D // 2, made2, mask=keys)
    values = real & (heads >= HEADS + KV) & (position >= 0)
    to = v_cache + line + (heads - HEADS - KV) * D + lanes
    tl.store(to, made, mask=values)
    tl.store(to + D // 2, made2, mask=values)


@triton.jit
def attend(qkv, cosines, sines, positions, slots, k_cache, v_cache, out, parts, arrived,
           HEADS: tl.constexpr, KV: tl.constexpr, T: tl.constexpr, D: tl.constexpr,
           DP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, TURN: tl.constexpr,
           PDL: tl.constexpr):
    """out [R, H D]: row r looks at cache rows 0 to positions[r] of its slot.

    TURN: q and k are turned and k, v written to the cache here, for rows that do not see each
    other; else `rope_write` has done it. Each program looks at BLOCK rows of the cache; the last
    one of a head to be done puts the parts together. `parts` float32 [R, H, SPLITS, DP + 2],
    `arrived` int32 [R, H] is 0 before and after.
    """
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    group: tl.constexpr = HEADS // KV
    kv = head // group
    lanes = tl.arange(0, DP)
    inside = lanes < D
    position = tl.load(positions + row)
    slot = tl.load(slots + row).to(tl.int64)
    cache = slot * T * KV * D + kv * D
    lines = split * BLOCK + tl.arange(0, BLOCK)
    end = position if TURN else position + 1
    seen = lines < end
    at = cache + lines[:, None].to(tl.int64) * (KV * D) + lanes[None, :]
    mask = seen[:, None] & inside[None, :]
    if PDL:  # what earlier tokens left in the cache can be read before this token's q is there
        keys = tl.load(k_cache + at, mask=mask, other=0.0)
        values = tl.load(v_cache + at, mask=mask, other=0.0)
        gdc_launch_dependents()
        gdc_wait()
    else:
        keys = tl.load(k_cache + at, mask=mask, other=0.0)
        values = tl.load(v_cache + at, mask=mask, other=0.0)
    base = qkv + row.to(tl.int64) * ((HEADS + 2 * KV) * D)
    query = tl.load(base + head * D + lanes, mask=inside, other=0.0).to(tl.float32)
    if TURN:
        half = lanes % (D // 2)
        cosine = tl.load(cosines + position * (D // 2) + half, mask=inside, other=0.0)
        sine = tl.load(sines + position * (D // 2) + half, mask=inside, other=0.0)
        sine = tl.where(lanes < D // 2, -sine, sine)
        swapped = tl.where(lanes < D // 2, lanes + D // 2, lanes - D // 2)
        turned = tl.load(base + head * D + swapped, mask=inside, other=0.0).to(tl.float32)
        query = (query * cosine + turned * sine).to(qkv.dtype.element_ty).to(tl.float32)
    query *= 1.0 / tl.sqrt(D + 0.0)
    scores = tl.sum(keys.to(tl.float32) * query[None, :], 1)
    scores = tl.where(seen, scores, -1e30)
    most = tl.max(scores, 0)
    shares = tl.where(seen, tl.exp(scores - most), 0.0)
    weight = tl.sum(shares, 0)
    mixed = tl.sum(values.to(tl.float32) * shares[:, None], 0)
    if TURN:
        if split == 0:  # its own row, which has just been made
            first = tl.load(base + (HEADS + kv) * D + lanes, mask=inside, other=0.0)
            second = tl.load(base + (HEADS + kv) * D + swapped, mask=inside, other=0.0)
            key = first.to(tl.float32) * cosine + second.to(tl.float32) * sine
            key = key.to(qkv.dtype.element_ty)
            value = tl.load(base + (HEADS + KV + kv) * D + lanes, mask=inside, other=0.0)
            if head % group == 0:
                own = cache + position.to(tl.int64) * (KV * D) + lanes
                tl.store(k_cache + own, key, mask=inside)
                tl.store(v_cache + own, value, mask=inside)
            score = tl.sum(query * key.to(tl.float32), 0)
            higher = tl.maximum(most, score)
            fade, share = tl.exp(most - higher), tl.exp(score - higher)
            weight = weight * fade + share
            mixed = mixed * fade + share * value.to(tl.float32)
            most = higher
    place = (row * HEADS + head).to(tl.int64)
    if SPLITS > 1:
        mine = parts + (place * SPLITS + split) * (DP + 2)
        tl.store(mine + lanes, mixed)
        tl.store(mine + DP, most)
        tl.store(mine + DP + 1, weight)
        tl.debug_barrier()
        before = tl.atomic_add(arrived + place, 1, sem='acq_rel')
        if before == SPLITS - 1:
            tl.store(arrived + place, 0)
            most = -1e30
            for other in tl.static_range(SPLITS):
                most = tl.maximum(most, tl.load(
                    parts + (place * SPLITS + other) * (DP + 2) + DP, volatile=True))
            mixed = tl.zeros([DP], tl.float32)
            weight = 0.0
            for other in tl.static_range(SPLITS):
                its = parts + (place * SPLITS + other) * (DP + 2)
                fade = tl.exp(tl.load(its + DP, volatile=True) - most)
                weight += fade * tl.load(its + DP + 1, volatile=True)
                mixed += fade * tl.load(its + lanes, volatile=True)
            made = mixed / tl.maximum(weight, 1e-30)  # padding rows see nothing
            tl.store(out + place * D + lanes, made.to(out.dtype.element_ty), mask=inside)
    else:
        made = mixed / tl.maximum(weight, 1e-30)
        tl.store(out + place * D + lanes, made.to(out.dtype.element_ty), mask=inside)


@triton.jit
def add_rms_norm(x, y, row_scale, col_scale, gamma, out, out_scale, epsilon, W: tl.constexpr,
                 BLOCK: tl.constexpr, ADD: tl.constexpr, SCALED: tl.constexpr,
                 NARROW: tl.constexpr, MOST: tl.constexpr):
    """out = norm(x) * gamma for rows of x [R, W]; ADD: x += y in place comes first.

    SCALED: y times a factor a row and a column. NARROW: out is float8 with a scale a row. The norm
    is rounded before it is scaled, as the baseline does.
    """
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < W
    values = tl.load(x + row * W + lanes, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        added = tl.load(y + row * W + lanes, mask=inside, other=0.0).to(tl.float32)
        if SCALED:
            added *= tl.load(row_scale + row) * tl.load(col_scale + lanes, mask=inside, other=0.0)
        rounded = (values + added).to(x.dtype.element_ty)
        tl.store(x + row * W + lanes, rounded, mask=inside)
        values = rounded.to(tl.float32)
    factor = tl.rsqrt(tl.sum(values * values, 0) / W + epsilon)
    normed = (values * factor).to(x.dtype.element_ty)
    scaled = normed * tl.load(gamma + lanes, mask=inside, other=0.0)
    if NARROW:
        wide = scaled.to(tl.float32)
        size = tl.maximum(tl.max(tl.abs(wide), 0), 1e-12) / MOST
        tl.store(out_scale + row, size)
        tl.store(out + row * W + lanes, (wide / size).to(out.dtype.element_ty), mask=inside)
    else:
        tl.store(out + row * W + lanes, scaled, mask=inside)


@triton.jit
def add_layer_norm(x, y, gamma, beta, out, epsilon, W: tl.constexpr, BLOCK: tl.constexpr):
    """x [R, W] += y, out = layer norm of the sum."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < W
    at = row * W + lanes
    values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    values += tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    rounded = values.to(x.dtype.element_ty)
    tl.store(x + at, rounded, mask=inside)
    values = rounded.to(tl.float32)
    mean = tl.sum(values, 0) / W
    away = tl.where(inside, values - mean, 0.0)
    factor = tl.rsqrt(tl.sum(away * away, 0) / W + epsilon)
    made = away * factor * tl.load(gamma + lanes, mask=inside, other=0.0).to(tl.float32)
    made += tl.load(beta + lanes, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, made.to(out.dtype.element_ty), mask=inside)


@triton.jit
def silu_mul(gate_up, row_scale, col_scale, out, H, BLOCK: tl.constexpr, SCALED: tl.constexpr):
    """out [R, H] = silu(gate) * up of gate_up [R, 2 H]."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < H
    gate = tl.load(gate_up + row * 2 * H + cols, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * H + H + cols, mask=inside, other=0.0).to(tl.float32)
    if SCALED:
        factor = tl.load(row_scale + row)
        gate *= factor * tl.load(col_scale + cols, mask=inside, other=0.0)
        up *= factor * tl.load(col_scale + H + cols, mask=inside, other=0.0)
    tl.store(out + row * H + cols, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty),
             mask=inside)


@triton.jit
def silu_mul_narrow(gate_up, row_scale, col_scale, out, out_scale, H, BLOCK: tl.constexpr,
                    SCALED: tl.constexpr, MOST: tl.constexpr):
    """As `silu_mul`, a whole row at once, as float8 with a scale a row."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside = cols < H
    gate = tl.load(gate_up + row * 2 * H + cols, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * H + H + cols, mask=inside, other=0.0).to(tl.float32)
    if SCALED:
        factor = tl.load(row_scale + row)
        gate *= factor * tl.load(col_scale + cols, mask=inside, other=0.0)
        up *= factor * tl.load(col_scale + H + cols, mask=inside, other=0.0)
    made = gate * tl.sigmoid(gate) * up
    size = tl.maximum(tl.max(tl.abs(made), 0), 1e-12) / MOST
    tl.store(out_scale + row, size)
    tl.store(out + row * H + cols, (made / size).to(out.dtype.element_ty), mask=inside)


@triton.jit
def quantize_rows(x, out, scale, K, BLOCK: tl.constexpr, MOST: tl.constexpr):
    """Rows of x [R, K] as float8 with a scale each."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < K
    values = tl.load(x + row * K + lanes, mask=inside, other=0.0).to(tl.float32)
    size = tl.maximum(tl.max(tl.abs(values), 0), 1e-12) / MOST
    tl.store(scale + row, size)
    tl.store(out + row * K + lanes, (values / size).to(out.dtype.element_ty), mask=inside)
