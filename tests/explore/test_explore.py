"""The explorer: what it says of a text is what the models do, and its page can be typed into, switched and read."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fsn
from fsn.cli import main
from fsn.data import Windows
from fsn.errors import UserError
from fsn.explore.explorer import Explorer, copy_depth, coupling_force, forward_pass, pulls
from fsn.measure import without_field
from fsn.measure.copy_depth import CAP, label
from fsn.models import FSN
from fsn.train.run import SHIPPED
from tests.data.subwords import byte_pairs
from tests.demo.browser import find_browser
from tests.explore.chrome import Chrome

pytest.importorskip("fastapi")
uvicorn = pytest.importorskip("uvicorn")
from fastapi.testclient import TestClient  # noqa: E402

from fsn.explore.command import listen  # noqa: E402
from fsn.explore.server import LARGEST_BODY, make_app  # noqa: E402

SENTENCE = "The zorblat of Quokkahaven feeds on lupin leaves and moonlight. "
TWICE = 2 * SENTENCE


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    return Explorer({name: fsn.load(name) for name in ("fsn-1m", "transformer-1m")})


@pytest.fixture(scope="module")
def kuramoto() -> Explorer:
    """A model without successors, not trained, beside one that has them."""
    whole = fsn.load("fsn-1m")
    plain = fsn.build("kuramoto-1m", vocab_size=whole.config.vocab_size, k=8, layers=2).eval()
    plain.tokenizer = whole.tokenizer
    return Explorer({"kuramoto": plain, "fsn-1m": whole})


def test_a_run_called_cut_is_not_taken_for_fields_that_are_off(explorer: Explorer) -> None:
    both = Explorer({"cut": explorer.model, "other": explorer.model})
    read = both.read("ab", [(0, "successor")])
    assert list(read["models"]) == ["cut (run)", "other", "cut"]
    assert read["models"]["cut (run)"] == read["models"]["other"] != read["models"]["cut"]


@pytest.fixture(scope="module")
def client(explorer: Explorer) -> TestClient:
    return TestClient(make_app(explorer), base_url="http://127.0.0.1:8000")


# -- what is said ----------------------------------------------------------------------------------------------


def test_losses_are_the_models_own(explorer: Explorer) -> None:
    said = explorer.read(TWICE)
    assert "".join(said["labels"]) == TWICE
    for name, model in explorer.models.items():
        tokens = model.encode("\n" + TWICE)
        with torch.no_grad():
            bits = model.loss(tokens[:, :-1], tokens[:, 1:])[0] / np.log(2)
        assert said["models"][name]["bits"] == pytest.approx(bits.tolist(), abs=1e-3)
        best = [row[0][0] for row in said["models"][name]["likeliest"]]
        with torch.no_grad():
            expected = model.decode(model(tokens)[0].argmax(-1))
        assert "".join(best) == expected


def test_copy_depth_is_the_instruments() -> None:
    generator = torch.Generator().manual_seed(0)
    for symbols in (2, 5, 60):
        tokens = torch.randint(symbols, (120,), generator=generator)
        labels = label(Windows(tokens.to(torch.uint8), 120, 120))
        depth, back = copy_depth(tokens)
        assert depth == [0, *np.clip(labels.match[0].astype(int) - 1, 0, CAP)] and back == [
            0,
            *labels.distance[0],
        ]
    assert copy_depth(torch.tensor([3])) == ([0], [0])


def test_a_field_that_is_off_is_the_instruments_lesion_and_comes_back(explorer: Explorer) -> None:
    before = explorer.read(TWICE)["models"]
    cut = explorer.read(TWICE, [(3, "successor")])["models"]
    assert cut["fsn-1m"] == before["fsn-1m"] and cut["transformer-1m"] == before["transformer-1m"]
    model = explorer.model
    tokens = model.encode("\n" + TWICE)
    with torch.no_grad(), without_field(model, "successor", 3):
        bits = model.loss(tokens[:, :-1], tokens[:, 1:])[0] / np.log(2)
    assert cut["cut"]["bits"] == pytest.approx(bits.tolist(), abs=1e-3)
    again = slice(len(SENTENCE) + 8, None)
    assert (
        np.mean(cut["cut"]["bits"][again]) > np.mean(before["fsn-1m"]["bits"][again]) + 1.5
    )  # it forgot to copy
    assert explorer.read(TWICE)["models"] == before


def test_pulls_add_up_to_the_update_of_the_layer(explorer: Explorer) -> None:
    """Without the norms: Σ_u A_tu · gate · (force of u + force of u + 1) is what the layer's coupling gives."""
    model = explorer.model
    assert isinstance(model, FSN)
    tokens, at = model.encode(TWICE)[0], 90
    one = forward_pass(model, tokens)
    with fsn.record(model, "layers.*.coupling") as points, torch.no_grad():
        model(torch.cat((model.encode("\n")[0], tokens))[None])
    turning = model.config.coupling.frame == "co-rotating"
    for layer in range(model.config.layers):
        theta = one.points["phases" if layer == 0 else f"layers.{layer - 1}.state"][0]
        kernel = model.layers[layer].kernel.coefficients()  # type: ignore[union-attr, operator]
        weights = one.attention(layer)[at, :at, None]
        forces = [
            coupling_force(kernel[name], theta[shift : at + shift] - theta[at], turning)
            for shift, name in enumerate(("w0", "w1"))
        ]
        expected = points[f"layers.{layer}.coupling"][0, at]
        torch.testing.assert_close((weights * (forces[0] + forces[1])).sum(0), expected, atol=2e-4, rtol=1e-3)


