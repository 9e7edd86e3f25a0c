"""The server of the live page: who may ask, what is answered, and streams from which no event is missing and in which none is doubled."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from esper.cli.main import main
from esper.karn.watch.app import VIEWS
from esper.karn.watch.library import Library
from esper.karn.watch.security import Access
from esper.karn.watch.server import WatchServer
from esper.karn.watch.watched import MOST_EVENTS, Position
from esper.leyline.errors import RunError
from esper.leyline.events import Note
from esper.tolaria.storage.runs import RunFolder
from tests.karn.watch_runs import Story

Answer = tuple[int, dict[str, str], bytes]


class Visitor:
    """Whoever asks the server."""

    def __init__(self, server: WatchServer) -> None:
        self.server = server
        url = urlsplit(server.link.url)
        self.name, self.token = url.netloc, url.query.removeprefix("token=")
        self.port = url.port or 0

    def ask(self, path: str, *, method: str = "GET", cookie: bool = True, **headers: str) -> Answer:
        """Ask once; headers by their names, with _ for -."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        sent = {"Host": self.name, **({"Cookie": f"odd; esper-{self.port}={self.token}"} if cookie else {})}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.putrequest(method, path, skip_host=True)
        for name, value in sent.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        connection.close()
        return found

    def json(self, path: str) -> Any:
        """What an address answers, which must be well."""
        status, _, body = self.ask(path)
        assert status == 200, body
        return json.loads(body)

    @contextmanager
    def stream(self, path: str, seen: str = "") -> Iterator[Iterator[dict[str, Any]]]:
        """The messages of a stream, each with its `event`, `id` and `data`, until the visitor leaves."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        headers = {"Host": self.name, "Cookie": f"esper-{self.port}={self.token}", **({"Last-Event-ID": seen} if seen else {})}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.getheader("Content-Type", "").startswith("text/event-stream")

        def messages() -> Iterator[dict[str, Any]]:
            message: dict[str, Any] = {}
            while line := answer.readline().decode().rstrip("\n"):
                name, _, value = line.partition(": ")
                message[name] = json.loads(value) if name == "data" else value
                if name in ("data", "retry"):
                    answer.readline()
                    if name == "data":
                        yield message
                    message = {}

        try:
            yield messages()
        finally:
            connection.close()


@contextmanager
def serving(root: Path) -> Iterator[Visitor]:
    """A server in a thread, and a visitor."""
    server = WatchServer(root)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Visitor(server)
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, and a sweep that is made of one."""
    root = tmp_path_factory.mktemp("watched") / "runs"
    Story(root / "first").begin().run(8).flag().finish()
    Story(root / "a sweep?#%").begin().run(1)
    Story(root / "a sweep?#%" / "points" / "001").begin().run(1)
    (root.parent / "secret.txt").write_text("nobody sees this")
    return root


@pytest.fixture(scope="module")
def visitor(runs: Path) -> Iterator[Visitor]:
    with serving(runs) as found:
        yield found


# Who may ask


def test_the_link_gives_a_cookie_and_the_cookie_everything_else(visitor: Visitor):
    status, headers, body = visitor.ask(f"/?token={visitor.token}", cookie=False, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")
    assert status == 200
    assert b"<main" in body
    assert headers["set-cookie"] == f"esper-{visitor.port}={visitor.token}; HttpOnly; SameSite=Strict; Path=/"
    assert visitor.ask("/")[0] == visitor.ask("/api/runs")[0] == visitor.ask("/favicon.ico")[0] == 200


@pytest.mark.parametrize(
    "path", ["/", "/?token=", "/?token=wrong", "/api/runs", "/api/stream", "/api/run/first/overview", "/static/js/main.js", "/none"]
)
def test_without_the_token_nothing_is_given(visitor: Visitor, path: str):
    status, headers, body = visitor.ask(path, cookie=False)
    assert status == 403
    assert b"the link that esper watch printed" in body
    assert "set-cookie" not in headers
    assert visitor.ask("/api/runs", cookie=False, Cookie=f"esper-{visitor.port}={visitor.token}x")[0] == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1:1"},
        {"Host": "127.0.0.1.evil.example:{port}"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors"},
    ],
)
def test_a_page_of_another_site_gets_nothing_even_with_the_cookie(visitor: Visitor, headers: dict[str, str]):
    made = {name: value.format(port=visitor.port) for name, value in headers.items()}
    status, sent, body = visitor.ask("/api/runs", **made)
    assert status == 403
    assert b"first" not in body
    assert "access-control-allow-origin" not in sent


