"""Images made through OpenAI's client and the command line, beside text."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import httpx2
import openai
import pytest
from typer.testing import CliRunner

from blazr.cli.app import app
from blazr.cli.model_plans import plan_models
from blazr.cli.options import ServeFlags
from blazr.cli.serve import open_models
from blazr.server.config import ServerConfig
from blazr.server.served import ServedPipeline
from tests.support import diffusion_pipelines
from tests.support.diffusion_pipelines import picture, size_of
from tests.support.loopback import Loopback, serving_models
from tests.support.scripted import wait_until

pytestmark = diffusion_pipelines.NEEDS_IMAGE
URL = "/v1/images/generations"
ASKED = {"prompt": "a red ball", "seed": 3, "steps": 3, "size": "64x64"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "image"
    diffusion_pipelines.save_stable_diffusion(path)
    return path


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Loopback]:
    flags = ServeFlags(device="cpu", memory="16MiB")
    plans = plan_models(["text=nano", f"gpt-image-1={directory}"], None, flags, default="nano")
    assert plans[1].num_bytes > 10_000  # of the weights in its folders
    models = open_models(plans, ServerConfig(host="127.0.0.1", port=0))
    with serving_models(models) as running:
        yield running


def post(server: Loopback, **more: object) -> httpx2.Response:
    return server.client.post(URL, json={**ASKED, **more}, timeout=60)


def test_openai_s_client_gets_images(server: Loopback) -> None:
    more = {"seed": 3, "steps": 3}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        made = client.images.generate(
            prompt="a red ball", model="gpt-image-1", n=2, size="96x64", extra_body=more
        )
        files = [b64decode(each.b64_json or "") for each in made.data or []]
        assert [size_of(each) for each in files] == [(96, 64)] * 2
        assert made.size == "96x64"
        kept = client.images.generate(
            prompt="a red ball", size="96x64", response_format="url", extra_body=more
        )
        fetched = httpx2.get((kept.data or [])[0].url or "")
        assert fetched.headers["content-type"] == "image/png"
        assert fetched.content == files[0]
        stream = client.images.generate(
            prompt="a red ball", size="96x64", stream=True, partial_images=2, extra_body=more
        )
        events = list(stream)
        assert [each.type for each in events] == [
            "image_generation.partial_image",
            "image_generation.partial_image",
            "image_generation.completed",
        ]
        assert b64decode(events[-1].b64_json) == files[0]
        edited = client.images.edit(
            image=("a.png", picture((64, 64))),
            mask=("mask.png", picture((64, 64), hole=(0, 0, 32, 64))),
            prompt="a green ball",
            output_format="webp",
            extra_body={"seed": 3, "steps": 4},
        )
        assert size_of(b64decode((edited.data or [])[0].b64_json or ""), "WEBP") == (64, 64)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"n": 0}, "n"),
        ({"n": 11}, "n"),
        ({"size": "1000000x64"}, "size"),
        ({"size": "64x70"}, "size"),
        ({"size": "0x0"}, "size"),
        ({"size": "large"}, "size"),
        ({"steps": 0}, "steps"),
        ({"steps": 1000}, "steps"),
        ({"guidance": -1}, "guidance"),
        ({"partial_images": 2}, "partial_images"),
        ({"stream": True, "response_format": "url"}, "response_format"),
        ({"output_format": "gif"}, "output_format"),
        ({"background": "transparent"}, "background"),
        ({"quality": "hd"}, "quality"),
        ({"model": "text"}, "model"),
    ],
)
def test_what_cannot_be_made_gets_a_400(
    server: Loopback, more: dict[str, object], param: str
) -> None:
    refused = post(server, **more)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("files", "param"),
    [
        ([], "image"),
        ([("image", b"no image")], "image"),
        ([("image[]", picture), ("image[]", picture)], "image"),
        ([("image", picture), ("mask", b"no image")], "mask"),
    ],
)
def test_edits_that_cannot_be_made_get_a_400(
    server: Loopback, files: list[tuple[str, object]], param: str
) -> None:
    sent = [(name, ("a.png", each((64, 64)) if callable(each) else each)) for name, each in files]
    sent = sent or [("other", ("a.png", b""))]
    refused = server.client.post("/v1/images/edits", data={"prompt": "a"}, files=sent)
    assert refused.status_code == 400
    assert param in str(refused.json()["error"])


def test_an_image_that_is_not_kept_is_not_found(server: Loopback) -> None:
    assert server.client.get("/v1/images/files/img_0.png").status_code == 404


def test_who_leaves_ends_the_work_and_others_wait_their_turn(server: Loopback) -> None:
    assert post(server).status_code == 200
    cards = {each["id"]: each for each in server.client.get("/v1/models").json()["data"]}
    assert cards["gpt-image-1"]["capabilities"] == ["image"]
    model = server.models.find("gpt-image-1").model
    assert isinstance(model, ServedPipeline)
    jobs = model.pipeline.jobs

    async def leave() -> None:
        async with httpx2.AsyncClient(base_url=server.url, timeout=60) as client:
            long = [
                asyncio.create_task(client.post(URL, json={**ASKED, "n": 10, "steps": 200}))
                for _ in range(2)
            ]
            while jobs.figures != {"running": 1, "waiting": 1}:
                await asyncio.sleep(0.01)
            said = await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 8})
            assert said.status_code == 200  # text goes on
            assert jobs.figures == {"running": 1, "waiting": 1}
            for each in long:
                each.cancel()
            await asyncio.gather(*long, return_exceptions=True)

    asyncio.run(leave())
    wait_until(lambda: jobs.figures == {"running": 0, "waiting": 0})
    ended = 'blazr_requests_total{model="gpt-image-1",outcome="cancelled"} 2.0'
    wait_until(lambda: ended in server.client.get("/metrics").text)
    assert post(server).status_code == 200


def test_the_command_writes_a_file(directory: Path, tmp_path: Path, server: Loopback) -> None:
    file = tmp_path / "ball.png"
    said = ["image", "a red ball", "-m", str(directory), "--device", "cpu", "--seed", "3"]
    said += ["--steps", "3", "--size", "64x64", "-o"]
    found = CliRunner().invoke(app, [*said, str(file)])
    assert found.exit_code == 0, found.output
    assert file.read_bytes() == b64decode(post(server).json()["data"][0]["b64_json"])
    for wrong in ([*said, str(tmp_path / "a.gif")], [*said, str(file), "--size", "9x9"]):
        assert CliRunner().invoke(app, wrong).exit_code
