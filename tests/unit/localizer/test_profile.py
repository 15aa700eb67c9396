from __future__ import annotations

import pytest

from eroica.localizer.profile import function_label
from eroica.schemas.groups import FunctionName

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "stack", "label"),
    [
        ("aten::mm", "", "aten::mm"),
        ("<built-in function sleep>", "main;job.py(47): item;job.py(66): read", "sleep < job.py(66): read < job.py(47): item"),
        ("job.py(66): read", "main;job.py(47): item;job.py(66): read", "job.py(66): read < job.py(47): item < main"),
        ("<built-in method add_ of Tensor object at 0x7f>", "", "add_ of Tensor object at 0x7f"),
    ],
)
def test_a_function_is_named_by_what_a_person_would_look_for(name: str, stack: str, label: str) -> None:
    assert function_label(FunctionName(name=name, category="python", stack=stack)) == label
