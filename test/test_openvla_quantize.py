"""Weights in fewer bits: what they lose at most, and where each bit lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip('torch', reason='weights are packed with it')

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from openvla_rig import config_of, model_of  # noqa: E402

from vla_ros.policies.openvla.kernels.ops import (  # noqa: E402
    Activation,
    Product,
    Rows,
    Weight,
    add_norm,
    narrowed,
    silu_mul,
)
from vla_ros.policies.openvla.precision import PRECISIONS, precision  # noqa: E402
from vla_ros.policies.openvla.quantize import (  # noqa: E402
    FORMATS,
    Packed,
    pack,
    packed_bytes,
    unpack,
)
from vla_ros.policies.openvla.static import StaticLlama  # noqa: E402

torch.set_num_threads(1)
INTEGERS = {'int8': 8, 'int4': 4}
BF16 = 2.0 ** -8  # the largest relative error of rounding to bfloat16
FP8 = 2.0 ** -4   # and to float8 e4m3, of its normal numbers
WIDTHS = st.sampled_from([32, 64, 96, 160, 256, 512, 1024])


def drawn(n: int, k: int, seed: int = 0, size: float = 1.0) -> Any:
    return size * torch.randn(n, k, generator=torch.Generator().manual_seed(seed))


def by_group(packed: Packed, values: Any) -> Any:
    """[N, K] as [N, groups, group]."""
    return values.view(packed.rows, -1, packed.group)


# --- what is lost --------------------------------------------------------------------------------


@pytest.mark.parametrize('form', INTEGERS)
@given(n=st.integers(1, 3), k=WIDTHS, seed=st.integers(0, 10**6),
       size=st.sampled_from([1e-6, 0.02, 1.0, 300.0]), wild=st.booleans())
def test_integers_are_off_by_half_a_step_or_clipped(form: str, n: int, k: int, seed: int,
                                                    size: float, wild: bool) -> None:
    """The step is the scale as stored. Clipping is bounded: the smallest scale that is tried is
    0.75 of the one that clips nothing. In the mean over a group nothing may be lost by it.
    """
    weight = drawn(n, k, seed, size)
    if wild:
        weight[0, seed % k] *= 30.0
    packed = pack(weight, form)
    assert packed.scale is not None
    assert packed.scale.dtype == torch.bfloat16
    half = 1 << (INTEGERS[form] - 1)
    groups, step = by_group(packed, weight), packed.scale.float()[..., None]
    error = (by_group(packed, unpack(packed)) - groups).abs()
    largest = groups.abs().amax(-1, keepdim=True)
    inside = (groups <= (half - 1) * step) & (groups >= -half * step)
    assert (error[inside] <= (step * (0.5 + 1e-5)).expand_as(error)[inside]).all()
    assert (error <= largest * (1.0 - 0.75 * (1.0 - BF16)) + step * 0.5).all()
    # With the plain scale, rounded to bfloat16, half a step and what rounding it down clips.
    plain = (0.5 * (1.0 + BF16) + (half - 1) * BF16) * largest / (half - 1)
    rounded = error.square().mean(-1, keepdim=True).sqrt()
    assert (rounded <= plain * (1.0 + 1e-5)).all()
    assert (step >= 0.75 * largest / (half - 1) * (1.0 - BF16)).all()
    assert (step <= largest / (half - 1) * (1.0 + BF16)).all()


@given(n=st.integers(1, 3), k=st.integers(1, 70), seed=st.integers(0, 10**6),
       size=st.sampled_from([1e-6, 0.02, 1.0, 300.0]))
def test_fp8_is_off_by_a_sixteenth_or_half_its_smallest_number(n: int, k: int, seed: int,
                                                               size: float) -> None:
    weight = drawn(n, k, seed, size)
    packed = pack(weight, 'fp8')
    assert packed.scale is not None
    assert packed.scale.dtype == torch.float32
    error = (unpack(packed) - weight).abs()
    allowed = torch.maximum(weight.abs() * FP8, packed.scale[:, None] * 2.0 ** -10)
    assert (error <= allowed * (1.0 + 1e-5)).all()
    # The largest of a row is kept: it is the 448 of its scale.
    assert torch.allclose(unpack(packed).abs().amax(1), weight.abs().amax(1), rtol=1e-6)


@pytest.mark.parametrize('form', ['fp8', 'int8', 'int4'])
def test_fewer_bits_lose_more_and_none_of_it_leans_to_one_side(form: str) -> None:
    weight = drawn(64, 512)
    error = unpack(pack(weight, form)) - weight
    allowed = {'fp8': (0.01, 0.04), 'int8': (0.002, 0.012), 'int4': (0.05, 0.15)}[form]
    assert allowed[0] < error.square().mean().sqrt() < allowed[1]
    assert abs(error.mean()) < 0.1 * error.abs().mean()


@pytest.mark.parametrize('form', INTEGERS)
def test_clipping_the_few_helps_the_many(form: str) -> None:
    """The scale found is never worse than the plain one; for int4 and normal weights it is better.
    """
    weight = drawn(16, 256, seed=3)
    packed, half = pack(weight, form), 1 << (INTEGERS[form] - 1)
    groups = by_group(packed, weight)
    plain = (groups.abs().amax(-1, keepdim=True) / (half - 1)).bfloat16().float()
    usual = (groups / plain).round().clamp(-half, half - 1) * plain
    best, before = ((by_group(packed, values) - groups).square().sum(-1)
                    for values in (unpack(packed), usual))
    assert (best <= before * (1.0 + 1e-5)).all()
    if form == 'int4':
        assert best.sum() < 0.9 * before.sum()


# --- where the bits lie --------------------------------------------------------------------------


@pytest.mark.parametrize('form', INTEGERS)
@pytest.mark.parametrize(('k', 'group'), [(32, 32), (96, 32), (128, 32), (512, 64), (576, 64),
                                         (1024, 128), (1152, 128), (4096, 128), (1056, 32)])
def test_fields_lie_where_the_docstring_says(form: str, k: int, group: int) -> None:
    """By a loop over bits: field i of word j of a group is weight i * words + j of it."""
    bits = INTEGERS[form]
    fields = 32 // bits
    words = group // fields
    packed = pack(drawn(3, k, seed=k), form)
    assert packed.scale is not None
    assert (packed.group, packed.width, packed.rows, packed.bits) == (group, k, 3, bits)
    assert packed.data.dtype == torch.int32
    assert packed.data.shape == (3, k // fields)
    assert packed.data.is_contiguous()
    assert packed.scale.shape == (3, k // group)
    found = np.full((3, k), np.nan)
    for row in range(3):
        for g in range(k // group):
            scale = float(packed.scale[row, g])
            for j in range(words):
                word = int(packed.data[row, g * words + j]) & 0xFFFFFFFF
                for i in range(fields):
                    value = (word >> (bits * i)) % (1 << bits) - (1 << (bits - 1))
                    found[row, g * group + i * words + j] = value * scale
    np.testing.assert_allclose(unpack(packed).numpy(), found, rtol=1e-6)


@pytest.mark.parametrize('form', INTEGERS)
def test_all_values_of_a_field_survive(form: str) -> None:
    """Also those whose word is negative as int32."""
    half = 1 << (INTEGERS[form] - 1)
    values = torch.arange(-half, half).float()
    weight = values.repeat(-(-128 // len(values)))[:128 * max(1, len(values) // 128)].view(1, -1)
    packed = pack(weight, form)
    assert packed.scale is not None
    scale = packed.scale.float().repeat_interleave(packed.group, 1)
    whole = unpack(packed) / scale
    assert torch.equal(whole, whole.round())
    assert (unpack(packed) - weight).abs().max() <= 0.26 * half
    again = pack(unpack(packed), form)
    assert (unpack(again) - unpack(packed)).abs().max() <= 0.51 * scale.max()


@pytest.mark.parametrize('form', FORMATS)
def test_whole_multiples_of_a_scale_come_back_exactly(form: str) -> None:
    """A scale that bfloat16 holds, and the largest number of the format in every group."""
    most = {'plain': 448.0, 'fp8': 448.0, 'int8': 127.0, 'int4': 7.0}[form]
    rng = np.random.default_rng(0)
    if form in ('plain', 'fp8'):
        raw = torch.from_numpy(rng.integers(0, 256, (4, 128), np.uint8)).view(torch.float8_e4m3fn)
        weight = raw.float().nan_to_num(1.0)
    else:
        weight = torch.from_numpy(rng.integers(-int(most), int(most) + 1, (4, 128))).float()
    weight[:, 5::32] = most
    weight *= 2.0 ** -6
    assert torch.equal(unpack(pack(weight, form)), weight)


# --- edges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize('form', FORMATS)
def test_rows_of_zeros_stay_zeros(form: str) -> None:
    weight = drawn(3, 128)
    weight[1] = 0.0
    packed = pack(weight, form)
    assert torch.equal(unpack(packed)[1], torch.zeros(128))
    assert packed.scale is None or (packed.scale.float() > 0.0).all()
    assert torch.equal(unpack(pack(torch.zeros(2, 64), form)), torch.zeros(2, 64))


@pytest.mark.parametrize('form', ['fp8', 'int8', 'int4'])
@pytest.mark.parametrize('size', [1e-30, 1e-20, 1e-12, 1e12, 1e25, 1e36])
def test_tiny_and_huge_weights_stay_finite_and_near(form: str, size: float) -> None:
    """Below 1e-12 a group is as good as zero."""
    weight = drawn(2, 128, size=size).clamp(-3e38, 3e38)
    back = unpack(pack(weight, form))
    assert torch.isfinite(back).all()
    largest = weight.abs().amax()
    worst = {'fp8': FP8, 'int8': 0.27, 'int4': 0.35}[form]
    assert (back - weight).abs().max() <= max(float(worst * largest), 1e-12)


def test_half_precision_weights_are_packed_as_their_values() -> None:
    weight = drawn(3, 128).bfloat16()
    for form in ('fp8', 'int8', 'int4'):
        assert torch.equal(unpack(pack(weight, form)), unpack(pack(weight.float(), form)))
    assert unpack(pack(weight, 'plain')).dtype == torch.bfloat16


@pytest.mark.parametrize('form', FORMATS)
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('shape', [(1, 32), (5, 96), (3, 640), (7, 4096)])
def test_bytes_are_those_of_the_tensors(form: str, dtype: Any, shape: tuple[int, int]) -> None:
    packed = pack(drawn(*shape).to(dtype), form)
    real = sum(value.numel() * value.element_size() for value in (packed.data, packed.scale)
               if value is not None)
    assert packed.bytes == packed_bytes(*shape, form, dtype.itemsize) == real


def test_widths_and_formats_that_do_not_fit_are_refused_in_one_line() -> None:
    for form in INTEGERS:
        for action in (lambda form=form: pack(drawn(2, 48), form),
                       lambda form=form: packed_bytes(2, 48, form, 2)):
            with pytest.raises(ValueError, match=f'^precision: {form}: a weight of width 48: allow'
                                                 'ed are multiples of 32; choose fp8 or bf16$'):
                action()
    assert pack(drawn(2, 48), 'fp8').width == 48
    with pytest.raises(ValueError, match='^format: int3: allowed are plain, fp8, int8, int4$'):
        pack(drawn(2, 32), 'int3')


# --- products ------------------------------------------------------------------------------------


def rms(x: Any, gamma: Any, epsilon: float) -> Any:
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * gamma


@pytest.mark.parametrize('form', FORMATS)
def test_products_of_one_row_are_those_of_the_unpacked_weight(form: str) -> None:
    weight, x, gamma = drawn(12, 96), drawn(1, 96, 1), drawn(1, 96, 2)[0]
    packed = pack(weight, form)
    one, whole = Weight(packed, pack(weight, 'plain'), torch.float32), unpack(packed).float()
    assert torch.allclose(one.row(x), x @ whole.T, atol=1e-5)
    normed = rms(x, gamma, 1e-3)
    assert torch.allclose(one.row(x, gamma, 1e-3), normed @ whole.T, atol=1e-4)
    gate, up = normed @ whole[:6].T, normed @ whole[6:].T
    assert torch.allclose(one.row(x, gamma, 1e-3, gated=True), gate * gate.sigmoid() * up,
                          atol=1e-4)
    total = drawn(1, 12, 4)
    wanted = total + x @ whole.T
    assert one.row(x, add=total) is total
    assert torch.allclose(total, wanted, atol=1e-5)


@pytest.mark.parametrize('form', FORMATS)
def test_products_of_many_rows_take_their_own_format(form: str) -> None:
    weight, x = drawn(12, 96), drawn(5, 96, 1)
    both = Weight(pack(weight, 'int4'), pack(weight, form), torch.float32)
    assert both.narrow == (form == 'fp8')
    given_rows = narrowed(x, both.narrow)
    rows = x if given_rows.scale is None else given_rows.rows.float() * given_rows.scale[:, None]
    wanted = rows @ unpack(pack(weight, form)).float().T
    assert torch.allclose(both.rows(given_rows).plain(), wanted, atol=1e-4)


def test_float8_activations_have_a_scale_a_row() -> None:
    x = drawn(4, 96)
    x[1] *= 1e-4
    x[2] *= 1e4
    x[3] = 0.0
    made = narrowed(x, True)
    assert made.scale is not None
    assert made.rows.dtype == torch.float8_e4m3fn
    assert torch.allclose(made.scale[:3], x[:3].abs().amax(1) / 448.0)
    assert made.scale.shape == (4,)
    back = made.rows.float() * made.scale[:, None]
    allowed = torch.maximum(x.abs() * FP8, made.scale[:, None] * 2.0 ** -10)
    assert ((back - x).abs() <= allowed * (1.0 + 1e-5)).all()
    assert torch.equal(back[3], torch.zeros(96))
    plain = narrowed(x, False)
    assert plain.rows is x
    assert plain.scale is None


def test_norms_and_gates_before_a_float8_product_give_float8() -> None:
    x, y, gamma = drawn(3, 64), drawn(3, 64, 1), drawn(1, 64, 2)[0]
    total = x + y
    wanted = rms(total, gamma, 1e-6)
    made = add_norm(x, Product(y), gamma, 1e-6, narrow=True)
    assert torch.equal(x, total)
    assert made.scale is not None
    back = made.rows.float() * made.scale[:, None]
    assert ((back - wanted).abs() <= wanted.abs() * (FP8 + 1e-4) + made.scale[:, None]).all()
    assert torch.allclose(add_norm(x, None, gamma, 1e-6).rows, wanted, atol=1e-5)
    gate_up = drawn(3, 80, 3)
    gated = gate_up[:, :40] * gate_up[:, :40].sigmoid() * gate_up[:, 40:]
    assert torch.allclose(silu_mul(Product(gate_up)).rows, gated, atol=1e-5)
    small = silu_mul(Product(gate_up), narrow=True)
    assert small.scale is not None
    assert torch.allclose(small.rows.float() * small.scale[:, None], gated, atol=0.3)
    row, column = drawn(1, 3, 4)[0], drawn(1, 80, 5)[0]
    scaled = gate_up * row[:, None] * column
    assert torch.allclose(Product(gate_up, row, column).plain(), scaled)
    assert torch.allclose(silu_mul(Product(gate_up, row, column)).rows,
                          torch.nn.functional.silu(scaled[:, :40]) * scaled[:, 40:], atol=1e-5)
    assert Activation(x).scale is None


# --- a whole model -------------------------------------------------------------------------------


@pytest.mark.parametrize('name', ['fp8', 'int8-weight', 'int4-weight'])
@torch.no_grad()
def test_decoded_logits_are_those_of_a_plain_model_with_the_unpacked_weights(name: str) -> None:
    config = config_of(heads=4, kv_heads=2)
    model, other = model_of(config), model_of(config)
    wanted = precision(name, 'float32')
    for layer in other.language_model.model.layers:
        for part in layer.modules():
            if isinstance(part, torch.nn.Linear):
                part.weight.copy_(unpack(pack(part.weight, wanted.decode)))
    static = StaticLlama(model, wanted, 1, 20)
    assert static.bytes == sum(
        packed_bytes(*part.weight.shape, wanted.decode, 4)
        for layer in model.language_model.model.layers for part in layer.modules()
        if isinstance(part, torch.nn.Linear))
    ids = torch.randint(6, 300, (20,), generator=torch.Generator().manual_seed(0))
    hidden = other.language_model(other.embed(ids[None]))
    expected, plain = other.action_logits(hidden)[0], model.action_logits(
        model.language_model(model.embed(ids[None])))[0]
    for place in range(20):
        at = Rows(torch.tensor([place], dtype=torch.int32), torch.zeros(1, dtype=torch.int32))
        found = static.one(static.embed(ids[place:place + 1]).clone(), at)[0]
        assert (found - expected[place]).abs().max() <= 1e-4
    assert (expected - plain).abs().max() > 1e-3


def test_precisions_name_their_formats() -> None:
    said = {name: precision(name) for name in PRECISIONS}
    assert {name: (found.activations, found.decode, found.prefill)
            for name, found in said.items()} == {
        'fp32': ('float32', 'plain', 'plain'), 'fp16': ('float16', 'plain', 'plain'),
        'bf16': ('bfloat16', 'plain', 'plain'), 'fp8': ('bfloat16', 'fp8', 'fp8'),
        'int8-weight': ('bfloat16', 'int8', 'plain'), 'int4-weight': ('bfloat16', 'int4', 'plain')}
    assert [name for name, found in said.items() if found.quantized] == [
        'fp8', 'int8-weight', 'int4-weight']
    assert precision('int4-weight', prefill='fp8').prefill == 'fp8'
    assert precision('fp8', prefill='bf16').prefill == 'plain'
    assert precision('int8-weight', 'float32').activations == 'float32'
