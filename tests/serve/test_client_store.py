"""What clients leave with the server: how much, how long, and who finds it."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import stat
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest

import litebert
from litebert.serve import client_store as jobs
from litebert.serve.json_logs import JsonFormatter
from litebert.serve.limits import Limits
from litebert.serve.registry import Registry
from litebert.serve.service import Service
from tests.serve.conftest import EXAMPLES, TEXTS, Start, listening

GIVEN = {"examples": [{"text": text, "label": label} for text, label in EXAMPLES]}


class Clock:
    """In the place of `time`."""

    def __init__(self) -> None:
        self.now = 1e6

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


def test_what_nobody_uses_is_forgotten(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(jobs, "time", clock)
    client = start(Limits(job_lifetime_s=60))
    listed, taught = client.post("/search", json={"texts": TEXTS}).json(), client.post("/adapt", json=GIVEN).json()
    assert listed["expires_in_s"] == taught["expires_in_s"] == 60
    clock.now += 50
    assert client.post(f"/predict/{taught['model']}", json={"inputs": TEXTS}).status_code == 200  # which is a use
    clock.now += 50
    assert client.post(f"/predict/{taught['model']}", json={"inputs": TEXTS}).status_code == 200
    gone = client.post(f"/search/{listed['id']}", json={"query": "rain"})
    assert gone.status_code == 404
    assert "60 s" in gone.json()["error"]["message"]
    clock.now += 61
    assert client.post(f"/adapt/{taught['id']}/explain", json={"text": "rain"}).status_code == 404
    assert "litebert_taught_classifiers 0.0" in client.get("/metrics").text


def test_downloads_leave_nothing_on_the_disk_and_count_as_answered(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with listening(lambda: Service(registry, Limits()), Limits()) as address:
        taught = httpx.post(f"{address}/adapt", json=GIVEN).json()["id"]
        with httpx.stream("GET", f"{address}/adapt/{taught}/download"):
            pass  # and leave
        for _ in range(5):
            answer = httpx.get(f"{address}/adapt/{taught}/download")
            assert zipfile.ZipFile(io.BytesIO(answer.content)).testzip() is None
            assert int(answer.headers["content-length"]) == len(answer.content)
            assert answer.headers["content-disposition"] == f'attachment; filename="adapted-{taught[:8]}.zip"'
        counted: dict[str, float] = {}
        while sum(counted.values()) < 6:  # a request is counted when its answer has been sent
            figures = httpx.get(f"{address}/metrics").text
            found = re.findall(r'requests_total.*route="/adapt/{id}/download",status="(\d+)"} (\S+)', figures)
            counted = {status: float(count) for status, count in found}
    assert counted["200"] >= 5  # the one that left may have had it all
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("has_folder", [False, True])
def test_only_so_many_are_kept(has_folder: bool, start: Start, tmp_path: Path) -> None:
    client = start(Limits(jobs=2), state_dir=tmp_path if has_folder else None)
    first, _ = (client.post("/search", json={"texts": TEXTS}).json()["id"] for _ in range(2))
    refused = client.post("/search", json={"texts": TEXTS})
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 3000
    assert client.delete(f"/search/{first}").status_code == 200
    assert client.post("/search", json={"texts": TEXTS}).status_code == 200
    assert client.post("/adapt", json=GIVEN).status_code == 200  # these are counted by themselves


def test_processes_with_one_folder_find_what_the_other_was_given(start: Start, tmp_path: Path) -> None:
    one, other = (start(state_dir=tmp_path, processes=2) for _ in range(2))
    taught = one.post("/adapt", json=GIVEN).json()
    asked = {"inputs": TEXTS}
    answers = [client.post(f"/predict/{taught['model']}", json=asked).json()["answers"] for client in (one, other)]
    assert answers[0] == answers[1]
    more = {"examples": [{"text": "the train stopped", "label": "travel"}, {"text": "a map", "label": "travel"}]}
    assert other.post(f"/adapt/{taught['id']}/examples", json=more).json()["examples"] == 8
    again = one.post(f"/predict/{taught['model']}", json=asked).json()["answers"]
    assert set(again[0]["probabilities"]) == {"food", "travel", "weather"}
    listed = other.post("/search", json={"texts": TEXTS}).json()["id"]
    found = one.post(f"/search/{listed}", json={"query": TEXTS[2], "top": 1}).json()["results"]
    assert found[0][0]["text"] == TEXTS[2]
    assert one.delete(f"/adapt/{taught['id']}").status_code == 200
    assert other.post(f"/predict/{taught['model']}", json=asked).status_code == 404
    assert len(list((tmp_path / "adapted").iterdir())) == 0


def test_nobody_else_on_the_machine_may_look_at_what_clients_left(start: Start, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        client = start(state_dir=tmp_path / "state")
        client.post("/search", json={"texts": TEXTS})
    finally:
        os.umask(before)
    for folder in (tmp_path / "state", tmp_path / "state" / "adapted", tmp_path / "state" / "lists"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_several_processes_without_a_folder_refuse_to_remember(start: Start) -> None:
    client = start(processes=2)
    for path, body in (("/adapt", GIVEN), ("/search", {"texts": TEXTS})):
        refused = client.post(path, json=body)
        assert refused.status_code == 403
        assert "--state-dir" in refused.json()["error"]["message"]
    assert client.post("/tag", json={"text": "rain"}).status_code == 200


def test_an_id_is_no_path(start: Start, tmp_path: Path) -> None:
    (tmp_path / "state" / "adapted").mkdir(parents=True)
    secret = tmp_path / "state" / "secret"
    secret.mkdir()
    (secret / "current").write_text("0" * 32, encoding="ascii")
    client = start(state_dir=tmp_path / "state")
    for name in ("../secret", "..%2fsecret", "secret", ".", "%00", "0" * 32, "G" * 32):
        assert client.post(f"/predict/adapted-{name}", json={"inputs": ["a"]}).status_code == 404, name
        assert client.get(f"/adapt/{name}/download").status_code in (400, 404, 405), name
        assert client.delete(f"/search/{name}").status_code in (400, 404, 405), name


def test_a_damaged_state_is_a_missing_one(start: Start, tmp_path: Path) -> None:
    client = start(state_dir=tmp_path)
    name = client.post("/adapt", json=GIVEN).json()["id"]
    for file in (tmp_path / "adapted" / name).rglob("*.safetensors"):
        file.write_bytes(b"no")
    fresh = start(state_dir=tmp_path)
    assert fresh.post(f"/adapt/{name}/explain", json={"text": "rain"}).status_code == 404


def test_models_with_one_encoder_hold_it_once(registry: Registry, models: dict[str, Any]) -> None:
    served = {one.name: one.model for one in registry}
    assert len({id(model.encoder) for model in served.values()}) == 1
    assert len({id(model.encoder) for model in models.values()}) == len(models)  # loaded apart they do not
    for name in ("tag", "few", "mask"):
        one, other = served[name].embed(TEXTS), models[name].embed(TEXTS)
        assert abs(one - other).max() < 1e-5


def test_a_model_with_other_weights_keeps_its_own(folders: dict[str, Path], tmp_path: Path) -> None:
    other = litebert.load(folders["classify"])
    other.encoder.pooler.bias.data += 1
    other.save(tmp_path / "other")
    found = {one.name: one.model for one in Registry.load([str(folders["classify"]), str(tmp_path / "other")])}
    assert found["other"].encoder is not found["classify"].encoder
    assert found["other"].predict(TEXTS) == other.predict(TEXTS)


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("model", "file"), [("classify", "model.safetensors"), ("few", "few_shot.safetensors"), ("few", "base")]
)
def test_weights_that_changed_since_they_were_saved_are_refused(
    model: str, file: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(folders["mask"], tmp_path / "mask")
    shutil.copytree(folders[model], tmp_path / "copy")
    assert Registry.load([f"mine={tmp_path / 'copy'}"]).get("mine").model is not None
    damage(tmp_path / "mask" / "model.safetensors" if file == "base" else tmp_path / "copy" / file)
    with pytest.raises(
        litebert.CheckpointError, match=r"does not match its hash in sha256\.json|has other weights now"
    ):
        Registry.load([str(tmp_path / "copy")])


def test_the_log_says_which_weights_nobody_checked(
    folders: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(folders["mask"], tmp_path / "mask")
    shutil.copytree(folders["few"], tmp_path / "few")
    Registry.load([str(tmp_path / "few")])
    assert caplog.records == []
    (tmp_path / "few" / "sha256.json").unlink()
    Registry.load([str(tmp_path / "few"), "litebert-small-zh"])
    (line,) = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert (line["event"], line["model"], line["files"]) == ("unchecked weights", "few", ["few_shot.safetensors"])
    assert "save it again" in line["remedy"]


def test_two_models_need_two_names(folders: dict[str, Path]) -> None:
    path = str(folders["tag"])
    with pytest.raises(litebert.ConfigError, match=r"the name 'tag' is taken; .*NAME="):
        Registry.load([path, path])
    assert [one.name for one in Registry.load([path, f"again={path}"])] == ["tag", "again"]


def test_the_service_closes_when_somebody_teaches(registry: Registry) -> None:
    import asyncio

    async def run() -> list[str]:
        service = Service(registry, Limits())
        service.engine.batcher.start()
        texts, labels = map(list, zip(*EXAMPLES, strict=True))
        asked = asyncio.ensure_future(service.trainer.train(registry.get("mask"), texts, labels, None))
        await asyncio.sleep(0)
        await service.close()
        return (await asked).labels

    assert asyncio.run(run()) == ["food", "weather"]
