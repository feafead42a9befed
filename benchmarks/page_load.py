"""Searches of one and of 20 people at once: this page against the one before it, in turns, both with the starter.

Draws an archive (or takes a collection), has this checkout and an older commit index and serve it, and lets clients
search one caption after another, 24 hits each. Prints searches a second, p50 and p95, errors, and how the servers grow.

    python benchmarks/page_load.py --seconds 10 --rounds 3
    python benchmarks/page_load.py my-photos/ --before 0     # only this page
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from measure import report

ROOT = Path(__file__).parents[1]
BEFORE = "9be70c0"  # the last commit whose page searched through gradio's queue
HITS, CLIENTS = 24, (1, 20)


@dataclass
class Server:
    """A page that is served. search: one search on a connection, which raises if it fails."""

    port: int
    pid: int
    search: Callable[[http.client.HTTPConnection, str], None]

    def memory(self) -> float:
        """Resident MiB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024

    def cpu(self) -> float:
        """Seconds of all cores so far; what others do on the machine counts little."""
        values = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Load:
    """What clients saw: seconds of each search, and the errors."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    wall: float = 0.0
    cpu: float = 0.0  # of the server

    def add(self, other: Load) -> None:
        """Another turn of the same."""
        self.seconds += other.seconds
        self.errors += other.errors
        self.wall += other.wall
        self.cpu += other.cpu

    def figures(self) -> dict[str, float]:
        """Searches a second, p50, p95 and the server's own time for a search in milliseconds, errors."""
        cuts = statistics.quantiles(self.seconds, n=20) if len(self.seconds) > 1 else [float("nan")] * 19
        return {"searches_per_s": len(self.seconds) / self.wall, "p50_ms": 1000 * cuts[9], "p95_ms": 1000 * cuts[18],
                "cpu_ms": 1000 * self.cpu / max(1, len(self.seconds)), "errors": len(self.errors)}


def by_api(connection: http.client.HTTPConnection, caption: str) -> None:
    """As page.js searches."""
    body = json.dumps({"caption": caption, "count": HITS})
    connection.request("POST", "/api/search", body, {"content-type": "application/json"})
    reply = connection.getresponse()
    hits = json.loads(reply.read()).get("hits", [])
    if len(hits) != HITS:
        raise RuntimeError(f"{reply.status}, {len(hits)} hits")


def by_queue(connection: http.client.HTTPConnection, caption: str) -> None:
    """As gradio's clients search: an event is joined, then its stream is read."""
    connection.request("POST", "/gradio_api/call/search", json.dumps({"data": [caption, HITS]}),
                       {"content-type": "application/json"})
    event = json.loads(connection.getresponse().read())["event_id"]
    connection.request("GET", f"/gradio_api/call/search/{event}")
    stream = connection.getresponse().read().decode()
    found = re.search(r"event: complete\ndata: (.*)", stream)
    if not found or len(json.loads(found[1])[0]) != HITS:
        raise RuntimeError(stream[:200])


@contextmanager
def served(checkout: Path, index: Path, port: int, search: Callable[[http.client.HTTPConnection, str], None]
           ) -> Iterator[Server]:
    """``densecap serve`` of a checkout until the block ends."""
    command = [sys.executable, "-m", "densecap_search", "serve", str(index), "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    with subprocess.Popen(command, cwd=checkout, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(480):
                try:
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                    connection.request("GET", "/")
                    connection.getresponse().read()
                    break
                except OSError:
                    time.sleep(0.25)
            yield Server(port, process.pid, search)
        finally:
            process.terminate()


def load(server: Server, captions: list[str], clients: int, seconds: float) -> Load:
    """Clients that search without a pause."""
    done, lock, end = Load(), threading.Lock(), time.perf_counter() + seconds

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        place = number
        while time.perf_counter() < end:
            started = time.perf_counter()
            try:
                server.search(connection, captions[place % len(captions)])
                with lock:
                    done.seconds.append(time.perf_counter() - started)
            except (OSError, RuntimeError, ValueError, KeyError, http.client.HTTPException) as error:
                connection.close()
                with lock:
                    done.errors.append(str(error))
            place += clients

    started, used = time.perf_counter(), server.cpu()
    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.wall, done.cpu = time.perf_counter() - started, server.cpu() - used
    return done


def drawn(folder: Path) -> Path:
    """The table of 320 generated pictures."""
    from densecap_search.scenes.archive import make_scenes

    return make_scenes(folder, bursts=80, seed=0)


def indexed(checkout: Path, collection: Path, folder: Path) -> Path:
    """The index that a checkout makes with the starter; an older one cannot read this one's."""
    command = [sys.executable, "-m", "densecap_search", "index", str(collection), "--model", "starter", "-o",
               str(folder)]
    subprocess.run(command, check=True, cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout)},
                   stdout=subprocess.DEVNULL)
    return folder


def checked_out(commit: str, folder: Path) -> Path | None:
    """The files of a commit, or None where the repository has no such."""
    made = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=False)
    if made.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", nargs="?", type=Path, help="Default: 320 generated pictures.")
    parser.add_argument("--before", default=BEFORE, help="The commit to compare with; 0: none.")
    parser.add_argument("--seconds", type=float, default=8.0, help="Of each turn.")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        collection = given.collection.resolve() if given.collection else drawn(folder / "archive")
        index = indexed(ROOT, collection, folder / "index")
        servers = {"now": stack.enter_context(served(ROOT, index, 7971, by_api))}
        old = checked_out(given.before, folder / "before") if given.before != "0" else None
        if old:
            older = indexed(old, collection, folder / "older")
            servers["before"] = stack.enter_context(served(old, older, 7972, by_queue))
        figures = measured(servers, captions_of(index), given.seconds, given.rounds)
    told = [f"{name}, {clients} clients: {f['searches_per_s']:.1f} searches/s, p50 {f['p50_ms']:.0f} ms, p95 "
            f"{f['p95_ms']:.0f} ms, {f['cpu_ms']:.0f} ms of cores, {f['errors']:.0f} errors"
            for (name, clients), f in figures.items()]
    ratios = {clients: figures["now", clients]["searches_per_s"] / figures["before", clients]["searches_per_s"]
              for clients in CLIENTS if ("before", clients) in figures}
    told += [f"{clients} clients: {ratio:.1f} times the searches of {given.before}"
             for clients, ratio in ratios.items()]
    report("\n".join(told), {
        "page_load": {f"{name}_{clients}": found for (name, clients), found in figures.items()}, "ratio": ratios})


def captions_of(index: Path) -> list[str]:
    """Captions of the index, as queries."""
    from densecap_search.retrieval.index import load_index

    return [row.captions[0] for row in load_index(index).rows if row.captions][:400]


def measured(servers: dict[str, Server], captions: list[str], seconds: float, rounds: int
             ) -> dict[tuple[str, int], dict[str, float]]:
    """Figures of each server with each number of clients; the servers take turns."""
    for server in servers.values():  # small copies are made once
        load(server, captions, 4, seconds)
    loads = {(name, clients): Load() for clients in CLIENTS for name in servers}
    before = {name: server.memory() for name, server in servers.items()}
    for _ in range(rounds):
        for name, clients in loads:
            loads[name, clients].add(load(servers[name], captions, clients, seconds))
    grown = {name: server.memory() - before[name] for name, server in servers.items()}
    return {key: {**found.figures(), "growth_mib": grown[key[0]]} for key, found in loads.items()}


if __name__ == "__main__":
    main()
