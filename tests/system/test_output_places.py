"""Outputs: links are followed, devices and pipes are written into, and what is there is never replaced by accident."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from sparsegen.errors import OutputError, OutputExistsError
from sparsegen.matrix.generators import random_uniform
from sparsegen.pruning.files.output import new_csr_folder, new_file
from sparsegen.system.output_places import is_stream, output_place
from sparsegen.system.publish import (
    publish_file,
    publish_folder,
    publish_text,
    refuse_existing,
    refuse_other,
    reported,
    require_place,
)

LONGEST_NAME = 255  # bytes


def names(folder: Path) -> list[str]:
    """Returns the names in a folder, hidden files too."""
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def null_node(tmp_path: Path) -> Path:
    """Makes a device node like ``/dev/null`` that can be lost."""
    node = tmp_path / "node"
    try:
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("device nodes are made by root alone")
    return node


def test_a_device_node_is_written_into_and_stays_one(null_node: Path) -> None:
    publish_text(null_node, "lost")
    with new_file(null_node, force=False) as file:
        file.write(b"lost")
    require_place(null_node)
    assert stat.S_ISCHR(null_node.stat().st_mode)
    assert names(null_node.parent) == ["node"]


def test_permissions_of_a_device_node_stay(null_node: Path) -> None:
    null_node.chmod(0o622)
    with publish_file(null_node, 0o444) as file:
        file.write(b"lost")
    assert stat.S_IMODE(null_node.stat().st_mode) == 0o622


def test_the_system_s_null_device_takes_every_output(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    for place in (Path("/dev/null"), link):
        assert is_stream(place)
        refuse_existing(place, force=False)
        refuse_other(place, ".csv")
        publish_text(place, "lost")
    assert link.is_symlink()
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_full_device_is_reported(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No space left"), reported("/dev/full"):
        publish_text(Path("/dev/full"), "too much")


def test_a_pipe_takes_the_whole_output_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        require_place(pipe)
        with publish_file(pipe) as file:
            file.write(b"... of a file")
            file.seek(0)
            file.write(b"end")
        assert reader.read() == b"end of a file"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_pipe_without_a_reader_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OutputError, match="nobody reads this pipe"), reported(pipe):
        publish_text(pipe, "unread")


def test_a_pipe_of_this_process_is_named_by_its_descriptor() -> None:
    read, write = os.pipe()
    publish_text(Path(f"/dev/fd/{write}"), "through a pipe")
    os.close(write)
    assert os.fdopen(read).read() == "through a pipe"


def test_folders_sockets_and_circles_of_links_are_refused(tmp_path: Path) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    address = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))
        for place, words in (
            (tmp_path, "Is a directory"),
            (circle, "symbolic links"),
            (address, "socket or a block device"),
        ):
            with pytest.raises(OutputError, match=words):
                require_place(place)
            with pytest.raises(OutputError, match=words), reported(place):
                publish_text(place, "text")
    assert stat.S_ISSOCK(address.stat().st_mode)
    assert circle.is_symlink()


@pytest.mark.parametrize(
    "url", ["postgresql://x@h/db", "postgresql+psycopg://h/db", "sqlite:///a.db", "s3://b/c"]
)
def test_a_url_is_no_path(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for write in (require_place, lambda path: publish_text(path, "text")):
        with pytest.raises(OutputError, match="this is a URL"):
            write(Path(url))
    assert not list(tmp_path.iterdir())


def test_a_folder_whose_name_has_a_colon_is_no_url(tmp_path: Path) -> None:
    publish_text(tmp_path / "sqlite:" / "a.json", "text")
    assert (tmp_path / "sqlite:" / "a.json").read_text() == "text"


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_is_followed(tmp_path: Path, is_there: bool) -> None:
    (tmp_path / "other").mkdir()
    target, link = tmp_path / "other" / "target", tmp_path / "link"
    if is_there:
        target.write_text("old")
    link.symlink_to("other/target")
    publish_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert names(target.parent) == ["target"]


def test_permissions_of_what_is_replaced_are_kept(tmp_path: Path) -> None:
    kept, new = tmp_path / "kept", tmp_path / "new"
    kept.write_text("old")
    kept.chmod(0o600)
    publish_text(kept, "new")
    before = os.umask(0o027)
    try:
        publish_text(new, "new")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (kept, new)] == [0o600, 0o640]


def test_the_longest_name_can_be_written(tmp_path: Path) -> None:
    longest = tmp_path / os.fsdecode("é".encode() * (LONGEST_NAME // 2) + b"x")
    require_place(longest)
    publish_text(longest, "text")
    with new_file(longest, force=True) as file:
        file.write(b"other")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["other"]


def test_names_that_no_file_can_have_are_reported(tmp_path: Path) -> None:
    place = tmp_path / ("x" * (LONGEST_NAME + 1))
    for refuse in (
        require_place,
        lambda path: refuse_existing(path, force=False),
        lambda path: refuse_other(path, ".csv"),
    ):
        with pytest.raises(OutputError, match="File name too long"):
            refuse(place)


def test_whoever_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), publish_file(path) as file:
        file.write(b"new")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_a_missing_folder_is_made_for_what_is_written_alone(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b" / "out"
    require_place(place)
    for begun in (
        publish_file(place),
        publish_folder(place),
        new_file(place, force=False),
        new_csr_folder(place, ["a"], force=False),
    ):
        with pytest.raises(ZeroDivisionError), begun:
            raise ZeroDivisionError
        assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("no folder")
    for below in ("out", "none/out"):
        for write in (require_place, lambda path: publish_text(path, "text")):
            with pytest.raises(OutputError, match="Not a directory"), reported(place):
                write(tmp_path / "file" / below)
    with new_csr_folder(place, ["a"], force=False) as folder:
        folder.add("a", {"data": random_uniform(4, 4, 0.5, seed=1).values})
    assert names(place) == ["a.npz"]
    with new_file(tmp_path / "c" / "d", force=False) as file:
        file.write(b"text")
    assert (tmp_path / "c" / "d").read_bytes() == b"text"


def test_layers_go_to_the_folder_that_a_link_leads_to(tmp_path: Path) -> None:
    matrix = random_uniform(4, 4, 0.5, seed=1)
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to("folder")
    with new_csr_folder(link, ["a"], force=True) as folder:
        folder.add("a", {"data": matrix.values})
    assert link.is_symlink()
    assert names(tmp_path / "folder") == ["a.npz"]


def test_a_pipe_among_the_layers_is_refused(tmp_path: Path) -> None:
    matrix = random_uniform(4, 4, 0.5, seed=1)
    os.mkfifo(tmp_path / "a.npz")
    with (
        pytest.raises(OutputExistsError, match="a device or a pipe"),
        new_csr_folder(tmp_path, ["a"], force=True) as folder,
    ):
        folder.add("a", {"data": matrix.values})
    assert output_place(tmp_path / "a.npz").is_stream
