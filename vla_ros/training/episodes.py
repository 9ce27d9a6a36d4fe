"""One recorded episode: the scripted expert does what it is told, is disturbed, and recovers.

Only what the expert did undisturbed is a label; disturbances stay in the frames as history.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.types import NS_PER_S, Floats
from vla_ros.sim.arm import OPENING
from vla_ros.sim.expert import Expert, gripper_position
from vla_ros.sim.judge import Judge
from vla_ros.sim.kinematics import reach_down
from vla_ros.sim.scene import COLOURS, Placed, Scene, make_scene
from vla_ros.sim.tasks import Kind, Task, wordings
from vla_ros.sim.trial import draw_task
from vla_ros.sim.world import Snapshot, World
from vla_ros.training.advice import Adviser, fair

TICK_NS = NS_PER_S // 50
TICKS_PER_FRAME = 5   # frames at 10 Hz
CAMERAS = ('base', 'wrist')
KINDS = {Kind.REACH: 0.15, Kind.PUSH: 0.25, Kind.PICK: 0.2, Kind.BOWL: 0.4}
DISTURBED = 0.75      # share of episodes with disturbances
CALM_S, DISTURBED_S = (0.6, 3.5), (0.2, 0.8)
SWITCHED = 0.3        # share of instructions that change before they are done
TASK_S = 8.0          # the longest time for one instruction
DISTURBANCE_SPEED = 0.3  # m/s

# Drives the arm in place of random disturbances: (frames, state, sentence, snapshot) at each
# frame, joint and gripper targets [16, 7] out, one per 0.1 s.
Driver = Callable[[dict[str, NDArray[np.uint8]], Floats, str, int], Floats]


@dataclass(frozen=True)
class Episode:
    """F frames of one episode.

    `images` uint8 [F, C, h, w, 3]; `state` float32 [F, 7]; `sentence` of each frame; `targets`
    float32 [F, H, 7]: joints in rad and gripper 0..1, the command at the frame and every 0.1 s
    from there; `valid` bool [F, H]; `objects` float32 [F, 6]: where the thing of the task and its
    bowl (or the thing again) are, m; `things` float32 [F, 8, 3]: where the block and the bowl of
    each colour are, nan where there is none.

    `advised`: A sentences of each frame, that of the frame first and others drawn; `advice` float32
    [F, A, 3, 7]: what the expert would command if it were on its way, at the frame and every 0.1 s
    from there; `advised_objects` float32 [F, A, 6], as `objects`.
    """

    images: NDArray[np.uint8]
    state: NDArray[np.float32]
    sentences: tuple[str, ...]
    targets: NDArray[np.float32]
    valid: NDArray[np.bool_]
    objects: NDArray[np.float32]
    things: NDArray[np.float32]
    advised: tuple[tuple[str, ...], ...]
    advice: NDArray[np.float32]
    advised_objects: NDArray[np.float32]


def record(world: World, seed: int, frames: int, horizon: int,
           driver: Driver | None = None, advised: int = 0,
           adviser: Adviser | None = None) -> Episode:
    """Record an episode: same seed, same episode (where the driver is deterministic).

    `advised`: sentences of each frame that an `adviser` answers.
    """
    rng = np.random.default_rng([77, seed])
    scene = make_scene(rng)
    if rng.random() < 0.5:
        scene = replace(scene, tool=_anywhere(rng))
    world.reset(scene)
    ticks = (frames + horizon) * TICKS_PER_FRAME
    commands = np.zeros((ticks, 7), np.float32)
    segments = np.zeros(ticks, np.int64)  # 0: not the expert
    pushing = _Disturbances(rng, driver is not None)
    expert, asked = Expert(TICK_NS / NS_PER_S), _Asked(rng, scene)
    advice = _Advice(np.random.default_rng([78, seed]), advised, adviser)
    images, states, sentences, objects, things = [], [], [], [], []
    segment, in_control = 0, False
    for tick in range(ticks):
        now = world.snapshot()
        changed = asked.update(now)
        disturbed = pushing.update(now, changed)
        if tick % TICKS_PER_FRAME == 0 and len(images) < frames:
            pictures = {name: world.render(name) for name in CAMERAS}
            positions = world.positions()
            images.append(np.stack([pictures[name] for name in CAMERAS]))
            states.append(positions)
            sentences.append(asked.sentence)
            objects.append(_objects(now, asked.task))
            things.append(_things(now))
            advice.add(world, now, asked)
            if driver is not None:
                pushing.plan = driver(pictures, positions, asked.sentence, now.time_ns)
                pushing.plan_tick = tick
        if disturbed:
            in_control = False
            joints, gripper = pushing.act(now, tick)
        else:
            if changed or not in_control:
                segment += 1
            if not in_control:
                expert.begin()
                in_control = True
            joints, gripper = expert.act(now, asked.task)
            segments[tick] = segment
        commands[tick] = [*joints, gripper]
        world.command(joints, gripper_position(gripper))
        world.step_to(now.time_ns + TICK_NS)
    steps = (np.arange(frames)[:, None] + np.arange(horizon)) * TICKS_PER_FRAME
    here = segments[steps[:, :1]]
    return Episode(np.stack(images), np.asarray(states, np.float32), tuple(sentences),
                   commands[steps], (segments[steps] == here) & (here > 0),
                   np.asarray(objects, np.float32), np.asarray(things, np.float32),
                   *advice.made())


class _Advice:
    """What the expert would do at each frame for some sentences."""

    def __init__(self, rng: np.random.Generator, count: int, adviser: Adviser | None) -> None:
        self._rng, self._count, self._adviser = rng, count, adviser
        self._rows: list[tuple[tuple[str, ...], list[Floats], list[Floats]]] = []

    def add(self, world: World, now: Snapshot, asked: _Asked) -> None:
        """A frame."""
        if not self._count or self._adviser is None:
            return
        others = [task for task in self._adviser.sensible(now) if task != asked.task]
        # By kind first, as in what is asked: there are most tasks with bowls.
        kinds = [kind for kind in KINDS if any(task.kind is kind for task in others)]
        weights = np.array([KINDS[kind] for kind in kinds])
        tasks, sentences = [asked.task], [asked.sentence]
        while len(tasks) < self._count:
            kind = kinds[self._rng.choice(len(kinds), p=weights / weights.sum())]
            same = [task for task in others if task.kind is kind]
            tasks.append(same[self._rng.integers(len(same))])
            texts = wordings(tasks[-1])
            sentences.append(texts[self._rng.integers(len(texts))])
        self._rows.append((tuple(sentences), [self._adviser.targets(world, task) for task in tasks],
                           [_objects(now, task) for task in tasks]))

    def made(self) -> tuple[tuple[tuple[str, ...], ...], NDArray[np.float32], NDArray[np.float32]]:
        """Sentences, advice, objects of all frames."""
        return (tuple(row[0] for row in self._rows),
                np.array([row[1] for row in self._rows], np.float32),
                np.array([row[2] for row in self._rows], np.float32))


class _Asked:
    """What is asked of the arm, and for how long."""

    def __init__(self, rng: np.random.Generator, scene: Scene) -> None:
        self._rng = rng
        self._scene = scene
        self._judge: Judge | None = None
        self._until_ns = 0
        self.task = Task(Kind.REACH, scene.blocks[0].colour)
        self.sentence = ''

    def update(self, now: Snapshot) -> bool:
        """Whether a new instruction comes now."""
        if self._judge is not None:
            before = self._judge.success
            if self._judge.update(now) and not before:
                rest_ns = round(self._rng.uniform(0.3, 1.3) * NS_PER_S)
                self._until_ns = min(self._until_ns, now.time_ns + rest_ns)
            if now.time_ns < self._until_ns:
                return False
        self._ask(now)
        return True

    def _ask(self, now: Snapshot) -> None:
        rng = self._rng
        scene = replace(self._scene, blocks=tuple(
            Placed(b.colour, float(now.blocks[b.colour][0]), float(now.blocks[b.colour][1]))
            for b in self._scene.blocks))
        kinds, weights = list(KINDS), list(KINDS.values())
        for _ in range(50):
            task = draw_task(rng, scene, kinds[rng.choice(len(kinds), p=weights)])
            if task is not None and fair(now, task):
                self.task = task
                break
        texts = wordings(self.task)
        self.sentence = texts[rng.integers(len(texts))]
        self._judge = Judge(self.task, now)
        seconds = rng.uniform(0.4, 3.5) if rng.random() < SWITCHED else TASK_S
        self._until_ns = now.time_ns + round(seconds * NS_PER_S)


class _Disturbances:
    """When something else moves the arm, and how."""

    def __init__(self, rng: np.random.Generator, driven: bool) -> None:
        self._rng = rng
        self._driven = driven
        self._active = False
        calm = rng.random() > DISTURBED and not driven
        self._next_ns = 10**18 if calm else 0 if driven else self._after(CALM_S)
        self._target = np.zeros(3)
        self._goal = np.zeros(3)
        self._gripper = 0.0
        self.plan: Floats | None = None
        self.plan_tick = 0

    def _after(self, seconds: tuple[float, float]) -> int:
        return round(self._rng.uniform(*seconds) * NS_PER_S)

    def update(self, now: Snapshot, changed: bool) -> bool:
        """Whether the arm is disturbed now."""
        if now.time_ns >= self._next_ns:
            self._active = not self._active
            if not self._active:
                calm = (0.8, 2.5) if self._driven else CALM_S
                self._next_ns = now.time_ns + self._after(calm)
            else:
                length = (0.5, 4.0) if self._driven else DISTURBED_S
                self._next_ns = now.time_ns + self._after(length)
                self._target = now.tool.copy()
                self._goal = now.tool + self._rng.normal(0.0, 0.05, 3)
                self._goal[2] = np.clip(self._goal[2], 0.02, 0.25)
                closed = now.opening < OPENING / 2
                flip = self._rng.random() < 0.3
                self._gripper = float(closed == flip)
        return self._active

    def act(self, now: Snapshot, tick: int) -> tuple[Floats, float]:
        """Joint targets [6] and gripper of the disturbance."""
        if self.plan is not None:
            at = (tick - self.plan_tick) / TICKS_PER_FRAME
            low = min(int(at), len(self.plan) - 1)
            high = min(low + 1, len(self.plan) - 1)
            row = self.plan[low] + (at - int(at)) * (self.plan[high] - self.plan[low])
            return row[:6], float(self.plan[low][6])
        way = self._goal - self._target
        distance = float(np.linalg.norm(way))
        most = DISTURBANCE_SPEED * TICK_NS / NS_PER_S
        self._target = self._target + way * min(1.0, most / max(distance, 1e-9))
        return reach_down(self._target), self._gripper


def _anywhere(rng: np.random.Generator) -> tuple[float, float, float]:
    return (float(rng.uniform(0.17, 0.38)), float(rng.uniform(-0.2, 0.2)),
            float(rng.uniform(0.07, 0.22)))


def _objects(now: Snapshot, task: Task) -> Floats:
    thing = (now.bowls if task.thing == 'bowl' else now.blocks)[task.colour]
    return np.concatenate((thing, now.bowls[task.bowl] if task.bowl else thing))


def _things(now: Snapshot) -> Floats:
    nowhere = np.full(3, np.nan)
    return np.array([each.get(colour, nowhere) for each in (now.blocks, now.bowls)
                     for colour in COLOURS])