def test_the_last_layer_is_pulled_towards_what_comes(explorer: Explorer) -> None:
    at = len(SENTENCE) + 20
    said = explorer.look(TWICE, at)
    inside = said["inside"]
    goal = inside["layers"][3]["goal"]
    assert goal - 1 == at - len(SENTENCE)  # position 0 is the line break before the text
    for rows in said["attention"].values():
        assert all(sum(row) == pytest.approx(1.0, abs=0.01) for row in rows)
    assert len(inside["states"]) == 5 and len(inside["moves"]) == 4
    first = pulls(explorer.model, forward_pass(explorer.model, explorer.model.encode("a")[0]), 0, 5)  # type: ignore[arg-type]
    assert first["layers"][0] == {"present": [], "successor": [], "goal": 0}


def test_where_no_successor_pulls_there_is_no_goal(explorer: Explorer, kuramoto: Explorer) -> None:
    at = len(SENTENCE) + 20
    cut = explorer.look(TWICE, at, [(3, "successor")])["inside"]["layers"]
    assert all(layer["goal"] for layer in cut[:3]) and cut[3]["goal"] == 0
    assert [layer["goal"] for layer in kuramoto.look(TWICE, at)["inside"]["layers"]] == [0, 0]


def test_characters_of_several_symbols(explorer: Explorer) -> None:
    said = explorer.read("né文")
    assert said["labels"] == ["n", "", "é", "", "", "文"] and len(said["models"]["fsn-1m"]["bits"]) == 6


def test_a_transformer_alone_has_no_fields() -> None:
    alone = Explorer({"transformer-1m": fsn.load("transformer-1m")})
    assert alone.fields() == [] and alone.coupling() is None
    assert alone.look("abc", 1)["inside"] is None
    with pytest.raises(UserError, match="no coupling kernel"):
        alone.read("abc", [(0, "present")])


def test_models_of_different_symbols_are_not_compared() -> None:
    other = fsn.build("fsn-1m", vocab_size=3, k=8, layers=1)
    other.tokenizer = fsn.data.Alphabet(b"abc")
    with pytest.raises(UserError, match="fsn-1m and other read different symbols"):
        Explorer({"fsn-1m": fsn.load("fsn-1m"), "other": other})


