"""Several packages: loaded when a request names them, and unloaded for others or when unused."""

from __future__ import annotations

import asyncio
import shutil
import threading
from dataclasses import dataclass, field

import pytest
import rdrr
from rdrr._load_options import LoadOptions
from rdrr.serve.app import application
from rdrr.serve.metrics import Metrics
from rdrr.serve.packages import ServeOptions, pool_of_packages
from rdrr.serve.pool import NEVER_FITS, Offer, Pool
from rdrr.serve.worker import BusyError
from rdrr_format.errors import DeviceError, ManifestError, RdrrError, UsageError
from starlette.testclient import TestClient

MANIFEST = None
"""No test here reads it."""


@dataclass
class FakeWorker:
    memory: int
    jobs: int = 0
    stopped: bool = False

    def stop(self, _: float) -> None:
        self.stopped = True


@dataclass
class FakeService:
    name: str
    worker: FakeWorker


@dataclass
class Packages:
    """Packages of given sizes that note how they are loaded."""

    sizes: dict[str, int]
    states_need: bool = True
    loaded: list[str] = field(default_factory=list)
    workers: list[FakeWorker] = field(default_factory=list)

    def offers(self) -> list[Offer]:
        return [Offer(name, (), MANIFEST, self._opener(name)) for name in self.sizes]

    def _opener(self, name):
        def opened(room: int | None) -> FakeService:
            if room is not None and self.sizes[name] > room:
                refusal = DeviceError("the model takes more GPU memory than `max_vram` allows")
                refusal.need = self.sizes[name] if self.states_need else 0
                raise refusal
            self.loaded.append(name)
            self.workers.append(FakeWorker(self.sizes[name]))
            return FakeService(name, self.workers[-1])

        return opened


def ask(pool: Pool, name: str | None) -> str:
    async def lent() -> str:
        async with pool.lend(name) as service:
            return service.name

    return asyncio.run(lent())


def loaded(pool: Pool) -> list[str]:
    return [service.name for service in pool.loaded]


def test_a_package_is_loaded_once_when_it_is_asked_for():
    packages = Packages({"a": 4, "b": 4})
    pool = Pool(packages.offers(), Metrics(), 0)
    assert [ask(pool, name) for name in (None, "b", "a", "b:latest")] == ["a", "b", "a", "b"]
    assert packages.loaded == ["a", "b"]
    with pytest.raises(UsageError, match="not served"):
        ask(pool, "c")


def test_the_package_that_was_used_longest_ago_makes_room():
    packages = Packages({"a": 4, "b": 4, "c": 4})
    pool = Pool(packages.offers(), Metrics(), 0, max_vram=9)
    for name in ("a", "b", "a", "c"):
        ask(pool, name)
    assert loaded(pool) == ["a", "c"]
    assert [worker.stopped for worker in packages.workers] == [False, True, False]
    ask(pool, "b")
    assert loaded(pool) == ["b", "c"]


def test_a_package_that_works_is_never_unloaded():
    packages = Packages({"a": 4, "b": 4})
    pool = Pool(packages.offers(), Metrics(), 0, max_vram=5)
    ask(pool, "a")
    packages.workers[0].jobs = 1
    with pytest.raises(BusyError, match="no room"):
        ask(pool, "b")
    assert not pool.unload(pool.offers[0])
    packages.workers[0].jobs = 0
    assert ask(pool, "b") == "b"

    async def while_lent() -> None:
        async with pool.lend("b"):
            with pytest.raises(BusyError):
                async with pool.lend("a"):
                    pass

    asyncio.run(while_lent())


def test_a_package_that_fits_nowhere_is_refused():
    packages = Packages({"a": 4, "b": 40})
    pool = Pool(packages.offers(), Metrics(), 0, max_vram=9)
    with pytest.raises(DeviceError, match=NEVER_FITS):
        ask(pool, "b")
    assert ask(pool, "a") == "a"


