"""Where data sets are looked for, what is said when they are not there, and downloads that leave all or nothing."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from esper.leyline.errors import DataError
from esper.tolaria.data.download import download
from esper.tolaria.data.sources import CIFAR10, FASHION_MNIST, SOURCES, TINYSTORIES, Download, Source, cache_folder

CONTENTS = bytes(range(256)) * 3000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    monkeypatch.delenv("ESPER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "esper"


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_the_cache_is_named_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> None:
    assert cache_folder() == cache
    monkeypatch.setenv("ESPER_DATA", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("ESPER_DATA")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "esper"


@pytest.mark.parametrize("source", SOURCES.values(), ids=lambda source: source.name)
def test_every_published_layout_is_found_in_a_folder_and_in_the_sets_own_folder(source: Source, tmp_path: Path, cache: Path) -> None:
    for i, file in enumerate(source.files):
        for inner in ("", source.name):
            path = touch(tmp_path / f"{i}{inner}" / inner / file)
            assert source.locate(tmp_path / f"{i}{inner}") == path
    here = touch(cache / source.name / source.files[0])
    assert source.locate() == here


def test_a_file_can_be_named_itself(tmp_path: Path) -> None:
    own, archive, stories = (touch(tmp_path / name) for name in ("anything.npz", "cifar-10-python.tar.gz", "TinyStories-train.txt"))
    assert CIFAR10.locate(own) == own
    assert CIFAR10.locate(archive) == archive
    assert TINYSTORIES.locate(stories) == stories
    for source, foreign in ((CIFAR10, stories), (TINYSTORIES, own), (FASHION_MNIST, archive)):
        assert source.find(foreign) is None
        with pytest.raises(DataError, match=f"no {source.title} in {foreign}"):
            source.locate(foreign)


def test_a_named_folder_is_the_only_one_that_is_searched(tmp_path: Path, cache: Path) -> None:
    touch(cache / CIFAR10.files[0])
    assert CIFAR10.find(tmp_path) is None
    assert CIFAR10.find() is not None


def test_where_a_distribution_installs_a_set_is_searched_after_the_cache(tmp_path: Path, cache: Path) -> None:
    installed = Source(name="s", title="S", licence="", files=("f",), downloads=(), elsewhere=(str(tmp_path / "usr"),))
    assert installed.find() is None
    theirs = touch(tmp_path / "usr" / "s" / "f")
    assert installed.find() == theirs
    ours = touch(cache / "s" / "f")
    assert installed.find() == ours
    assert FASHION_MNIST.elsewhere == ("/usr/share/datasets",)


def test_a_set_that_is_not_there_is_one_sentence_with_what_to_do(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(DataError) as caught:
        CIFAR10.locate()
    message = str(caught.value)
    assert str(cache) in message
    assert "--data DIR" in message
    assert "`esper tasks --download cifar10` (170 MB)" in message
    assert "\n" not in message
    with pytest.raises(DataError, match=f"no CIFAR-10 in {tmp_path}"):
        CIFAR10.locate(tmp_path)
    with pytest.raises(DataError, match=r"no folder .*/nowhere; expected one with CIFAR-10"):
        CIFAR10.locate(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no folder .*xxx; expected one with CIFAR-10"):
        CIFAR10.locate(tmp_path / ("x" * 5000))


class Handler(BaseHTTPRequestHandler):
    """Serves the contents, all of them, too few, too many, others, or an error, by path."""

    def do_GET(self) -> None:
        answers = {
            "/whole.bin": CONTENTS,
            "/short.bin": CONTENTS[:-1],
            "/long.bin": CONTENTS + b"x",
            "/other.bin": CONTENTS[:-1] + b"x",
            "/torn.bin": CONTENTS,
        }
        if self.path not in answers:
            self.send_error(404)
            return
        body = answers[self.path]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:1000] if self.path == "/torn.bin" else body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a web server on this machine."""
    monkeypatch.setenv("no_proxy", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def source_at(address: str, checksum: str = f"sha256:{hashlib.sha256(CONTENTS).hexdigest()}") -> Source:
    file = Download(url=address, size=len(CONTENTS), checksum=checksum)
    return Source(name="set", title="Set", licence="", files=(file.file,), downloads=(file,))


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_download_is_kept_when_its_checksum_is_the_published_one(server: str, kind: str, cache: Path) -> None:
    source = source_at(f"{server}/whole.bin", f"{kind}:{hashlib.new(kind, CONTENTS).hexdigest()}")
    progress: list[int] = []
    paths = download(source, lambda file, done: progress.append(done))
    assert paths == [cache / "set" / "whole.bin"]
    assert paths[0].read_bytes() == CONTENTS
    assert progress == sorted(progress)
    assert progress[-1] == len(CONTENTS)
    assert source.locate() == paths[0]


def test_a_file_that_is_there_and_whole_is_not_fetched_again(server: str, tmp_path: Path) -> None:
    source = source_at(f"{server}/gone.bin")
    (tmp_path / "gone.bin").write_bytes(CONTENTS)
    done: list[int] = []
    download(source, lambda file, bytes_: done.append(bytes_), tmp_path)
    assert done == [len(CONTENTS)]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("short.bin", "767,999 bytes with another checksum came; expected 768,000"),
        ("long.bin", "more than 768,000 bytes"),
        ("other.bin", "768,000 bytes with another checksum"),
        ("torn.bin", "1,000 bytes with another checksum|cannot download"),
        ("missing.bin", "cannot download .*Not Found; nothing was kept: check the network"),
    ],
)
def test_a_download_that_fails_says_why_and_leaves_what_was_there(server: str, file: str, message: str, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(b"older")
    with pytest.raises(DataError, match=message):
        download(source_at(f"{server}/{file}"), lambda file, done: None, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == [file]
    assert (tmp_path / file).read_bytes() == b"older"


def test_a_download_without_a_network_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    # Port 9 of this machine, where nothing listens.
    with pytest.raises(DataError, match=r"cannot download http://127\.0\.0\.1:9/f: .*refused.*--data DIR") as caught:
        download(source_at("http://127.0.0.1:9/f"), lambda file, done: None, tmp_path / "new")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "new").iterdir()) == []


def test_an_interrupted_download_leaves_nothing(server: str, tmp_path: Path) -> None:
    def stop(file: Download, done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(source_at(f"{server}/whole.bin"), stop, tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="file/set: cannot keep Set there: Not a directory"):
        download(source_at("http://127.0.0.1:9/f"), lambda file, done: None, tmp_path / "file" / "set")