def test_subwords(tmp_path: Path) -> None:
    """Symbols of several letters, and more letters than symbols fit into a window."""
    pytest.importorskip("tokenizers")
    model = fsn.build(
        "fsn-1m", vocab_size=len(words := fsn.data.Subwords(byte_pairs())), k=8, layers=1
    ).eval()
    model.tokenizer, model.window = words, 12
    read = Explorer({"words": model})
    text = "the winding of the winding"
    said = read.read(text)
    assert "".join(said["labels"]) == text and len(said["labels"]) == len(words.encode(text)) < len(text)
    assert not read.about()["bytes"] and max(map(len, said["labels"])) > 1
    with pytest.raises(UserError, match="at most 11 symbols"):
        read.read(20 * text)


# -- who may ask, and what ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "question", "status", "words"),
    [
        ("/read", {"text": ""}, 400, "at least one character"),
        ("/read", {"text": "a" * 256}, 400, "at most 255 symbols"),
        ("/read", {"text": "é" * 128}, 400, "at most 255 symbols"),
        ("/read", {"text": "a" * 1_000_000}, 413, "too long"),
        ("/read", {"text": "\x00"}, 400, "not among the 205 symbols"),
        ("/read", {"text": "\ud800"}, 400, ""),
        ("/read", {"text": 5}, 400, "makes no sense"),
        ("/read", {}, 400, "makes no sense"),
        ("/read", {"text": "a", "cuts": [[9, "present"]]}, 400, "no layer 9"),
        ("/read", {"text": "a", "cuts": [[-1, "present"]]}, 400, "makes no sense"),
        ("/read", {"text": "a", "cuts": [[0, "past"]]}, 400, "makes no sense"),
        ("/read", {"text": "a", "cuts": [[0, "present"]] * 201}, 400, "makes no sense"),
        ("/look", {"text": "abc", "at": 3}, 400, "no symbol 3"),
        ("/look", {"text": "abc", "at": -1}, 400, "makes no sense"),
        ("/nothing", {}, 404, "nothing here"),
    ],
)
def test_a_question_that_cannot_be_answered_gets_a_sentence(
    client: TestClient, path: str, question: dict[str, Any], status: int, words: str
) -> None:
    answer = client.post(path, content=json.dumps(question), headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert answer.status_code == status and words in error and "\n" not in error and len(error) < 400


def test_bodies_are_bounded_however_they_are_sent(client: TestClient) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(2 * LARGEST_BODY // 1000):
            yield b"a" * 1000

    assert client.post("/read", content=pieces()).status_code == 413
    assert client.post("/read", content=b"not json").status_code == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:8000"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"origin": "http://127.0.0.1:8000"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": ""}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "null"}, 403),
    ],
)
def test_only_this_computers_own_page_is_answered(
    client: TestClient, headers: dict[str, str], status: int
) -> None:
    assert client.post("/read", json={"text": "abc"}, headers=headers).status_code == status
    answer = client.get("/", headers=headers)
    assert answer.status_code == status
    if status == 200:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy


def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with listen(0) as taken:
        port = str(taken.getsockname()[1])
        assert taken.getsockname()[0] == "127.0.0.1"
        taken.listen()
        for words, sentence in (
            (["--port", "70000"], "--port must lie between"),
            (["--port", port], f"port {port} cannot be opened"),
            (["nothing-like-it"], "come with fsn"),
            (["fsn-1m", "--against", "fsn-1m"], "is the run itself"),
            ([str(tmp_path)], "neither a run folder"),
        ):
            with pytest.raises(SystemExit) as ended:
                main(["explore", *words, "--no-browser"])
            error = capsys.readouterr().err
            assert ended.value.code == 2 and sentence in error and error.count("\n") == 1


def test_models_are_called_by_the_last_part_of_their_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = [tmp_path / "mine", tmp_path / "other" / "mine"]
    for copy in copies:
        shutil.copytree(SHIPPED / "fsn-1m", copy)
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: None)
    for words, called in (
        ([str(copies[0])], "mine against transformer-1m: "),
        ([str(copies[0]), "--against", str(copies[1])], f"{copies[0]} against {copies[1]}: "),
    ):
        main(["explore", *words, "--no-browser"])
        assert capsys.readouterr().out.startswith(called)


