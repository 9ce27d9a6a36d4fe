"""The precisions of a policy, by name: how weights are packed for one row and for many."""

from __future__ import annotations

from dataclasses import dataclass

PRECISIONS = ('fp32', 'fp16', 'bf16', 'fp8', 'int8-weight', 'int4-weight')


@dataclass(frozen=True)
class Precision:
    """Formats of the language model's weights: `decode` for one token, `prefill` for a prompt.

    Activations, vision, projector and head are in `activations` (a torch dtype's name).
    """

    name: str
    activations: str
    decode: str = 'plain'
    prefill: str = 'plain'

    @property
    def quantized(self) -> bool:
        return (self.decode, self.prefill) != ('plain', 'plain')


def precision(name: str, activations: str = 'bfloat16', prefill: str = 'default') -> Precision:
    """A precision by its name. Raises ValueError with one line.

    `activations` holds for the quantized ones. `prefill` (bf16 or fp8) replaces the format of the
    prompt's pass, which costs arithmetic, not weight traffic.
    """
    plain = {'fp32': 'float32', 'fp16': 'float16', 'bf16': 'bfloat16'}
    if name in plain:
        if prefill != 'default':
            raise ValueError(f'prefill_precision: {prefill}: only with fp8, int8-weight and '
                             f'int4-weight; the precision is {name}')
        return Precision(name, plain[name])
    packed = {'fp8': ('fp8', 'fp8'), 'int8-weight': ('int8', 'plain'),
              'int4-weight': ('int4', 'plain')}
    if name not in packed:
        raise ValueError(f'precision: {name}: allowed are {", ".join(PRECISIONS)}')
    decode, many = packed[name]
    formats = {'default': many, 'bf16': 'plain', 'fp8': 'fp8'}
    if prefill not in formats:
        raise ValueError(f'prefill_precision: {prefill}: allowed are default, bf16 and fp8')
    return Precision(name, activations, decode, formats[prefill])
