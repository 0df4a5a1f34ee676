"""The layers of the design, held by the imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import s3queue

PACKAGE = Path(s3queue.__file__).parent

LAYERS: dict[str, int] = {
    **dict.fromkeys(["_errors", "_model", "_options", "_runtime", "_events", "_hooks", "_tasks", "_prices"], 0),
    "stores": 1,
    **dict.fromkeys(["_keys", "_index", "_progress", "_records"], 2),
    **dict.fromkeys(
        ["_lease_rules", "_intent", "_journal", "_outcomes", "_pieces", "_evidence", "_locks", "_lease"], 3
    ),
    **dict.fromkeys(
        [
            "_operator",
            "_survey",
            "_results",
            "_inspection",
            "_catalogue",
            "_store_check",
            "_doctor",
            "_picture",
            "_watch",
            "_workspace",
        ],
        3,
    ),
    **dict.fromkeys(["_room", "_plan", "_scheduler", "_keeper", "_leftovers", "_claims"], 4),
    **dict.fromkeys(["_backend", "_handlers", "_turns", "_limits", "_attempt", "_watchdog", "_pool", "_queue"], 5),
    **dict.fromkeys(["cli", "web", "telemetry", "testing", "guide", "__main__", "__init__"], 6),
}
MODULES = sorted(PACKAGE.rglob("*.py"))


def unit(parts: tuple[str, ...]) -> str:
    """The entry of the table that a module belongs to."""
    return parts[0] if parts and parts[0] else "__init__"


def imports(path: Path) -> set[str]:
    """Every module that a file imports, also inside functions, with the names from packages as modules."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_its_own_layer_and_lower_ones(path: Path) -> None:
    """No lower layer knows an upper one."""
    mine = LAYERS[unit(path.relative_to(PACKAGE).with_suffix("").parts)]

    for name in imports(path):
        if name.split(".")[0] == "s3queue":
            theirs = unit(tuple(name.split(".")[1:]))
            assert LAYERS.get(theirs, 6) <= mine, f"{name} is of a higher layer"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_sdk_stays_in_its_adapter(path: Path) -> None:
    """Only the S3 store imports aiobotocore; asyncio only the runtime, to read its clock, and what sends by aiohttp."""
    roots = {name.split(".")[0] for name in imports(path)}

    assert "asyncio" not in roots or path.name in ("_runtime.py", "_s3_exchange.py")
    if not path.name.startswith("_s3"):
        assert not roots & {"aiobotocore", "botocore", "boto3", "aiohttp"}


def test_the_table_is_complete() -> None:
    """Every module has a layer, and every entry is a module."""
    assert {unit(path.relative_to(PACKAGE).with_suffix("").parts) for path in MODULES} == set(LAYERS)


@pytest.mark.parametrize(
    "name",
    [
        "_keys",
        "_index",
        "_progress",
        "_records",
        "_lease_rules",
        "_journal",
        "_plan",
        "_room",
        "_picture",
        "_options",
        "_errors",
    ],
)
def test_what_is_pure_stays_so(name: str) -> None:
    """Decisions and codecs do no I/O, wait for nothing, and read no clock."""
    tree = ast.parse((PACKAGE / f"{name}.py").read_text())
    roots = {name.split(".")[0] for name in imports(PACKAGE / f"{name}.py")}

    assert not roots & {"anyio", "trio", "io", "os", "pathlib", "random", "socket", "subprocess", "threading", "time"}
    assert not any(isinstance(node, (ast.AsyncFunctionDef, ast.Await)) for node in ast.walk(tree))


def test_clocks_and_chance_have_one_place() -> None:
    """Only the runtime touches them, so that a whole fleet runs in virtual time from one seed."""
    for path in MODULES:
        if path.name != "_runtime.py":
            roots = {name.split(".")[0] for name in imports(path)}
            assert not roots & {"time", "random", "secrets", "uuid"}, path


def test_importing_the_package_is_light() -> None:
    """The SDK, which takes half a second to import, is loaded only by who uses S3; a test's tools by no one."""
    code = """if True:
        import sys, s3queue, s3queue.stores, s3queue.testing
        heavy = {"aiobotocore", "botocore", "aiohttp", "typer", "rich", "pytest", "hypothesis", "trio", "starlette",
            "uvicorn", "opentelemetry"}
        sys.exit(", ".join(heavy & set(sys.modules)) or None)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr.strip()) == (0, "")