def test_the_page_itself_may_ask_by_any_name_of_this_machine(visitor: Visitor):
    for name in (f"127.0.0.1:{visitor.port}", f"localhost:{visitor.port}", f"[::1]:{visitor.port}"):
        assert visitor.ask("/api/runs", Host=name, Origin=f"http://{name}", Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors")[0] == 200


def test_a_server_open_to_others_is_reached_by_address_and_not_by_a_name_that_was_bent_to_it():
    access = Access(token="x", port=80, address="0.0.0.0")
    assert access.knows("192.168.1.7:80")
    assert access.knows("[fe80::1]")
    assert not access.knows("evil.example")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_nothing_can_be_ordered(visitor: Visitor, method: str):
    assert visitor.ask("/api/runs", method=method)[0] == 405


def test_every_answer_has_a_strict_policy(visitor: Visitor):
    for path, cookie in (("/", True), ("/api/runs", True), ("/api/run/none/overview", True), ("/", False)):
        _, headers, _ = visitor.ask(path, cookie=cookie)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static/..%2f..%2frecord.py",
        "/static//etc/passwd",
        "/api/run/..%2F..%2Fsecret.txt/overview",
        "/api/run/%2Fetc/overview",
        "/api/run/first%2F..%2Ffirst/overview",
        "/api/run/first%00/overview",
        "/api/run/./overview",
    ],
)
def test_no_path_leads_out(visitor: Visitor, path: str):
    status, _, body = visitor.ask(path)
    assert status == 404
    assert b"nobody sees" not in body
    assert b"import" not in body


def test_nothing_is_loaded_from_elsewhere_and_no_text_becomes_html():
    static = Path(sys.modules[WatchServer.__module__].__file__ or "").parent / "static"
    for path in [*static.rglob("*.js"), *static.rglob("*.css"), *static.rglob("*.html")]:
        if "uplot" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        assert "innerHTML" not in text
        assert "outerHTML" not in text
        assert "insertAdjacent" not in text
        assert "eval(" not in text
        assert "://" not in text.replace("http://www.w3.org/2000/svg", ""), path
        assert text.count("\n") < 250, path


# What is answered


def test_all_runs_and_all_views_are_there(visitor: Visitor):
    listing = visitor.json("/api/runs")
    assert {card["key"]: card["parent"] for card in listing["runs"]} == {
        "first": None,
        "a sweep?#%": None,
        "a sweep?#%/points/001": "a sweep?#%",
    }
    for key in ("first", "a sweep?#%/points/001"):
        place = f"/api/run/{quote(key, safe='')}"
        assert visitor.json(f"{place}/overview")["key"] == key
        for view in (*VIEWS, "host/0", "feed"):
            visitor.json(f"{place}/{view}")
    assert visitor.json("/api/run/first/decision/0/1")["op"] == "GERMINATE"
    newest = visitor.json("/api/run/first/feed?limit=3")
    older = visitor.json(f"/api/run/first/feed?limit=3&before={newest['before']}")
    numbers = [event["seq"] for event in newest["events"] + older["events"]]
    assert numbers == list(range(numbers[0], numbers[0] - 6, -1))
    assert {event["kind"] for event in visitor.json("/api/run/first/feed?kind=gate_checked&host=1")["events"]} == {"gate_checked"}


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/api/run/frist/overview", 404, "did you mean 'first'?"),
        ("/api/run/first/nothing", 404, "no view 'nothing'"),
        ("/api/run/first/host/99", 404, "no host 99"),
        ("/api/run/first/decision/0/99", 404, "epoch 99"),
        ("/api/run/first/feed?before=x", 400, "'x' is not a number"),
        ("/api/run/first/feed?kind=nothing", 404, "nothing"),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(visitor: Visitor, path: str, status: int, sentence: str):
    found, _, body = visitor.ask(path)
    assert found == status
    assert sentence in json.loads(body)["error"]


