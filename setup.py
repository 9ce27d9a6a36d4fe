from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import find_packages, setup

from distutils.command.install_data import install_data  # isort: skip  # setuptools brings it

PACKAGE = 'vla_ros'
EXECUTABLES = {
    'vla-ros': 'vla_ros.tools.cli:main',
    'camera_node': 'vla_ros.nodes.camera_node:main',
    'inference_node': 'vla_ros.nodes.inference_node:main',
    'action_publisher': 'vla_ros.nodes.action_publisher:main',
    'sim_robot': 'vla_ros.nodes.sim_robot:main',
    'bag_player': 'vla_ros.tools.play:main',
}
TOOLS = ['rosbags', 'rich', 'matplotlib', 'pillow', 'psutil']
SIM = ['mujoco']
CPU = ['onnxruntime']
TEST = ['pytest', 'pytest-timeout', 'hypothesis']
SHIM = '#!/bin/sh\nexec "$(dirname -- "$0")/../../bin/$(basename -- "$0")" "$@"\n'


class InstallData(install_data):
    """Adds lib/vla_ros/<executable> to wheels: launch_ros looks there, pip writes bin/ only.

    colcon installs the entry points there by itself (setup.cfg).
    """

    def run(self) -> None:
        super().run()
        if 'bdist_wheel' not in sys.argv:
            return
        folder = Path(self.install_dir, 'lib', PACKAGE)
        folder.mkdir(parents=True, exist_ok=True)
        for name in EXECUTABLES:
            shim = folder / name
            shim.write_text(SHIM)
            shim.chmod(0o755)
            self.outfiles.append(str(shim))


def shared(top: str) -> list[tuple[str, list[str]]]:
    """(folder below the prefix, files) for every folder of the tree `top`."""
    return [
        (os.path.join('share', PACKAGE, folder), [os.path.join(folder, file) for file in files])
        for folder, _, names in sorted(os.walk(top))
        if (files := sorted(n for n in names if not n.endswith(('.pyc', '~'))))
    ]


setup(
    name=PACKAGE,
    version='0.3.0',
    description='Vision-language-action policies on real robots with ROS 2',
    long_description=Path('README.md').read_text() if Path('README.md').exists() else '',
    long_description_content_type='text/markdown',
    maintainer='vla_ros maintainers',
    maintainer_email='vla-ros@example.com',
    license='Apache-2.0',
    python_requires='>=3.10',
    packages=find_packages(include=[PACKAGE, f'{PACKAGE}.*']),
    package_data={f'{PACKAGE}.sim': ['*.xml'], f'{PACKAGE}.replay': ['page/*']},
    data_files=[
        ('share/ament_index/resource_index/packages', [f'resource/{PACKAGE}']),
        (f'share/{PACKAGE}', ['package.xml']),
        *shared('launch'),
        *shared('config'),
        *shared('models'),
    ],
    cmdclass={'install_data': InstallData},
    zip_safe=False,
    # ROS, OpenCV and torch stay out: package.xml, an engine's own extra or the lock brings them.
    install_requires=['numpy>=1.21', 'PyYAML'],
    extras_require={
        'tools': TOOLS,
        'sim': [*TOOLS, *SIM],
        'cpu': CPU,
        'train': [*SIM, *CPU, 'torch', 'onnx', 'safetensors', 'tokenizers'],
        'test': [*TOOLS, *SIM, *CPU, *TEST],
        'dev': [*TOOLS, *SIM, *CPU, *TEST, 'ruff', 'mypy', 'types-PyYAML'],
    },
    entry_points={
        'console_scripts': [f'{name} = {target}' for name, target in EXECUTABLES.items()],
        'vla_ros.policies': [
            'edgevla = vla_ros.policies.edgevla:make',
            'openvla = vla_ros.policies.openvla:make',
            'knn = vla_ros.policies.knn:make',
            'scripted = vla_ros.policies.scripted:make',
        ],
    },
)