@pytest.mark.parametrize("path", ["/v1/models/load", "/v1/chat/completions", "/api/chat"])
def test_clients_are_told_to_come_again_only_if_the_package_can_fit(path):
    packages = Packages({"a": 4, "b": 40, "c": 9})
    pool = Pool(packages.offers(), Metrics(), 0, max_vram=9)
    ask(pool, "a")
    packages.workers[0].jobs = 1
    client = TestClient(application(pool))
    messages = [{"role": "user", "content": "Hello"}]
    answers = {name: client.post(path, json={"model": name, "messages": messages}) for name in "bc"}
    assert {name: answer.status_code for name, answer in answers.items()} == {"b": 400, "c": 429}
    assert "b: the model alone takes more" in answers["b"].text
    assert [name for name, answer in answers.items() if "retry-after" in answer.headers] == ["c"]


def test_a_package_that_fits_nowhere_lets_the_others_stay():
    packages = Packages({"a": 4, "b": 40, "c": 9})
    pool = Pool(packages.offers(), Metrics(), 0, max_vram=9)
    ask(pool, "a")
    with pytest.raises(DeviceError, match=r"b: the model alone .*expected at most 9 B"):
        ask(pool, "b")
    assert loaded(pool) == ["a"]
    assert ask(pool, "c") == "c"
    assert loaded(pool) == ["c"]


def test_a_package_whose_need_is_unknown_is_refused_when_no_other_is_left():
    pool = Pool(Packages({"a": 4, "b": 40}, False).offers(), Metrics(), 0, max_vram=9)
    ask(pool, "a")
    with pytest.raises(DeviceError, match=NEVER_FITS):
        ask(pool, "b")
    assert not loaded(pool)


def test_a_fault_of_a_package_is_its_own():
    def broken(_: int | None) -> FakeService:
        raise ManifestError("a fault")

    pool = Pool([Offer("broken", (), MANIFEST, broken), *Packages({"a": 1}).offers()], Metrics(), 0)
    with pytest.raises(ManifestError):
        ask(pool, "broken")
    assert ask(pool, "a") == "a"


def test_clients_learn_of_a_damaged_shard_but_not_where_the_server_has_it(
    shallow_package, tmp_path
):
    folder = tmp_path / "secret"
    shutil.copytree(shallow_package, folder)
    pool = pool_of_packages([str(folder)], LoadOptions(backend="cpu"), ServeOptions())
    next(folder.glob("shard_*")).write_bytes(b"")
    with TestClient(application(pool), raise_server_exceptions=False) as client:
        answer = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
    assert answer.status_code >= 400
    assert pool.offers[0].name in answer.json()["error"]["message"]
    assert "shard" in answer.json()["error"]["message"]
    assert "secret" not in answer.text


@pytest.mark.parametrize("path", [".", "a", "shard"])
def test_a_path_that_is_a_part_of_words_leaves_them_as_they_are(
    shallow_package, tmp_path, monkeypatch, path
):
    shutil.copytree(shallow_package, tmp_path / path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    pool = pool_of_packages([path], LoadOptions(backend="cpu"), ServeOptions())
    next((tmp_path / path).glob("shard_*")).write_bytes(b"")
    name = pool.offers[0].name
    with pytest.raises(RdrrError) as refusal:
        ask(pool, name)
    with pytest.raises(RdrrError) as direct:
        rdrr.load(path, backend="cpu")
    assert refusal.value.where == name
    assert refusal.value.message == direct.value.message
    assert refusal.value.found == direct.value.found
    assert refusal.value.hint == direct.value.hint.replace(f"validate {path}`", f"validate {name}`")


def test_an_unused_package_is_unloaded_and_loaded_again():
    packages = Packages({"a": 1, "b": 1})
    pool = Pool(packages.offers(), Metrics(), 0, idle_unload=0.04)
    ask(pool, "a")
    ask(pool, "b")
    packages.workers[1].jobs = 1
    for _ in range(1000):
        if loaded(pool) == ["b"]:
            break
        threading.Event().wait(0.01)
    assert loaded(pool) == ["b"]
    assert packages.workers[0].stopped
    assert ask(pool, "a") == "a"
    pool.close()


def test_closing_stops_all():
    packages = Packages({"a": 1, "b": 1})
    pool = Pool(packages.offers(), Metrics(), 0)
    ask(pool, "a")
    ask(pool, "b")
    pool.close()
    assert all(worker.stopped for worker in packages.workers)
