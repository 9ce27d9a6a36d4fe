"""The Triton kernels against plain torch: interpreted on a CPU, compiled on a GPU.

Their launches in `ops` are what is called, with tensors that look like those of a GPU where there
is none. Run by test_openvla_kernels.py, on a CPU in a process of its own with TRITON_INTERPRET=1,
which has to be there when triton is imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip('torch', reason='the kernels work on its tensors')
triton = pytest.importorskip('triton', reason='there is none for this machine')

import triton.language as tl  # noqa: E402
from openvla_rig import config_of, frames, model_of  # noqa: E402

from vla_ros.policies.openvla.kernels import ops  # noqa: E402
from vla_ros.policies.openvla.kernels.ops import (  # noqa: E402
    HeadShape,
    Product,
    Ring,
    Rows,
    Scratch,
    Shape,
    Tuning,
    Weight,
)
from vla_ros.policies.openvla.llama import rotary  # noqa: E402
from vla_ros.policies.openvla.quantize import FORMATS, pack, unpack  # noqa: E402

torch.set_num_threads(1)
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device('cuda' if ON_GPU else 'cpu')
# Small tiles, so that small weights take several steps; the last of them partly outside.
TUNING = Tuning(dependent=False, shapes={
    f'{form}{end}': Shape(rows, 4, 128 if form in ('plain', 'fp8') else 32)
    for form in FORMATS for end, rows in (('', 4), (' gated', 2))})
# The kernel for int4 sums eight products in float16.
TOLERANCES = {'plain': 2e-4, 'fp8': 2e-4, 'int8': 2e-4, 'int4': 4e-3}
gpu = pytest.mark.skipif(not ON_GPU, reason='no GPU')


class Seeming(torch.Tensor):
    """A tensor of the CPU that says it is one of a GPU, so that kernels are launched."""

    @property
    def is_cuda(self) -> bool:
        return True


def eight_without_ptx() -> Any:
    """What the few lines of PTX do in the kernel for int4, for the interpreter, which knows none.

    sum((q - 8) x) of the eight fields of each word; x0 holds the activations, float16, of field 0
    in its low half and of field 4 in its high half, and so on.
    """
    @triton.jit
    def eight(words, x0, x1, x2, x3):  # type: ignore[no-untyped-def]
        total = words.to(tl.float32) * 0.0
        for place in tl.static_range(4):
            if place == 0:
                both = x0
            elif place == 1:
                both = x1
            elif place == 2:
                both = x2
            else:
                both = x3
            low = (both & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            high = ((both >> 16) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            total += (((words >> (4 * place)) & 15) - 8).to(tl.float32) * low
            total += (((words >> (4 * place + 16)) & 15) - 8).to(tl.float32) * high
        return total

    return eight


@pytest.fixture(autouse=True, scope='module')
def interpreted() -> Iterator[None]:
    """Without a GPU, Triton's interpreter takes the place of its compiler."""
    with pytest.MonkeyPatch.context() as patch:
        if not ON_GPU:
            assert os.environ.get('TRITON_INTERPRET') == '1'
            patch.setattr(ops.kernels(), '_eight', eight_without_ptx(), raising=False)
        yield


def there(value: Any) -> Any:
    """A copy on the GPU, or one that seems to be there."""
    return value.clone().to(DEVICE) if ON_GPU else value.clone().as_subclass(Seeming)


def back(value: Any) -> Any:
    return value.cpu() if ON_GPU else value.as_subclass(torch.Tensor)


def drawn(*shape: int, seed: int = 0, size: float = 1.0) -> Any:
    return size * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def near(found: Any, wanted: Any, tolerance: float = 2e-4) -> None:
    found = back(found)
    assert found.shape == wanted.shape
    assert torch.isfinite(found).all()
    assert (found.float() - wanted).abs().max() <= tolerance * (1.0 + wanted.abs().max())


# --- one row -------------------------------------------------------------------------------------


@pytest.mark.parametrize('form', FORMATS)
@pytest.mark.parametrize(('n', 'k'), [(6, 96), (6, 640)])
def test_matrix_times_vector(form: str, n: int, k: int) -> None:
    """Alone, after a norm, added, and as gate and up; rows that no program fills, odd widths."""
    packed = pack(drawn(n, k), form)
    moved = replace(packed, data=there(packed.data),
                    scale=None if packed.scale is None else there(packed.scale))
    plain, fast = (Weight(each, each, torch.float32, TUNING) for each in (packed, moved))
    assert fast._fast
    x, gamma, total = drawn(1, k, seed=1), drawn(k, seed=2), drawn(1, n, seed=3)
    on_it, tolerance = [there(value) for value in (x, gamma)], TOLERANCES[form]
    near(fast.row(on_it[0]), plain.row(x), tolerance)
    near(fast.row(*on_it, 1e-3), plain.row(x, gamma, 1e-3), tolerance)
    near(fast.row(*on_it, 1e-3, gated=True), plain.row(x, gamma, 1e-3, gated=True), tolerance)
    added = there(total)
    assert fast.row(on_it[0], add=added) is added
    near(added, plain.row(x, add=total.clone()), tolerance)
    wanted = plain.row(x, gamma, 1e-3, add=back(added).clone())
    near(fast.row(*on_it, 1e-3, add=added), wanted, tolerance)
    assert torch.equal(back(on_it[0]), x)


