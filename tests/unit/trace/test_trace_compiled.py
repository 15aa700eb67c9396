"""The compiled scanner reads what Python reads: every column, field and repair, on real, odd and broken traces."""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.producers.trace import SummarySettings, identity_from_trace, intervals, nesting, reader, summarise_trace
from eroica.producers.trace import compiled as compiled_parts
from eroica.producers.trace.columns import ColumnBuilder, Trace
from eroica.producers.trace.compiled import (
    COMPILED,
    _columns,
    common_compiled,
    count_of,
    covered_compiled,
    nest_compiled,
    united_compiled,
)
from eroica.producers.trace.intervals import common, covered, union, united
from eroica.producers.trace.nesting import nest
from eroica.producers.trace.reader import read_trace
from eroica.schemas.errors import EroicaError

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))
from trace_mutations import difference, mutated

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not COMPILED, reason="the scanner is not compiled here: there was no compiler at installation"),
]

FOLDER = Path(__file__).resolve().parents[3] / "../shared/data/traces"
FILES = sorted(str(p.relative_to(FOLDER)) for p in FOLDER.glob("*/*.json*")) if FOLDER.exists() else ["single/simple_add.json.gz"]
Find = Callable[[str], Path]


def read(path: Path, compiled: bool) -> Trace | str:
    try:
        return read_trace(path, compiled=compiled)
    except EroicaError as error:
        return str(error)


def assert_same(path: Path, label: object = "") -> Trace | str:
    fast, slow = read(path, True), read(path, False)
    if isinstance(fast, str) or isinstance(slow, str):
        assert fast == slow, label
    else:
        assert difference(fast, slow) == "", label
    return fast


@pytest.mark.parametrize("place", FILES)
def test_real_traces(real_trace: Find, place: str) -> None:
    trace = assert_same(real_trace(place))
    assert isinstance(trace, Trace)
    assert len(trace) > 0