# Streams


def first(messages: Iterator[dict[str, Any]], wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first message that is wanted: folders are made and removed file by file, and a look may fall in between."""
    return next(message for message in messages if wanted(message))


def test_no_event_is_missed_or_doubled_over_reconnects_torn_lines_and_resumes(tmp_path: Path):
    story = Story(tmp_path / "runs" / "live").begin()
    journal = story.path / "events.jsonl"
    with serving(tmp_path / "runs") as visitor:
        seen = visitor.json("/api/run/live/overview")["at"]
        heard: list[int] = []

        def hear(until: int, from_: str) -> str:
            with visitor.stream("/api/run/live/stream", from_) as messages:
                for message in messages:
                    assert message["event"] == "update"
                    heard.extend(event["seq"] for event in message["data"]["events"])
                    if message["data"]["overview"]["progress"]["events"] >= until:
                        return str(message["id"])
            raise AssertionError("the stream ended")

        begun = story.seq
        story.run(2)
        seen = hear(story.seq, seen)
        story.run(1)  # while nobody listens
        seen = hear(story.seq, seen)
        whole = journal.stat().st_size
        with journal.open("a") as file:
            file.write('{"v":4,"seq":')  # torn: the rest comes later
        assert hear(story.seq, seen) == seen
        os.truncate(journal, whole)
        story.emit(Note(text="after the torn line"))
        hear(story.seq, seen)
        assert heard == list(range(begun, story.seq))

        # A run that goes on from a checkpoint cuts off what came after it: all is to be read anew.
        seen = visitor.json("/api/run/live/overview")["at"]
        with visitor.stream("/api/run/live/stream", seen) as messages:
            assert next(messages)["data"]["events"] == []
            os.truncate(journal, whole)
            story.seq -= 1
            assert next(messages)["event"] == "reset"
        for other in ("", "nonsense", "00000000-0-5", seen):
            with visitor.stream("/api/run/live/stream", other) as messages:
                assert next(messages)["event"] == "reset"

        # Whoever is far behind starts anew, too.
        seen = visitor.json("/api/run/live/overview")["at"]
        for _ in range(MOST_EVENTS + 1):
            story.emit(Note(text="again"))
        with visitor.stream("/api/run/live/stream", seen) as messages:
            assert next(messages)["event"] == "reset"


def test_a_run_that_is_killed_damaged_removed_or_replaced_is_told_and_the_server_stays(tmp_path: Path):
    story = Story(tmp_path / "runs" / "live").begin().run(1)
    lock = RunFolder.open(story.path)
    with serving(tmp_path / "runs") as visitor, visitor.stream("/api/run/live/stream") as messages:
        assert next(messages)["data"]["overview"]["status"] == "running"
        lock.close()
        stopped = next(messages)["data"]["overview"]
        assert stopped["status"] == "interrupted"
        assert str(story.path) in stopped["go_on"]
        with (story.path / "events.jsonl").open("a") as file:
            file.write("nonsense\n")
        assert f"line {story.seq + 1}" in next(messages)["data"]["overview"]["problem"]
        shutil.rmtree(story.path)
        first(messages, lambda message: message["event"] == "gone" and "no such folder" in message["data"]["error"])
        assert visitor.ask("/api/run/live/hosts")[0] == 404
        assert visitor.json("/api/runs")["runs"] == []
        Story(story.path, task="another").begin()
        first(messages, lambda message: "overview" in message["data"] and message["data"]["overview"]["task"] == "another")


def test_the_list_of_runs_hears_of_new_changed_and_vanished_runs(tmp_path: Path):
    story = Story(tmp_path / "one").begin().run(1)
    with serving(tmp_path) as visitor, visitor.stream("/api/stream") as messages:
        assert [card["key"] for card in next(messages)["data"]["runs"]] == ["one"]
        Story(tmp_path / "two").begin()
        assert [card["key"] for card in next(messages)["data"]["runs"]] == ["two"]
        story.run(1)
        done = ("one", 2)
        first(messages, lambda message: done in [(card["key"], card.get("progress", {}).get("done")) for card in message["data"]["runs"]])
        shutil.rmtree(story.path)
        assert first(messages, lambda message: bool(message["data"]["gone"]))["data"]["gone"] == ["one"]


def test_positions_are_read_strictly():
    position = Position("0123abcd", 2, 300)
    assert Position.parse(str(position)) == position
    assert [Position.parse(text) for text in ("", "1-2-3", "0123abcd-1", "0123abcd--1-2", "0123abcd-1-2 ", "0123abcd-1-٣")] == [None] * 6


# The command


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "there is no folder nowhere"),
        (["x" * 5000], "there is no folder"),
        (["damaged"], "was not written by Esper"),
        (["other"], "other is not a run, and there is none in it"),
        ([".", "--port", "0"], "expected a number from 1 to 65535"),
        ([".", "--port", "ten"], "expected a number from 1 to 65535"),
        ([".", "--host", "192.0.2.1"], "no address of this machine"),
        ([".", "--prot", "1"], "did you mean '--port'?"),
        (["--terminal", ".", "--port", "9"], "expected no --no-browser, --port or --host"),
    ],
)
def test_mistakes_are_one_sentence(arguments, sentence, tmp_path, monkeypatch, capsys):
    (tmp_path / "other" / "things").mkdir(parents=True)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert main(["watch", *arguments]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1


def test_the_folder_of_runs_need_not_be_there_yet_unless_it_is_named(tmp_path: Path):
    library = Library(tmp_path / "runs", awaited=True)
    assert library.cards()["runs"] == []
    Story(tmp_path / "runs" / "one").begin().run(1)
    assert [card["key"] for card in library.cards()["runs"]] == ["one"]
    with pytest.raises(RunError, match="there is no folder"):
        Library(tmp_path / "elsewhere")


def test_a_port_in_use_is_refused_and_without_one_the_next_is_taken(visitor: Visitor, runs: Path, capsys):
    assert main(["watch", str(runs), "--port", str(visitor.port)]) == 2
    assert f"port {visitor.port} is in use by another program" in capsys.readouterr().err
    other = WatchServer(runs)
    assert urlsplit(other.link.url).port != visitor.port
    other.sockets[0].close()


def test_the_command_prints_a_link_serves_one_run_and_ends_on_ctrl_c(runs: Path):
    command = [sys.executable, "-m", "esper.cli.main", "watch", str(runs / "first"), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        link = process.stdout.readline().split()[-1]
        assert "Ctrl-C" in process.stdout.readline()
        url = urlsplit(link)
        assert url.fragment == "/run/first"
        connection = http.client.HTTPConnection(url.netloc, timeout=20)
        connection.request("GET", "/api/stream", headers={"Cookie": f"esper-{url.port}={url.query.removeprefix('token=')}"})
        answer = connection.getresponse()
        assert answer.status == 200  # a tab that stays open does not keep the server
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0
        assert errors == ""
        answer.close()
        connection.close()
    finally:
        process.kill()
        process.communicate()


def test_a_library_knows_its_runs_by_name_alone(runs: Path):
    library = Library(runs)
    assert library.get("first").path == runs / "first"
    with pytest.raises(RunError, match="unknown run"):
        library.get("../runs/first")


def test_watching_loads_no_torch():
    program = "import sys, esper.karn.watch.server, esper.cli.watch; print({'torch', 'matplotlib', 'rich'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "set()\n"