@pytest.mark.parametrize('form', FORMATS)
def test_matrix_times_vector_in_the_shapes_that_are_shipped(form: str) -> None:
    packed = pack(drawn(12, 4096, size=0.02), form)
    moved = replace(packed, data=there(packed.data),
                    scale=None if packed.scale is None else there(packed.scale))
    fast = Weight(moved, moved, torch.float32, Tuning(dependent=False))
    x, gamma = drawn(1, 4096, seed=1), drawn(4096, seed=2)
    plain = Weight(packed, packed, torch.float32)
    for gated in (False, True):
        near(fast.row(there(x), there(gamma), 1e-6, gated=gated),
             plain.row(x, gamma, 1e-6, gated=gated), TOLERANCES[form])


def test_every_value_of_a_field_is_worth_the_same_in_the_kernel() -> None:
    """Also in words that are negative numbers: one weight of 1 at a time."""
    for form, bits in (('int8', 8), ('int4', 4)):
        half = 1 << (bits - 1)
        values = torch.arange(64) % (2 * half) - half
        packed = pack(values.float().view(1, 64) * 2.0 ** -4, form)
        moved = replace(packed, data=there(packed.data), scale=there(packed.scale))
        fast, whole = Weight(moved, moved, torch.float32, TUNING), unpack(packed)
        for place in range(0, 64, 7):
            x = torch.zeros(1, 64)
            x[0, place] = 1.0
            near(fast.row(there(x)), whole[:, place:place + 1], 1e-4)


# --- attention -----------------------------------------------------------------------------------

SLOTS, LENGTH = 3, 40


def ring_of(shape: HeadShape, length: int = LENGTH) -> Ring:
    return Ring(drawn(SLOTS, length, shape.kv, shape.width, seed=4),
                drawn(SLOTS, length, shape.kv, shape.width, seed=5))


