"""The page: self-contained, well-formed, links lead somewhere, nothing from a file gets out of its text."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import pytest
from bench_samples import results, row, sweep
from patience import LONG
from tuning_samples import baseline, timed

pytest.importorskip("matplotlib")

from sparsegen import backends
from sparsegen.bench.results import result_file
from sparsegen.errors import ReportError
from sparsegen.kernels import family
from sparsegen.operators import DsdProblem, DType, Epilogue, FactorType, Layout, SoftmaxProblem, SpmmProblem
from sparsegen.report.build import build
from sparsegen.tuning_db.store import Store

VOID = {"meta", "link", "br", "hr", "img", "input"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""


class Page(HTMLParser):
    """Every attribute and id of a page; complains of tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "xlink:href"):
                self.links.append(value or "")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a sweep and of a small database on the same device."""
    folder = tmp_path_factory.mktemp("report")
    result_file.write(sweep(), folder / "bench.json")
    build(folder / "report.html", files=[folder / "bench.json"], store=None, progress=lambda text: None)
    return folder / "report.html"


def test_the_page_parses_and_loads_nothing(page: Path) -> None:
    text = page.read_text()
    parsed = Page(text)
    assert "script" not in parsed.tags and "iframe" not in parsed.tags
    assert all(link.startswith("#") or link == "data:," for link in parsed.links)
    assert not re.search(r"@import|url\((?!#)", text)


def test_ids_are_unique_and_links_lead_to_them(page: Path) -> None:
    parsed = Page(page.read_text())
    assert len(parsed.ids) == len(set(parsed.ids))
    assert {link[1:] for link in parsed.links if link.startswith("#")} <= set(parsed.ids)


def test_every_drawing_has_words_for_those_who_do_not_see_it(page: Path) -> None:
    drawings = re.findall(r"<svg[^>]*>", page.read_text())
    assert len(drawings) >= 8
    assert all(re.search(r'role="(img|group)"', svg) and 'aria-label="' in svg for svg in drawings)


def test_the_page_has_what_was_measured(page: Path) -> None:
    text = page.read_text()
    assert '<th scope="row">made-up</th>' in text and "Made-up GPU" in text
    assert "extern &#34;C&#34; __global__" in text or "extern &quot;C&quot; __global__" in text
    assert "PyTorch is not installed" in text  # the baseline that was missing, and why


def test_what_is_missing_is_said(page: Path) -> None:
    text = page.read_text()
    assert "The database holds no measurement of this device." in text
    (_, said) = text.split("The database holds no time of a fixed setting on this device: ")
    assert "csr_spmm" in said.partition("</p>")[0] and "uspmm_vec" in said.partition("</p>")[0]


def test_text_from_files_cannot_become_markup(tmp_path: Path) -> None:
    evil = '<script>alert(1)</script><img src="http://example.org/x">'
    made = results(row("a", suite=evil, n=32), row("b", suite=evil, n=64, density=0.5))
    made = replace(made, device=replace(made.device, name=evil))
    result_file.write(made, tmp_path / "bench.json")
    build(tmp_path / "r.html", files=[tmp_path / "bench.json"], store=None, progress=lambda text: None)
    parsed = Page((tmp_path / "r.html").read_text())
    assert "script" not in parsed.tags and "img" not in parsed.tags


def test_a_database_alone_makes_a_report(tmp_path: Path) -> None:
    with Store.open(tmp_path / "t.db") as store:
        store.add_all([timed(5.0), timed(4.0, tile_n=32)], [baseline(8.0)])
        written = build(tmp_path / "r.html", files=[], store=store, progress=lambda text: None)
    assert [len(s.charts) for s in written.report.sections if s.anchor == "speedup"] == [1]
    assert "There is no result file" in (tmp_path / "r.html").read_text()


def test_times_of_the_emulator_are_said_to_prove_nothing_about_gpus(tmp_path: Path) -> None:
    cpu = backends.find_device("emulator")
    for device, is_said in ((cpu, True), (None, False)):
        measured, compared = timed(5.0), baseline(8.0)
        if device is not None:
            measured, compared = replace(measured, device=device), replace(compared, device=device)
        with Store.open(tmp_path / f"{is_said}.db") as store:
            store.add_all([measured], [compared])
            build(tmp_path / "r.html", files=[], store=store, progress=lambda text: None)
        text = html.unescape((tmp_path / "r.html").read_text())
        assert ("they prove nothing about any GPU" in text) is is_said


def test_batches_are_left_out_and_that_is_said(tmp_path: Path) -> None:
    several = timed(3.0)
    of = replace(several.workload, problem=replace(several.workload.problem, batch=8))
    result_file.write(
        results(row("a"), replace(row("b"), problem=SpmmProblem(512, 512, 32, batch=2))),
        tmp_path / "bench.json",
    )
    with Store.open(tmp_path / "t.db") as store:
        store.add_all([timed(5.0), replace(several, workload=of)], [])
        files = [tmp_path / "bench.json"]
        build(tmp_path / "r.html", files=files, store=store, progress=lambda text: None)
    assert "2 workloads of several batch elements left out" in (tmp_path / "r.html").read_text()


def test_rows_of_any_operator_are_reported(tmp_path: Path) -> None:
    """Each row has its own sizes, and the source of what ran: a softmax has no k, and an epilogue is part of the
    source.
    """
    problems = SoftmaxProblem(512, 512), SpmmProblem(512, 512, 64, epilogue=Epilogue.BIAS_GELU)
    rows = []
    for problem, name in zip(problems, ("row_softmax", "csr_spmm"), strict=True):
        ours = replace(row().cells[0], variant=family(name).config())
        rows.append(replace(row(name), problem=problem, cells=(ours, *row().cells[1:])))
    result_file.write(results(*rows), tmp_path / "bench.json")
    target = tmp_path / "report.html"
    build(target, files=[tmp_path / "bench.json"], store=None, progress=lambda text: None)
    text = html.unescape(target.read_text())
    Page(target.read_text())
    assert "made-up: 512 × 512, 90 % zeros" in text and "made-up: 512 × 512 × 64, 90 % zeros" in text
    assert "gelu" in text and "__global__" in text and "512 × 0" not in text


def test_factors_of_8_bits_have_charts_of_their_own(tmp_path: Path) -> None:
    half = DsdProblem(512, 512, 512, DType.FLOAT16, w_layout=Layout.COLUMN)
    problems = half, replace(half, factor_type=FactorType.E4M3)
    ours = replace(row().cells[0], variant=family("tma_dsd").config())
    cells = (ours, *row().cells[1:])
    rows = [replace(row(problem.factor_type), problem=problem, cells=cells) for problem in problems]
    result_file.write(results(*rows), tmp_path / "bench.json")
    target = tmp_path / "report.html"
    build(target, files=[tmp_path / "bench.json"], store=None, progress=lambda text: None)
    text = html.unescape(target.read_text())
    for name in ("DSD fp16: roofline", "DSD e4m3 → fp16: roofline"):
        assert text.count(f">{name}<") == 1
    assert "700 TFLOP/s dense" in text and "1,400 TFLOP/s dense" in text


def test_searches_and_fixed_settings_are_drawn(tmp_path: Path) -> None:
    values = product((32, 64, 128), (1, 2, 4), (16, 32), ("padded", "reverse_offset"))
    names = ("tile_n", "rows_per_block", "index_bits", "row_alignment")
    trials = [timed(9.0 - i % 7, at=i, **dict(zip(names, v, strict=True))) for i, v in enumerate(values)]
    paper = replace(trials[0].variant, config=family("uspmm").config(vsize=8, nwarp=2))
    with Store.open(tmp_path / "t.db") as store:
        store.add_all([*trials, replace(timed(20.0, at=40), variant=paper)], [])
        written = build(tmp_path / "r.html", files=[], store=store, progress=lambda text: None)
    drawn = {s.anchor: [chart.name.partition("-")[0] for chart in s.charts] for s in written.report.sections}
    assert drawn["study"] == ["history", "importances"]
    assert drawn["fixed"] == ["fixed"]
    assert "geometric mean 6.67 ×" in (tmp_path / "r.html").read_text()


def test_every_point_has_a_tip(page: Path) -> None:
    made = page.read_text()
    assert made.count("<title>made-up: 512 × 512 × 32, 50 % zeros: 0.50 ×</title>") == 2  # two types


def test_nothing_to_report_on(tmp_path: Path) -> None:
    with Store.open(tmp_path / "t.db") as store, pytest.raises(ReportError, match="nothing to report on"):
        build(tmp_path / "r.html", files=[], store=store, progress=lambda text: None)
    result_file.write(results(), tmp_path / "a.json")
    with pytest.raises(ReportError, match="known are made-up-sm90"):
        build(
            tmp_path / "r.html",
            files=[tmp_path / "a.json"],
            store=None,
            device="other",
            progress=lambda text: None,
        )
    assert not (tmp_path / "r.html").exists()


def test_a_row_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        result_file.write(results(), tmp_path / name)
    with pytest.raises(ReportError, match=r"stands in both a\.json and b\.json"):
        build(
            tmp_path / "r.html",
            files=[tmp_path / "a.json", tmp_path / "b.json"],
            store=None,
            progress=lambda text: None,
        )


def test_variants_of_other_versions_are_named_without_a_source(tmp_path: Path) -> None:
    text = result_file.dump(results()).replace('"family": "csr_spmm"', '"family": "forgotten_spmm"')
    (tmp_path / "bench.json").write_text(text)
    build(tmp_path / "r.html", files=[tmp_path / "bench.json"], store=None, progress=lambda text: None)
    page = (tmp_path / "r.html").read_text()
    assert "V1: its source is not shown" in page and "forgotten_spmm" in page


def opened(page: Path, folder: Path) -> tuple[str, list[str], bytes]:
    """Open a page in Chromium: what its console said, what the page asked the network for, a screenshot."""
    image, log = folder / "page.png", folder / "net.json"
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += [f"--user-data-dir={folder / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND"]
    command += ["--enable-logging=stderr", f"--log-net-log={log}", f"--screenshot={image}"]
    done = subprocess.run(
        [*command, "--window-size=1280,4000", page.as_uri()], capture_output=True, text=True, timeout=LONG
    )
    said = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    # The browser's own requests have no origin; a page's have one, "null" for a file.
    events = (json.loads(line.rstrip(",")) for line in log.read_text().splitlines() if '"initiator"' in line)
    asked = [e["params"]["url"] for e in events if e["params"]["initiator"] != "not an origin"]
    return "\n".join(said), [url for url in asked if not url.startswith("file:")], image.read_bytes()


@pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")
def test_chromium_shows_it_without_error_or_request(page: Path, tmp_path: Path) -> None:
    said, asked, image = opened(page, tmp_path)
    assert not said and not asked
    assert len(image) > 100_000  # a blank page of this size has 10 kB


@pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")
def test_chromium_would_tell(tmp_path: Path) -> None:
    text = '<img src="http://page.invalid/x.png"><script>console.error("no")</script>'
    (tmp_path / "bad.html").write_text(text)
    said, asked, _ = opened(tmp_path / "bad.html", tmp_path)
    assert "no" in said and asked == ["http://page.invalid/x.png"]
