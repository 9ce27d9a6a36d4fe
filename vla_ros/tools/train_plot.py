"""The loss curves of a training, from the training.json of its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PANELS = (('joints', 'joints (normalized)'), ('gripper', 'gripper (cross entropy)'),
          ('object_cm', 'task object off by (cm)'))
TRAINED, HELD = '#4477aa', '#cc6677'


def plot_training(checkpoint: Path, picture: Path) -> None:
    """Draw trained and held-out losses over the minutes. Raises ValueError with one line."""
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot

    file = checkpoint / 'training.json'
    try:
        told = json.loads(file.read_text())
        curves = [stage['curves'] for stage in (*told.get('before', ()), told)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f'{file}: no curves of a training in it '
                         f'({" ".join(str(error).split())})') from None
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(11.0, 3.2), layout='constrained')
    for axis, (name, title) in zip(axes, PANELS, strict=True):
        before = 0.0
        for rows in curves:
            for key, colour, label in ((name, TRAINED, 'training'),
                                       (f'held_out_{name}', HELD, 'held out')):
                points = [(before + row['minutes'], row[key]) for row in rows if key in row]
                axis.plot(*zip(*points, strict=True), color=colour, linewidth=1.1,
                          label=None if before else label)
            before += rows[-1]['minutes']
            if rows is not curves[-1]:
                axis.axvline(before, color='0.7', linewidth=0.8, linestyle='--')
        axis.set(title=title, xlabel='minutes', yscale='log')
        axis.spines[['top', 'right']].set_visible(False)
        axis.grid(alpha=0.2)
    axes[0].legend(frameon=False)
    figure.savefig(picture, dpi=110)
    pyplot.close(figure)


def add_curves(steps: Any) -> None:
    """Add `curves` to the steps of `vla-ros train sim`."""
    parser = steps.add_parser('curves', help='draw the loss curves of a checkpoint')
    parser.add_argument('checkpoint', type=Path)
    parser.add_argument('--out', type=Path, default=Path('training.png'), metavar='FILE')
    parser.set_defaults(run=_run)


def _run(args: Any) -> int:
    from vla_ros.tools.writable import check_writable
    check_writable(args.out, '.png')
    plot_training(args.checkpoint, args.out)
    print(f'wrote {args.out}')
    return 0
