"""Runs the exported graph with ONNX Runtime; the cache stays in one numpy array."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_ros.policies.edgevla.config import EdgeVlaConfig, to_json
from vla_ros.policies.edgevla.files import (
    CONFIG,
    CONFIG_KEY,
    GRAPH,
    WEIGHTS,
    WEIGHTS_KEY,
    read_bytes,
)

INPUTS = ('images', 'ids', 'state', 'since', 'ring', 'frame')
OUTPUTS = ('actions', 'new')


class OnnxRunner:
    """One policy on ONNX Runtime. Raises ValueError with one line on a graph that does not fit.

    `device`: cpu, cuda or cuda:<number>. `ring` float32 [layers, 2, 1, W, T, kv, head] is written
    in place.
    """

    def __init__(self, folder: Path, config: EdgeVlaConfig, threads: int,
                 device: str = 'cpu') -> None:
        path = folder / GRAPH
        self._session = _session(path, threads, device)
        made_from = self._session.get_modelmeta().custom_metadata_map
        made_for = made_from.get(CONFIG_KEY)
        if made_for != hashlib.sha256(to_json(config).encode()).hexdigest():
            raise ValueError(f'{path}: it was not made from the {CONFIG} beside it; export it '
                             'again, or copy the whole checkpoint again')
        weights = folder / WEIGHTS  # an engine on ONNX Runtime can do without them
        if weights.is_file() and made_from.get(WEIGHTS_KEY) != hashlib.sha256(
                read_bytes(weights)).hexdigest():
            raise ValueError(f'{path}: it was not made from the {WEIGHTS} beside it; export it '
                             'again, or copy the whole checkpoint again')
        self._window = config.window
        self.ring: NDArray[np.float32] = np.zeros(config.ring_shape(), np.float32)

    def run(self, images: NDArray[np.uint8], ids: NDArray[np.int64], state: NDArray[np.float32],
            since: NDArray[np.float32], frame: int) -> NDArray[np.float32]:
        """The chunk [H, A] for [1, C, height, width, 3], [1, L], [1, S], [1]; keeps the frame."""
        values = (images, ids, state, since, self.ring, np.array(frame, np.int64))
        actions, new = self._session.run(OUTPUTS, dict(zip(INPUTS, values, strict=True)))
        self.ring[:, :, :, frame % self._window] = new
        chunk: NDArray[np.float32] = actions[0]
        return chunk

    def clear(self) -> None:
        """Empty the ring; what is masked must still be finite."""
        self.ring.fill(0.0)


def _session(path: Path, threads: int, device: str) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise ValueError('backend onnxruntime: Python module onnxruntime is missing; '
                         'pip install onnxruntime') from None
    provider: Any = 'CPUExecutionProvider'
    if device != 'cpu':
        provider = 'CUDAExecutionProvider', {'device_id': device.partition(':')[2] or '0'}
        if provider[0] not in onnxruntime.get_available_providers():
            raise ValueError(f'device: {device}: this onnxruntime runs on the CPU only; choose '
                             'an engine profile with device: cpu, or pip install onnxruntime-gpu')
    content = read_bytes(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Threads that wait actively would take the processor from whatever runs beside this.
    options.add_session_config_entry('session.intra_op.allow_spinning', '0')
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(content, options, providers=[provider])
    except Exception as error:  # its exceptions have no common base
        raise ValueError(f'{path}: not a whole ONNX file ({" ".join(str(error).split())}); copy '
                         'the checkpoint again, or export it again') from None