@pytest.mark.parametrize(
    ("event", "by_the_scanner"),
    [
        pytest.param(
            '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1.5,"dur":2,"args":{"stream":7}}', True, id="plain"
        ),
        pytest.param(' {"ph" : "X" ,\n "ts"\t:\r1 } ', True, id="white space"),
        pytest.param("{}", True, id="empty event"),
        pytest.param("", True, id="no event"),
        pytest.param('{"ph":"X","ts":1,"dur":1,"name":"gr\u00fc\u00df \u4f60\u597d \U0001f600"}', True, id="beyond ASCII"),
        pytest.param('{"ph":"X","ts":1,"dur":1,"name":"a\\n\\"b\\"\\u00e9\\/"}', True, id="escapes"),
        pytest.param('{"ph":"X","ts":1,"dur":1,"name":"first","name":"second","ts":5}', True, id="keys twice"),
        pytest.param(
            '{"ph":"X","ts":1,"dur":1,"args":{"bytes":3,"stream":1},"args":{"stream":2},"cat":"kernel"}', True, id="args twice"
        ),
        pytest.param('{"ph":"X","ts":1,"dur":1,"args":null,"cat":"kernel"}', True, id="args null"),
        pytest.param('{"ph":"X","ts":1,"dur":1,"z":[[{"a":[1,2,{"b":null}]},true],false,-1.5e-7,"x"]}', True, id="nested"),
        pytest.param('{"ph":"X","ts":1,"dur":1,"z":' + "[" * 59 + "]" * 59 + "}", True, id="59 deep"),
        pytest.param('{"ph":"X","ts":1,"dur":1,"z":' + "[" * 61 + "]" * 61 + "}", False, id="61 deep"),
        pytest.param('{"ph":"X","pid":-5,"tid":"stream 7","ts":-1e3,"dur":0.0}', True, id="ids and signs"),
        pytest.param('{"ph":"X","pid":1.0,"ts":1,"dur":1}', False, id="pid with a fraction"),
        pytest.param('{"ph":"X","pid":"' + "p" * 400 + '","tid":"' + "t" * 2000 + '","ts":1,"dur":1}', True, id="long ids"),
        pytest.param('{"ph":"X","name":"' + "n" * 70_000 + '","ts":1,"dur":1}', True, id="long name"),
        pytest.param('{"ph":"X","ts":"1","dur":1}', False, id="time as a string"),
        pytest.param('{"ph":"X","ts":NaN,"dur":1}', False, id="NaN"),
        pytest.param('{"ph":"X","ts":01,"dur":1}', False, id="leading zero"),
        pytest.param('{"ph":"X","ts":1.,"dur":1}', False, id="no digit after the point"),
        pytest.param('{"ph":"X","ts":1e999,"dur":1}', False, id="too large"),
        pytest.param('{"ph":"X","ts":1,"dur":1,"name":"\\ud83d\\ude00"}', False, id="surrogates"),
        pytest.param('{"ph":"X","ts":1,"dur":1,"name":"\\ud800"}', False, id="half a surrogate"),
        pytest.param('{"\\u0070h":"X","ts":1,"dur":1}', False, id="key with an escape"),
        pytest.param('{"ph":"\\u0058","ts":1,"dur":1}', False, id="phase with an escape"),
        pytest.param(b'{"ph":"X","ts":1,"dur":1,"name":"\xff"}', False, id="no UTF-8"),
        pytest.param(b'{"ph":"X","ts":1,"dur":1,"name":"\xed\xa0\x80"}', False, id="surrogate in UTF-8"),
        pytest.param(b'{"ph":"X","ts":1,"dur":1,"name":"\xf4\x90\x80\x80"}', False, id="beyond Unicode"),
        pytest.param(b'{"ph":"X","ts":1,"dur":1,"name":"\xe4\xbd"}', False, id="half a character"),
        pytest.param(b'{"ph":"X","ts":1,"dur":1,"name":"a\x00b"}', False, id="NUL in a text"),
        pytest.param(b'{"ph":"X","ts":1,"dur":1}\x00', False, id="NUL after an event"),
        pytest.param('{"ph":"X","ts":1,"dur":1,"args":[1]}', False, id="args a list"),
        pytest.param('{"ph":"X","ts":1,"dur":1,"args":{"correlation":99999999999999999999}}', False, id="id beyond 64 bits"),
        pytest.param('{"ph":"X","ts":1,"dur":1,"args":{"dtype":4}}', False, id="argument of another type"),
        pytest.param('{"ph":"X","ts":1,"dur":1},', False, id="comma at the end"),
        pytest.param('{"ph":"X","ts":1,"dur":1} {"ph":"X","ts":2,"dur":1}', False, id="no comma"),
        pytest.param('{"ph":"X","ts":1,"dur":1}]', False, id="the list ends"),
        pytest.param('[{"ph":"X","ts":1,"dur":1}]', False, id="a list in the list"),
        pytest.param('{"ph":"X","ts":1,"dur":tru}', False, id="half a word"),
        pytest.param('{"ph":"X","ts":1,"dur":1', False, id="cut"),
    ],
)
def test_what_the_scanner_takes_and_what_it_leaves(tmp_path: Path, event: str | bytes, by_the_scanner: bool) -> None:
    raw = event.encode() if isinstance(event, str) else event
    assert ColumnBuilder(compiled=True).scan(raw, 0, len(raw)) is by_the_scanner
    assert ColumnBuilder(compiled=True).scan(b"[" + raw + b', {"ph":"X"}', 1, len(raw) + 1) is by_the_scanner
    before = b'{"ph":"X","cat":"cpu_op","name":"before","ts":1,"dur":1},'
    for text in (b"[" + raw + b"]", b'{"traceEvents": [' + before + raw + b'], "distributedInfo": {"rank": 3}}'):
        path = tmp_path / "t.json"
        path.write_bytes(text)
        assert_same(path)


def test_numbers_are_the_nearest_doubles(tmp_path: Path) -> None:
    dice = random.Random(3)
    texts = ["9007199254740993", "9007199254740993.0", "9007199254740992.5", "1700000000123456.789", "0.1", "5e-324", "-0.0", "0"]
    texts += ["1e22", "1e23", "123456789012345678e-3", "0." + "0" * 30 + "1", "4503599627370496.5", "4503599627370497.5"]
    texts += [str(dice.randrange(10 ** dice.randrange(1, 20))) for _ in range(500)]
    texts += [
        f"{dice.randrange(10 ** dice.randrange(1, 17))}.{dice.randrange(10**9):0{dice.randrange(1, 10)}d}" for _ in range(3000)
    ]
    texts += [repr(dice.uniform(-1e18, 1e18)) for _ in range(500)]
    builder = ColumnBuilder(compiled=True)
    raw = ",".join(f'{{"ph":"X","cat":"kernel","args":{{"bytes":{t}}}}}' for t in texts).encode()
    assert builder.scan(raw, 0, len(raw))
    path = tmp_path / "t.json"
    path.write_bytes(b"[" + raw + b"]")
    assert read_trace(path).bytes.tolist() == [float(t) for t in texts]