@pytest.mark.parametrize('split', [16, 64])
@pytest.mark.parametrize('turned', [False, True])
@pytest.mark.parametrize('shape', [HeadShape(4, 2, 24), HeadShape(3, 1, 16)])
def test_attention(shape: HeadShape, turned: bool, split: int,
                   monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of several slots, the first position and the last; in one part and in several."""
    monkeypatch.setattr(ops, 'SPLIT', split)
    turn = rotary(torch.arange(LENGTH), shape.width, 1e4)
    positions = torch.tensor([5, 0, LENGTH - 1], dtype=torch.int32)
    at = Rows(positions, torch.tensor([2, 0, 1], dtype=torch.int32))
    moved_turn, moved_at = tuple(map(there, turn)), Rows(there(at.positions), there(at.slots))
    qkv, ring = drawn(3, (shape.heads + 2 * shape.kv) * shape.width), ring_of(shape)
    moved_ring, moved = Ring(there(ring.keys), there(ring.values)), there(qkv)
    if turned:
        ops.rope_write(Product(qkv), turn, at, ring, shape)
        ops.rope_write(Product(moved), moved_turn, moved_at, moved_ring, shape)
    scratch = Scratch(3, LENGTH, shape, DEVICE)
    assert scratch.splits == -(-LENGTH // split)
    for _ in range(2):  # what one call leaves behind must not matter to the next
        wanted = ops.attend(qkv.clone(), turn, at, ring, shape, turned, scratch)
        found = ops.attend(moved, moved_turn, moved_at, moved_ring, shape, turned, scratch, TUNING)
        near(found, wanted)
        near(moved_ring.keys, ring.keys, 1e-5)
        near(moved_ring.values, ring.values, 0.0)
        assert not scratch.arrived.any()


@pytest.mark.parametrize('turned', [False, True])
def test_what_lies_behind_a_row_in_the_ring_may_be_anything(turned: bool) -> None:
    shape, qkv = HeadShape(2, 2, 16), drawn(2, 6 * 16)
    turn, ring = rotary(torch.arange(LENGTH), 16, 1e4), ring_of(HeadShape(2, 2, 16))
    at = Rows(torch.tensor([19, 4], dtype=torch.int32), torch.tensor([0, 2], dtype=torch.int32))
    clean = ops.attend(qkv.clone(), turn, at, Ring(ring.keys.clone(), ring.values.clone()), shape,
                       turned, Scratch(2, LENGTH, shape, torch.device('cpu')))
    for part in (ring.keys, ring.values):
        part[0, 20:] = torch.nan
        part[2, 5:] = torch.inf
    near(ops.attend(there(qkv), tuple(map(there, turn)), Rows(there(at.positions), there(at.slots)),
                    Ring(there(ring.keys), there(ring.values)), shape, turned,
                    Scratch(2, LENGTH, shape, DEVICE), TUNING), clean)
    near(ops.attend(qkv.clone(), turn, at, ring, shape, turned,
                    Scratch(2, LENGTH, shape, torch.device('cpu'))).to(DEVICE), clean)


def test_attention_of_a_padding_row_is_finite() -> None:
    shape = HeadShape(2, 2, 32)
    turn = tuple(map(there, rotary(torch.arange(LENGTH), 32, 1e4)))
    ring = ring_of(shape)
    at = Rows(there(torch.tensor([-1, 3], dtype=torch.int32)),
              there(torch.zeros(2, dtype=torch.int32)))
    qkv = there(drawn(2, 6 * 32))
    scratch = Scratch(2, LENGTH, shape, DEVICE)
    made = ops.attend(qkv, turn, at, Ring(there(ring.keys), there(ring.values)), shape, True,
                      scratch, TUNING)
    assert torch.isfinite(back(made)).all()
    assert back(made)[1].abs().max() > 0.0


@pytest.mark.parametrize('scaled', [False, True])
@pytest.mark.parametrize('shape', [HeadShape(4, 2, 24), HeadShape(2, 2, 32), HeadShape(40, 40, 2)])
def test_turning_and_writing_of_rows(shape: HeadShape, scaled: bool) -> None:
    """Padding goes nowhere; with scales of a float8 product; more heads than one program takes."""
    turn = rotary(torch.arange(LENGTH), shape.width, 1e4)
    positions = torch.tensor([7, -1, 0, LENGTH - 1, -1], dtype=torch.int32)
    at = Rows(positions, torch.tensor([1, 0, 2, 1, 1], dtype=torch.int32))
    width = (shape.heads + 2 * shape.kv) * shape.width
    qkv, ring = drawn(5, width), ring_of(shape)
    factors = (drawn(5, seed=6), drawn(width, seed=7)) if scaled else ()
    moved_ring = Ring(there(ring.keys), there(ring.values))
    found = ops.rope_write(Product(there(qkv), *map(there, factors)), tuple(map(there, turn)),
                           Rows(there(positions), there(at.slots)), moved_ring, shape)
    before = ring.keys.clone()
    wanted = ops.rope_write(Product(qkv, *factors), turn, at, ring, shape)
    real = positions >= 0
    near(found[real.to(DEVICE)], wanted[real], 1e-5)
    near(moved_ring.keys, ring.keys, 1e-5)
    near(moved_ring.values, ring.values, 1e-5)
    assert (ring.keys != before).any((2, 3)).sum() == 3


# --- norms and gates -----------------------------------------------------------------------------


@pytest.mark.parametrize('narrow', [False, True])
@pytest.mark.parametrize('scaled', [False, True])
@pytest.mark.parametrize('width', [96, 128, 200])
def test_sum_and_norm(width: int, scaled: bool, narrow: bool) -> None:
    x, y, gamma = drawn(5, width), drawn(5, width, seed=1), drawn(width, seed=2)
    factors = (drawn(5, seed=3), drawn(width, seed=4)) if scaled else ()
    moved = there(x)
    made = ops.add_norm(moved, Product(there(y), *map(there, factors)), there(gamma), 1e-6, narrow)
    wanted = ops.add_norm(x, Product(y, *factors), gamma, 1e-6)
    near(moved, x, 1e-6)
    same(made, wanted.rows, narrow)
    unchanged = there(x)
    same(ops.add_norm(unchanged, None, there(gamma), 1e-6, narrow),
         ops.add_norm(x, None, gamma, 1e-6).rows, narrow)
    assert torch.equal(back(unchanged), x)


def same(made: ops.Activation, wanted: Any, narrow: bool) -> None:
    """The rows, and as float8 where they are narrow: off by a sixteenth at most.

    But for a few in the interpreter: it forgets the carry to the next power of two.
    """
    assert (made.scale is None) == (not narrow)
    if made.scale is None:
        near(made.rows, wanted, 1e-5)
        return
    assert made.rows.dtype == torch.float8_e4m3fn
    scale = back(made.scale)[:, None]
    assert torch.allclose(scale[:, 0], wanted.abs().amax(1) / 448.0, rtol=1e-4)
    error = (back(made.rows).float() * scale - wanted).abs()
    right = error <= wanted.abs() * (2.0 ** -4 + 1e-4) + scale * 2.0 ** -9
    assert right.float().mean() > (0.999999 if ON_GPU else 0.9)


@pytest.mark.parametrize('width', [96, 128])
def test_sum_and_layer_norm(width: int) -> None:
    x, y = drawn(3, width), drawn(3, width, seed=1)
    gamma, beta = drawn(width, seed=2), drawn(width, seed=3)
    moved = there(x)
    near(ops.add_layer_norm(moved, there(y), there(gamma), there(beta), 1e-6),
         ops.add_layer_norm(x, y, gamma, beta, 1e-6), 1e-5)
    near(moved, x, 1e-6)


@pytest.mark.parametrize('narrow', [False, True])
@pytest.mark.parametrize('scaled', [False, True])
@pytest.mark.parametrize(('rows', 'hidden'), [(3, 40), (1, 128), (70, 24), (2, 2100)])
def test_gate(rows: int, hidden: int, scaled: bool, narrow: bool) -> None:
    """Many rows lie in a block whose size products like better."""
    gate_up = drawn(rows, 2 * hidden)
    factors = (drawn(rows, seed=3), drawn(2 * hidden, seed=4)) if scaled else ()
    made = ops.silu_mul(Product(there(gate_up), *map(there, factors)), narrow)
    same(made, ops.silu_mul(Product(gate_up, *factors)).rows, narrow)
    if made.block is not None:
        assert len(made.block) == (rows if rows < 64 else 128)
        assert made.rows.data_ptr() == made.block.data_ptr()


def test_rows_as_float8() -> None:
    x = drawn(4, 96)
    x[1] *= 1e-5
    x[2] = 0.0
    made = ops.narrowed(there(x), True)
    wanted = ops.narrowed(x, True)
    assert made.scale is not None
    assert wanted.scale is not None
    assert torch.allclose(back(made.scale), wanted.scale, rtol=1e-5)
    same(ops.narrowed(there(x[:2]), True), x[:2], True)
    assert not back(made.rows).float()[2].any()


# --- on a GPU ------------------------------------------------------------------------------------


@gpu
@pytest.mark.parametrize('precision', ['bf16', 'fp32', 'fp8', 'int8-weight', 'int4-weight'])
@pytest.mark.parametrize('kind', [('graph', False), ('jacobi', False), ('actionflow', False),
                                  ('actionflow', True)], ids=str)
def test_captured_graphs_answer_as_the_same_work_without_them(
        kind: tuple[str, bool], precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from vla_ros.policies.openvla import captured
    from vla_ros.policies.openvla.backends import BackendOptions, make_backend

    class Plainly(captured.Captured):
        def __init__(self, work: Any, device: Any, pool: Any = None) -> None:
            self._work, self._graph = work, None

    dtype = torch.float32 if precision == 'fp32' else torch.bfloat16
    config, (name, overlap) = config_of(heads=4, kv_heads=2), kind
    options = BackendOptions(buckets=(16, 32), overlap=overlap)
    seen, found = frames(config, 20), []
    for how in (captured.Captured, Plainly):
        monkeypatch.setattr('vla_ros.policies.openvla.static_backend.Captured', how)
        monkeypatch.setattr('vla_ros.policies.openvla.jacobi.Captured', how)
        backend = make_backend(name, model_of(config).to(DEVICE, dtype), precision, options)
        backend.warm_up(lambda line: None)
        found.append([backend.step(frame) for frame in seen])
    for graphed, plain in zip(*found, strict=True):
        assert (graphed is None) == (plain is None)
        assert graphed is None or graphed.tolist() == plain.tolist()


@gpu
@pytest.mark.parametrize('kind', [('graph', False), ('jacobi', False), ('actionflow', False),
                                  ('actionflow', True)], ids=str)
def test_tokens_on_a_gpu_equal_the_baseline_in_fp32(kind: tuple[str, bool]) -> None:
    from vla_ros.policies.openvla.backends import BackendOptions, make_backend
    from vla_ros.policies.openvla.baseline import Baseline
    config = config_of(heads=4, kv_heads=2)
    model = model_of(config).to(DEVICE)
    backend = make_backend(kind[0], model, 'fp32', BackendOptions(buckets=(16, 32),
                                                                  overlap=kind[1]))
    backend.warm_up(lambda line: None)
    baseline, seen = Baseline(model), frames(config, 40)
    wanted = [baseline.step(frame).tolist() for frame in seen]
    for number, frame in enumerate(seen):
        ids = backend.step(frame)
        if number >= backend.lag:
            assert ids is not None
            assert ids.tolist() == wanted[number - backend.lag]
