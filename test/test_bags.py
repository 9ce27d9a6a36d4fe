"""Reading recordings: order, both storages, and one line for whatever is wrong with one."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip('rosbags', reason='rosbags is not installed')

from rosbags.rosbag2 import StoragePlugin, Writer  # noqa: E402
from rosbags.typesys import Stores, get_typestore  # noqa: E402

from vla_ros.replay.bags import Bag  # noqa: E402

DATA = Path(__file__).parents[1] / 'data' / 'bridge_v2'
TOPICS = ['/camera/image_raw/compressed', '/ee_state', '/recorded_action', '/vla/instruction']
STORAGES = {'mcap': StoragePlugin.MCAP, 'sqlite': StoragePlugin.SQLITE3}


def write_bag(path: Path, messages: list[tuple[int, str, str]], topics: list[str],
              storage: str = 'mcap') -> Path:
    """A bag of strings: (time, topic, text)."""
    types = get_typestore(Stores.ROS2_HUMBLE)
    with Writer(path, version=9, storage_plugin=STORAGES[storage]) as writer:
        connections = {topic: writer.add_connection(topic, 'std_msgs/msg/String', typestore=types)
                       for topic in topics}
        for time_ns, topic, text in messages:
            message = types.types['std_msgs/msg/String'](text)
            writer.write(connections[topic], time_ns,
                         types.serialize_cdr(message, 'std_msgs/msg/String'))
    return path


def message_of(action: object, *arguments: object) -> str:
    with pytest.raises(ValueError) as caught:
        action(*arguments)  # type: ignore[operator]
    text = str(caught.value)
    assert '\n' not in text
    return text


@pytest.mark.parametrize('path', [
    'bridge_0', 'bridge_0/bridge_0.mcap', 'bridge_3', 'bridge_3/bridge_3.db3'])
def test_a_folder_and_a_bare_file_of_either_storage_read_alike(path: str) -> None:
    with Bag(DATA / path) as bag:
        assert list(bag.topics) == TOPICS
        assert [t.count for t in bag.topics.values()] == [50, 50, 50, 5]
        assert [t.header for t in bag.topics.values()] == [True, True, True, False]
        messages = list(bag.messages())
        assert len(messages) == bag.message_count == 155
        assert [m.time_ns for m in messages] == sorted(m.time_ns for m in messages)
        assert (messages[0].time_ns, messages[-1].time_ns) == (bag.start_ns, bag.end_ns)
        states = [m.message for m in messages if m.topic == '/ee_state']
        assert states[0].name == ['x', 'y', 'z', 'roll', 'pitch', 'yaw', 'gripper']


def test_a_folder_without_metadata_is_read_by_its_only_recording(tmp_path: Path) -> None:
    shutil.copy(DATA / 'bridge_0' / 'bridge_0.mcap', tmp_path)
    with Bag(tmp_path) as bag:
        assert bag.message_count == 155


@pytest.mark.parametrize('storage', STORAGES)
def test_messages_of_one_time_come_by_topic_and_then_as_recorded(
        tmp_path: Path, storage: str) -> None:
    written = [(5, '/b', '1'), (5, '/a', '2'), (5, '/b', '3'), (6, '/b', '4'), (6, '/a', '5')]
    path = write_bag(tmp_path / 'bag', written, ['/b', '/a'], storage)
    with Bag(path) as bag:
        assert [(m.topic, m.message.data) for m in bag.messages()] == [
            ('/a', '2'), ('/b', '1'), ('/b', '3'), ('/a', '5'), ('/b', '4')]


def test_topics_are_chosen_with_or_without_their_slash_and_from_a_time_on() -> None:
    with Bag(DATA / 'bridge_3') as bag:
        late = list(bag.raw(['ee_state'], bag.start_ns + 9_000_000_000))
        assert {m.topic for m in late} == {'/ee_state'}
        assert 0 < len(late) < 50


def test_a_missing_topic_is_named_with_those_present() -> None:
    with Bag(DATA / 'bridge_0') as bag:
        text = message_of(bag.require, '/ee_stat')
    assert "'/ee_stat'" in text
    assert all(topic in text for topic in TOPICS)
    assert "did you mean '/ee_state'?" in text


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    assert f'{tmp_path / "gone"}: does not exist' in message_of(Bag, tmp_path / 'gone')


def test_a_file_that_is_no_recording_is_named_with_what_is_allowed(tmp_path: Path) -> None:
    (tmp_path / 'notes.txt').write_text('no bag')
    text = message_of(Bag, tmp_path / 'notes.txt')
    assert '.txt' in text
    assert '.mcap' in text


def test_an_empty_folder_is_no_recording(tmp_path: Path) -> None:
    assert 'no metadata.yaml' in message_of(Bag, tmp_path)


@pytest.mark.parametrize('name', ['bridge_0/bridge_0.mcap', 'bridge_3/bridge_3.db3'])
@pytest.mark.parametrize('share', [0.0, 0.0002, 0.3, 0.9])
def test_a_recording_that_was_cut_off_is_one_line(tmp_path: Path, name: str, share: float) -> None:
    whole = (DATA / name).read_bytes()
    cut = tmp_path / Path(name).name
    cut.write_bytes(whole[:int(len(whole) * share)])

    def read() -> None:
        with Bag(cut) as bag:
            list(bag.raw())

    assert f'bag {cut}: cannot be read' in message_of(read)


def test_damage_inside_a_recording_is_one_line(tmp_path: Path) -> None:
    whole = bytearray((DATA / 'bridge_0' / 'bridge_0.mcap').read_bytes())
    whole[60_000:120_000] = bytes(60_000)
    damaged = tmp_path / 'damaged.mcap'
    damaged.write_bytes(whole)

    def read() -> None:
        with Bag(damaged) as bag:
            list(bag.messages())

    assert f'bag {damaged}: ' in message_of(read)


@pytest.mark.parametrize('storage', STORAGES)
def test_a_recording_without_messages_says_so(tmp_path: Path, storage: str) -> None:
    path = write_bag(tmp_path / 'bag', [], ['/a'], storage)
    assert 'holds no messages' in message_of(Bag, path)


def test_a_topic_without_messages_says_so(tmp_path: Path) -> None:
    path = write_bag(tmp_path / 'bag', [(1, '/a', 'x')], ['/a', '/silent'])
    with Bag(path) as bag:
        assert "'/silent' holds no messages" in message_of(bag.require, '/silent')
        assert [m.topic for m in bag.raw()] == ['/a']


def test_without_rosbags_the_line_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'rosbags.highlevel', None)
    text = message_of(Bag, DATA / 'bridge_0')
    assert "'rosbags'" in text
    assert "pip install 'vla_ros[tools]'" in text