def test_a_refused_run_leaves_nothing_behind() -> None:
    builder = ColumnBuilder(compiled=True)

    def scan(raw: bytes) -> bool:
        return builder.scan(raw, 0, len(raw))

    assert scan(b'{"ph":"X","name":"a","ts":1,"dur":1}')
    assert not scan(b'{"ph":"X","name":"b","tid":9,"ts":2,"dur":1},{"ph":"X","name":"c","ts":NaN}')
    assert not builder.scan(b'{"ph":"X","name":"d","ts":2,"dur":1}]', 0, -1, lambda _behind: False)
    assert builder.scan(b'{"ph":"X","name":"e","ts":3,"dur":1}], "x": 1}', 0, -1, lambda behind: behind == b', "x": 1}')
    trace = builder.build({})
    assert [trace.names[n] for n in trace.name] == ["a", "e"]
    assert trace.names == ("a", "e")
    assert trace.threads == (("0", "0"),)


def test_a_run_ends_where_it_is_said_to() -> None:
    raw = b'  {"ph":"X","ts":1} , {"ph":"X","ts":2} '
    ends = {stop for stop in range(len(raw) + 1) if ColumnBuilder(compiled=True).scan(raw, 0, stop)}
    one, two = raw.index(b"}") + 1, raw.rindex(b"}") + 1
    assert ends == {0, 1, 2, one, one + 1, two, two + 1}


@pytest.mark.parametrize(
    "tail",
    [
        '], "traceEvents": []}',
        '], "distributedInfo": {"rank": 5}, "traceEvents": [{"ph":"X","name":"z","ts":9,"dur":1}]}',
        '], "deviceProperties": [{"id": 0}], "traceName": "\\u0074"}',
        '], "distributedInfo": {"rank": NaN}}',
        "]} trailing",
        "]",
        "",
    ],
)
def test_what_stands_behind_the_events(tmp_path: Path, tail: str) -> None:
    events = ",".join(json.dumps({"ph": "X", "name": f"n{i}", "ts": i, "dur": 1}) for i in range(20))
    for head in ('{"traceEvents":[', '{"x": "\\"traceEvents\\": [", "traceEvents" : [', '{"traceEvents": null, "traceEvents": ['):
        path = tmp_path / "t.json"
        path.write_text(head + events + tail)
        assert_same(path, head)


@pytest.mark.parametrize("piece_bytes", [3_000, 2**18])
@pytest.mark.parametrize(
    "place", ["single/simple_add.json.gz", "single/cuda_event_sync.json.gz", "single/cpu_only_rank34_of_300.json.gz"]
)
def test_broken_traces(real_trace: Find, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, piece_bytes: int) -> None:
    raw = gzip.decompress(real_trace(place).read_bytes())
    dice = random.Random(f"{place} {piece_bytes}")
    monkeypatch.setattr(reader, "PIECE_BYTES", piece_bytes)
    path = tmp_path / "rank0.json"
    kinds: set[Any] = set()
    for number in range(50):
        path.write_bytes(mutated(raw, dice))
        kinds.add(type(assert_same(path, number)))
    assert Trace in kinds


def test_many_names_and_threads_are_numbered_alike(tmp_path: Path) -> None:
    dice = random.Random(5)
    names = [f"f{dice.randrange(20_000)}" + "x" * dice.randrange(40) for _ in range(30_000)]
    events = [{"ph": "X", "name": n, "pid": i % 700, "tid": f"t{i % 900}", "ts": i, "dur": 1} for i, n in enumerate(names)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = assert_same(path)
    assert isinstance(trace, Trace)
    assert [trace.names[n] for n in trace.name.tolist()] == names


BUILT = pytest.mark.skipif(covered_compiled is None, reason="the compiled part is older than this function: install again")


@BUILT
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60)), max_size=80),
    st.sampled_from([0, 1, 3, 2_000]),
)
def test_call_trees_nest_alike(spans: list[tuple[int, int]], deepest: int) -> None:
    start = np.sort(np.array([s for s, _ in spans], float))
    ends = np.sort(np.array([s + length for s, length in spans], float))
    assert nest_compiled is not None
    for ours, theirs in zip(nest_compiled(start, ends, deepest), nest(start, ends, deepest), strict=True):
        assert ours.tolist() == theirs.tolist()