# -- the page ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def served(explorer: Explorer) -> Iterator[str]:
    listening = listen(0)
    server = uvicorn.Server(uvicorn.Config(make_app(explorer), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def address(explorer: Explorer) -> Iterator[str]:
    with served(explorer) as where:
        yield where


def cost(page: Chrome, model: str) -> float:
    """What the table says a copied symbol costs."""
    row = f"document.querySelector('#means tr[data-model=\"{model}\"] td:last-child')"
    return float(page.value(f"{row}.textContent"))


@pytest.mark.skipif(find_browser() is None, reason="no Chromium here")
@pytest.mark.parametrize(("width", "dark"), [(1100, False), (400, True)])
def test_the_page_in_a_browser(address: str, tmp_path: Path, width: int, dark: bool) -> None:
    seen = "Number(document.body.dataset.seen)"
    with Chrome(tmp_path) as page:
        page.open(address, width, dark=dark)
        page.wait(f"{seen} >= 1")
        assert page.value("document.documentElement.scrollWidth") <= width
        shade = page.value("getComputedStyle(document.body).backgroundColor")
        assert shade == ("rgb(17, 20, 25)" if dark else "rgb(251, 250, 247)")

        page.click('[data-cut="3 successor"]')
        page.wait("document.querySelector('.strip[data-model=cut]')")
        assert cost(page, "cut") > cost(page, "fsn-1m") + 1.5
        assert "forgotten how to copy" in page.value("document.getElementById('verdict').textContent")
        assert "off" in page.value("document.querySelector('#curve-successor .legend').textContent")
        page.click("button.all")
        page.wait("!document.querySelector('.strip[data-model=cut]')")

        typed = "<img src=x onerror=alert(1)> & <b>bold</b> <img src=x onerror=alert(1)>"
        page.type("#text", typed)
        page.wait(f"document.querySelectorAll('.strip')[0].querySelectorAll('i').length === {len(typed)}")
        assert page.value("document.querySelector('.strip .letters').textContent") == typed
        assert not page.value("document.querySelectorAll('main img, .letters b b').length")
        here = "document.querySelector('.strip i.here').dataset.i"
        page.click_until(".strip .letters i[data-i='50']", f"{here} === '50'")
        assert page.value("document.querySelectorAll('.look').length") == 4
        assert page.value("document.querySelectorAll('#clocks svg').length") == 6 * 5
        page.send("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", code="ArrowRight")
        page.wait(f"{here} === '51'")
        page.type("#coordinates", "1, 176, 999")
        assert page.value("document.querySelectorAll('#clocks svg').length") == 2 * 5
        page.click("#looks-model button:last-child")
        assert (
            page.value("document.querySelectorAll('.look .goal').length") == 0
        )  # a transformer has no successors

        page.type("#text", "a" * 300)
        page.wait("!document.getElementById('refusal').hidden")
        assert "at most 255 symbols" in page.value("document.getElementById('refusal').textContent")
        assert page.value("document.documentElement.scrollWidth") <= width
        assert not page.problems


@pytest.mark.skipif(find_browser() is None, reason="no Chromium here")
def test_the_page_of_a_model_without_successors_names_none(kuramoto: Explorer, tmp_path: Path) -> None:
    with served(kuramoto) as address, Chrome(tmp_path) as page:
        page.open(address, 400)
        page.wait("Number(document.body.dataset.seen) >= 1")
        assert "Try the present field" in page.value("document.getElementById('verdict').textContent")
        assert page.value("document.querySelectorAll('#curve-present svg').length") > 0
        assert "uccessor" not in page.value(
            "[...document.querySelectorAll('#looks-part, #clocks-part, #coupling-part')].map((s) => s.innerText).join()"
        )
        assert page.value("document.querySelectorAll('.goal-dot').length") == 0
        assert page.value("document.documentElement.scrollWidth") <= 400
        assert not page.problems
