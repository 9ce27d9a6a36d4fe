"""The simulated world: MuJoCo with the arm, blocks and bowls, cameras, and its true state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vla_ros.core.types import Floats, ImageSize
from vla_ros.sim.arm import HIGH, JOINTS, LOW, OPENING, PHYSICS_NS
from vla_ros.sim.kinematics import reach_down
from vla_ros.sim.rendering import import_mujoco
from vla_ros.sim.scene import BLOCK_HALF, BLOCKS, BOWLS, COLOURS, Scene

# A block counts as held where it is between fingers that are about as wide open as it is.
HELD_OPENING = 0.0195            # m, each finger
HELD_WITHIN = (0.018, 0.020, 0.022)  # m from the tool point


@dataclass(frozen=True)
class Snapshot:
    """What is true at one time: points [3] in m in base_link, `opening` of each finger in m.

    `held`: colour of the block between the closed fingers.
    """

    time_ns: int
    tool: Floats
    opening: float
    blocks: Mapping[str, Floats]
    bowls: Mapping[str, Floats]
    held: str | None


def aside_of(a: Floats, b: Floats) -> float:
    """Horizontal distance of two points, m."""
    return float(np.hypot(a[0] - b[0], a[1] - b[1]))


class World:
    """One arm and its table. Not thread-safe; rendering belongs to the thread that constructed it.

    `cameras` gives the sizes of those to be rendered: base, wrist, view.
    """

    def __init__(self, cameras: Mapping[str, ImageSize] | None = None) -> None:
        self._mujoco = mujoco = import_mujoco()
        self._model: Any = mujoco.MjModel.from_xml_path(
            str(Path(__file__).with_name('arm.xml')))
        self._data: Any = mujoco.MjData(self._model)
        model = self._model
        self._joints = [model.joint(name).qposadr[0] for name in JOINTS]
        self._fingers = [model.joint(f'{side}_finger').qposadr[0] for side in ('left', 'right')]
        self._blocks = [model.joint(model.body(f'block_{i}').jntadr[0]).qposadr[0]
                        for i in range(BLOCKS)]
        self._bowls = [model.body(f'bowl_{i}').mocapid[0] for i in range(BOWLS)]
        self._tool = model.site('tool').id
        self._camera = (model.camera('base').pos.copy(), model.camera('base').quat.copy())
        self._table = model.geom('table').rgba.copy()
        self._lamp = model.light('lamp').diffuse.copy()
        self._renderers = {name: (mujoco.Renderer(model, size.height, size.width), name)
                           for name, size in (cameras or {}).items()}
        self._scene: Scene | None = None

    def close(self) -> None:
        """Give the renderers back."""
        for renderer, _ in self._renderers.values():
            renderer.close()
        self._renderers = {}

    # --- life ----------------------------------------------------------------------------------

    def reset(self, scene: Scene) -> None:
        """Put everything in its place, at time 0 and at rest."""
        data = self._data
        self._mujoco.mj_resetData(self._model, data)
        self._scene = scene
        for address, block in zip(self._blocks, scene.blocks, strict=True):
            half = block.turn / 2.0
            data.qpos[address:address + 7] = [block.x, block.y, BLOCK_HALF,
                                              np.cos(half), 0.0, 0.0, np.sin(half)]
        for index, bowl in zip(self._bowls, scene.bowls, strict=True):
            data.mocap_pos[index] = [bowl.x, bowl.y, 0.0]
        joints = reach_down(scene.tool)
        data.qpos[self._joints] = joints
        data.qpos[self._fingers] = scene.gripper * OPENING
        data.ctrl[:] = data.act[:] = [*joints, scene.gripper * OPENING]
        self._paint(scene)
        self._mujoco.mj_forward(self._model, data)

    @property
    def time_ns(self) -> int:
        """Simulated time since the reset."""
        return round(float(self._data.time) * 1e9 / PHYSICS_NS) * PHYSICS_NS

    def command(self, arm: ArrayLike | None = None, gripper: float | None = None) -> None:
        """New targets: joints [6] in rad, finger position in m. The last ones are held."""
        if arm is not None:
            self._data.ctrl[:len(JOINTS)] = np.clip(arm, LOW, HIGH)
        if gripper is not None:
            self._data.ctrl[len(JOINTS)] = np.clip(gripper, 0.0, OPENING)

    def step_to(self, time_ns: int) -> None:
        """Let physics go on until `time_ns`, in whole steps of PHYSICS_NS."""
        steps = (time_ns - self.time_ns) // PHYSICS_NS
        if steps > 0:
            self._mujoco.mj_step(self._model, self._data, steps)

    # --- what a robot measures -----------------------------------------------------------------

    def positions(self) -> Floats:
        """Measured positions [7] in the order of STATE_NAMES: rad, and m for the gripper."""
        qpos = self._data.qpos
        return np.append(qpos[self._joints], np.mean(qpos[self._fingers]))

    def render(self, camera: str) -> NDArray[np.uint8]:
        """An image uint8 [height, width, 3] RGB of a camera."""
        renderer, name = self._renderers[camera]
        renderer.update_scene(self._data, camera=name)
        return np.asarray(renderer.render(), dtype=np.uint8)

    # --- what only the simulator knows ---------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The true state now."""
        scene, data = self._scene, self._data
        assert scene is not None, 'reset comes first'
        # mj_step leaves site positions of before the step.
        self._mujoco.mj_kinematics(self._model, data)
        tool = data.site_xpos[self._tool].copy()
        axes = data.site_xmat[self._tool].reshape(3, 3)
        opening = float(np.mean(data.qpos[self._fingers]))
        blocks = {block.colour: data.qpos[address:address + 3].copy()
                  for block, address in zip(scene.blocks, self._blocks, strict=True)}
        held = None
        if opening <= HELD_OPENING:
            for colour, point in blocks.items():
                if np.all(np.abs(axes.T @ (point - tool)) < HELD_WITHIN):
                    held = colour
        bowls = {bowl.colour: np.array([bowl.x, bowl.y, 0.0]) for bowl in scene.bowls}
        return Snapshot(self.time_ns, tool, opening, blocks, bowls, held)

    def _paint(self, scene: Scene) -> None:
        model, look = self._model, scene.look
        def shade(colour: str) -> list[float]:
            return [*np.clip(np.multiply(COLOURS[colour], look.hue[colour]), 0.0, 1.0), 1.0]
        for i, block in enumerate(scene.blocks):
            model.geom(f'block_{i}').rgba = shade(block.colour)
        for i, bowl in enumerate(scene.bowls):
            body = model.body(f'bowl_{i}')
            first = body.geomadr[0]
            model.geom_rgba[first:first + body.geomnum[0]] = shade(bowl.colour)
        model.geom('table').rgba[:3] = np.clip(self._table[:3] * look.table, 0.0, 1.0)
        model.light('lamp').diffuse = self._lamp * look.light
        position, quaternion = self._camera
        model.camera('base').pos = position + look.camera_offset
        turned = quaternion.copy()
        turn = np.asarray(look.camera_turn)
        angle = float(np.linalg.norm(turn))
        if angle > 0.0:
            delta = np.append(np.cos(angle / 2), np.sin(angle / 2) * turn / angle)
            self._mujoco.mju_mulQuat(turned, quaternion, delta)
        model.camera('base').quat = turned