@BUILT
@pytest.mark.parametrize("place", FILES[:3])
def test_summaries_are_alike_without_the_compiled_nesting(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = FOLDER / place
    if not path.exists():
        pytest.skip(f"the real trace {place} is not on this machine")
    trace = read_trace(path)
    who = identity_from_trace(trace, path, job="j", rank=0)
    compiled = summarise_trace(trace, who, SummarySettings())
    monkeypatch.setattr(nesting, "nest_compiled", None)
    for part in ("covered_compiled", "united_compiled", "common_compiled"):
        monkeypatch.setattr(intervals, part, None)
    assert summarise_trace(trace, who, SummarySettings()) == compiled


@BUILT
@pytest.mark.parametrize("arguments", [(b"1", b"1", 1), (b"12345678", b"", 1), (b"", b"", -1), (b"", b"", 2**40)])
def test_nesting_refuses_what_it_cannot_hold(arguments: tuple[bytes, bytes, int]) -> None:
    with pytest.raises(ValueError, match="as many"):
        _columns.nest(*arguments)


TIMES = st.one_of(st.integers(-5, 60).map(float), st.floats(-10, 100))


@BUILT
@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=30), st.lists(TIMES, max_size=60), st.booleans())
def test_intervals_are_measured_alike(spans: list[tuple[float, float]], times: list[float], ascending: bool) -> None:
    set_of = union(np.array([a for a, _ in spans]), np.array([b for _, b in spans]))
    if not set_of.start.size:
        return
    t = np.array(sorted(times) if ascending else times, float)
    before = np.concatenate(([0.0], np.cumsum(set_of.end - set_of.start)))
    assert covered_compiled is not None
    ours, theirs = (f(set_of.start, set_of.end, before, t) for f in (covered_compiled, covered))
    assert ours.tobytes() == theirs.tobytes()


@BUILT
@pytest.mark.parametrize("arguments", [(b"1" * 8, b"", b"1" * 8, b""), (b"1" * 8, b"1" * 8, b"", b""), (b"1",) * 4])
def test_measuring_refuses_what_does_not_fit(arguments: tuple[bytes, bytes, bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="as many"):
        _columns.covered(*arguments)


SPANS = st.lists(st.tuples(TIMES, TIMES), max_size=60)


@BUILT
@given(SPANS, st.sampled_from(["as they come", "ascending", "two runs"]))
def test_intervals_are_united_alike(spans: list[tuple[float, float]], order: str) -> None:
    if order == "ascending":
        spans = sorted(spans)
    elif order == "two runs":
        spans = sorted(spans[::2]) + sorted(spans[1::2])
    start, end = np.array([a for a, _ in spans], float), np.array([b for _, b in spans], float)
    assert united_compiled is not None
    for ours, theirs in zip(united_compiled(start, end), united(start, end), strict=True):
        assert ours.tolist() == theirs.tolist()


@BUILT
@given(SPANS, SPANS)
def test_what_lies_in_both_is_found_alike(mine: list[tuple[float, float]], theirs: list[tuple[float, float]]) -> None:
    sets = [united(np.array([a for a, _ in s], float), np.array([b for _, b in s], float)) for s in (mine, theirs)]
    if not all(start.size for start, _ in sets):
        return
    assert common_compiled is not None
    for ours, reference in zip(common_compiled(*sets[0], *sets[1]), common(*sets[0], *sets[1]), strict=True):
        assert ours.tolist() == reference.tolist()


@BUILT
@pytest.mark.parametrize("arguments", [(b"1" * 8, b""), (b"1", b"1"), (b"1" * 16, b"1" * 8)])
def test_uniting_refuses_what_does_not_fit(arguments: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="as many"):
        _columns.united(*arguments)
    with pytest.raises(ValueError, match="as many"):
        _columns.common(*arguments, b"1" * 8, b"1" * 8)


@BUILT
@given(st.binary(max_size=1_000), st.integers(0, 255))
def test_bytes_are_counted_alike(block: bytes, byte: int) -> None:
    assert count_of(block, byte) == block.count(bytes([byte]))


def test_bytes_are_counted_without_the_compiled_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_parts, "_columns", None)
    assert count_of(b"{a{" * 300, ord("{")) == 600
