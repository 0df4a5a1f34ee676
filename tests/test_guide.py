"""The guide is true, as far as this machine can tell: each of its recipes is checked, or run."""

from __future__ import annotations

import configparser
import gzip
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from botocore.session import Session
from botocore.validate import validate_parameters

import s3queue.guide
from s3queue import Backend, QueueOptions, RetryLater, WorkQueue
from s3queue import _keys as keys
from s3queue.stores import OVERWRITE, MemoryBucket, MemoryStore, PutMode, Replace
from s3queue.testing import SeededRuntime
from tests.conftest import client_of
from tests.documents import SCRIPTS, Block, blocks_of, links_of, pasted
from tests.servers._process import S3Server
from tests.virtual import virtual

GUIDE = Path(s3queue.guide.__file__).parent
PAGES = sorted(GUIDE.glob("*.md"))
BUCKET = "bucket"
ROOT = "ws/"
JOBS = """
def convert(path):
    return len(path)

def convert_group(item):
    return [convert(path) for path in item.work_paths]
"""


def block(page: str, language: str, heading: str) -> Block:
    """The only block of that language below that heading."""
    (found,) = [b for b in blocks_of(GUIDE / page) if (b.language, b.heading) == (language, heading)]
    return found


def policies() -> dict[str, Any]:
    """The policies, by the bold word before each."""
    text = (GUIDE / "buckets.md").read_text().partition("## Lifecycle")[0]
    return {
        name.lower(): json.loads(code)
        for name, code in re.findall(r"\*\*(\w+)\*\*.*?```json\n(.*?)```", text, re.DOTALL)
    }


def lifecycles() -> list[Any]:
    """The lifecycle configurations, in their order."""
    return [
        json.loads(block("buckets.md", "json", heading).text) for heading in ("Lifecycle rules", "Versioned buckets")
    ]


def test_every_page_is_included() -> None:
    """What is in the folder is in the docstring, and so in the site; and a page's links lead somewhere."""
    included = re.findall(r"^\.\. include:: (\S+)$", s3queue.guide.__doc__ or "", re.MULTILINE)

    assert sorted(included) == [page.name for page in PAGES]
    assert [link for page in PAGES for link in links_of(page) if not (GUIDE / link).exists()] == []


def test_every_recipe_is_tried() -> None:
    """A block that is not in this table is one that no test of this module knows."""
    tried = {
        "fleets.md": ["sh", "sh", "ini", "yaml", "sh", "json"],
        "buckets.md": ["json"] * 6 + ["toml", "python"],
        "stores.md": [],
        "olmocr.md": ["sh"],
        "limits.md": [],
    }

    assert {page.name: [b.language for b in blocks_of(page)] for page in PAGES} == tried
    assert sorted(policies()) == ["look", "operate", "populate", "work"]


# Fleets.


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A folder with the handler that the recipes name, and a populated workspace in place of the bucket's."""
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "__init__.py").touch()
    (tmp_path / "mypackage" / "jobs.py").write_text(JOBS)
    (tmp_path / "list").write_text("".join(f"{n}.pdf\n" for n in range(10)))
    assert pasted("s3queue populate ws --from-file list --items-per-group 2", tmp_path).returncode == 0
    return tmp_path


def here(command: str) -> str:
    return command.replace("s3://bucket/ws", "ws")


def run_to_its_end(command: str, folder: Path) -> None:
    """The command of a recipe does the work that there is, and ends with 0."""
    done = pasted(here(command), folder)

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert pasted("s3queue status ws", folder).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(("page", "heading"), [("fleets.md", "Running a fleet"), ("olmocr.md", "Moving from olmOCR")])
def test_the_commands_run(page: str, heading: str, prepared: Path) -> None:
    """As given, on a folder."""
    for line in block(page, "sh", heading).commands:
        if " work " in line:
            run_to_its_end(line, prepared)


@pytest.mark.slow
def test_the_measurements_reach_a_collector(prepared: Path) -> None:
    """Spans and metrics come in by OTLP over HTTP, under the name that the recipe gives."""
    text = block("fleets.md", "sh", "Metrics and spans").text
    install, *rest = text.splitlines()
    assert install == "pip install 's3queue[cli,otel]' opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
    received: dict[str, bytes] = {}

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            unpacked = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
            received[self.path] = received.get(self.path, b"") + unpacked
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"http://127.0.0.1:{server.server_port}"
        run_to_its_end("\n".join(rest).replace("http://collector:4318", place), prepared)
        server.shutdown()

    assert b"s3queue.handle" in received["/v1/traces"]
    assert b"s3queue.groups.done" in received["/v1/metrics"]
    assert all(b"convert" in body for body in received.values())


def unit_file(prepared: Path) -> str:
    return block("fleets.md", "ini", "systemd").text.replace("/opt/s3queue/bin", str(SCRIPTS))


def test_systemd_takes_the_unit(prepared: Path) -> None:
    """`systemd-analyze verify` has nothing to say about it."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not on this machine")
    path = prepared / "s3queue@ws.service"
    path.write_text(unit_file(prepared))

    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_the_unit_s_command_runs(prepared: Path) -> None:
    """And its time-out leaves the grace its time; what is restarted is what the table of exit codes says."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(unit_file(prepared))
    service = unit["Service"]

    run_to_its_end(service["ExecStart"].replace("%i", "ws"), prepared)
    assert int(service["TimeoutStopSec"]) >= grace_of(service["ExecStart"].split()) + 10
    assert (service["RestartForceExitStatus"], service["RestartPreventExitStatus"]) == ("3", "1 2")


def grace_of(command: Sequence[str]) -> int:
    return int(command[command.index("--grace") + 1])


@pytest.mark.slow
def test_the_kubernetes_job(prepared: Path) -> None:
    """Its fields fit together as the API's documents want it; its command runs."""
    job = yaml.safe_load(block("fleets.md", "yaml", "Kubernetes").text)
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert (job["apiVersion"], job["kind"], spec["completionMode"]) == ("batch/v1", "Job", "Indexed")
    assert pod["restartPolicy"] == "Never"  # which podFailurePolicy and backoffLimitPerIndex demand
    assert spec["parallelism"] <= spec["completions"]
    assert spec["maxFailedIndexes"] <= spec["completions"]
    rules = spec["podFailurePolicy"]["rules"]
    codes = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule}
    assert codes == {"FailJob": [2], "FailIndex": [1]}
    assert {rule["onExitCodes"]["containerName"] for rule in rules if "onExitCodes" in rule} == {container["name"]}
    assert pod["terminationGracePeriodSeconds"] >= grace_of(container["command"]) + 10
    run_to_its_end(" ".join(container["command"]), prepared)


def test_the_kubernetes_job_fits_the_schema() -> None:
    """Kubernetes' own, where it is installed: it takes 100 MB, so the test extra does not ask for it."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    job = yaml.safe_load(block("fleets.md", "yaml", "Kubernetes").text)

    kubernetes_validate.validate(job, "1.33", strict=True)


@pytest.mark.slow
def test_the_batch_job_definition(prepared: Path) -> None:
    """The SDK's model of the request takes it; its command runs; its grace fits into Batch's 30 s."""
    definition = json.loads(block("fleets.md", "json", "AWS Batch").text)
    model = Session().get_service_model("batch").operation_model("RegisterJobDefinition")
    command = definition["containerProperties"]["command"]

    assert model.input_shape is not None
    validate_parameters(definition, model.input_shape)
    assert unknown_fields(definition, model.input_shape) == []
    assert grace_of(command) <= 20
    assert definition["retryStrategy"]["evaluateOnExit"][-1] == {"action": "EXIT", "onReason": "*"}
    run_to_its_end(" ".join(command), prepared)


def unknown_fields(value: Any, shape: Any) -> list[str]:
    """Fields that the request's model does not have: its own validation lets them pass."""
    if shape.type_name == "structure":
        strange = [name for name in value if name not in shape.members]
        return strange + [
            n for k, v in value.items() if k in shape.members for n in unknown_fields(v, shape.members[k])
        ]
    if shape.type_name == "list":
        return [name for item in value for name in unknown_fields(item, shape.member)]
    return []


@pytest.mark.slow
def test_the_slurm_script(prepared: Path) -> None:
    """In a plain shell, with the variable that it asks for: it works; and at the signal it hands its groups back."""
    script = block("fleets.md", "sh", "Slurm").text
    (prepared / "mypackage" / "jobs.py").write_text(
        "import anyio, pathlib\n"
        "async def convert(path):\n"
        "    pathlib.Path('began').touch()\n"
        "    await anyio.sleep(60)\n"
    )
    (prepared / "job.sh").write_text(script.replace("--grace 90", "--grace 0"))
    assert script.startswith("#!/bin/bash\n")
    assert "--grace 90" in script
    assert "--signal=B:TERM@120" in script
    assert "say which" in pasted("bash job.sh", prepared).stderr
    environment = {"PATH": f"{SCRIPTS}:/usr/bin:/bin", "WORKSPACE": "ws"}
    with subprocess.Popen(["bash", "job.sh"], cwd=prepared, env=environment, stdout=subprocess.PIPE) as process:
        while not (prepared / "began").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)

    assert process.returncode == 3
    status = json.loads(pasted("s3queue status ws --json", prepared).stdout)
    assert (status["leased"], status["done"], status["groups"]) == (0, 0, 5)


# Permissions.


class RecordingStore(MemoryStore):
    """Notes what IAM would be asked for each request."""

    def __init__(self, runtime: SeededRuntime, bucket: MemoryBucket) -> None:
        # Named apart, as in processes of their own: the start-up check is made once a process and workspace.
        super().__init__(runtime, bucket, name=f"memory {runtime.seed}")
        #: (action, key or prefix below the bucket).
        self.asked: set[tuple[str, str]] = set()

    async def get(self, key: str) -> Any:
        self.asked.add(("s3:GetObject", ROOT + key))
        return await super().get(key)

    async def head(self, key: str) -> Any:
        self.asked.add(("s3:GetObject", ROOT + key))
        return await super().head(key)

    async def put(self, key: str, data: bytes, mode: PutMode) -> Any:
        self.asked.add(("s3:PutObject", ROOT + key))
        if isinstance(mode, Replace):
            self.asked.add(("s3:GetObject", ROOT + key))
        return await super().put(key, data, mode)

    async def delete(self, key: str) -> Any:
        self.asked.add(("s3:DeleteObject", ROOT + key))
        return await super().delete(key)

    async def delete_many(self, many: Sequence[str]) -> Any:
        self.asked |= {("s3:DeleteObject", ROOT + key) for key in many}
        return await super().delete_many(many)

    async def list(self, prefix: str, **page: Any) -> Any:
        self.asked.add(("s3:ListBucket", ROOT + prefix))
        return await super().list(prefix, **page)


class Role:
    """One person's or process's part in a workspace, with what it asks of the store."""

    def __init__(self, bucket: MemoryBucket, seed: int, **options: Any) -> None:
        runtime = SeededRuntime(seed)
        self.store = RecordingStore(runtime, bucket)
        self.queue = WorkQueue(Backend(self.store), options=QueueOptions(**options), runtime=runtime)


async def lives(bucket: MemoryBucket) -> dict[str, set[tuple[str, str]]]:
    """A workspace's whole life, with failures, a crash, a hand-back and an operator; what each role asked for."""
    populate, crashed, work = Role(bucket, 1), Role(bucket, 2), Role(bucket, 3, max_attempts=2)
    operate, look = Role(bucket, 4, check_store=False), Role(bucket, 5, check_store=False)
    attempts: dict[str, int] = {}

    async def handle(path: str) -> dict[str, Any]:
        await anyio.sleep(30)
        attempts[path] = attempts.get(path, 0) + 1
        if path in ("p00", "p07") or (path == "p12" and attempts[path] == 1):
            raise ValueError(path)
        if path == "p17" and attempts[path] == 1:
            raise RetryLater(5)
        return {"of": path}

    await populate.queue.populate_queue([f"p{n:02}" for n in range(40)], items_per_group=4)
    await populate.queue.populate_queue(["more"])
    item = await crashed.queue.get_work()
    assert item is not None
    summary = await work.queue.run(handle, workers=2, per="path", handle_signals=False)
    assert (summary.dead, summary.unfinished) == (2, 0)

    status = await look.queue.status()
    assert status.dead == 2
    for failed in await look.queue.failures():
        assert await look.queue.history(failed.hash)
    assert len([result async for result in look.queue.results()]) > 30
    assert {finding.kind async for finding in look.queue.check()} == {"dead group"}

    assert await operate.queue.retry() == 2
    held = await crashed.queue.get_work()
    assert held is not None
    assert await operate.queue.break_lease(held.hash)
    assert await operate.queue.reset([item.hash])
    locks = [name for name, _ in bucket_items(bucket) if keys.parse_lock(name)]
    assert locks
    left = keys.lock(item.hash)
    await crashed.store.put(left, b"", OVERWRITE)
    await anyio.sleep(1000)
    assert await operate.queue.sweep() >= 1
    await anyio.sleep(1000)
    return {
        "populate": populate.store.asked,
        "work": work.store.asked | crashed.store.asked,
        "operate": operate.store.asked,
        "look": look.store.asked,
    }


def bucket_items(bucket: MemoryBucket) -> list[tuple[str, int]]:
    return [(item.key, item.size) for item in bucket.slice("", None, 10_000)[0]]


def grants(policy: Any) -> list[tuple[str, str, str]]:
    """Each (action, resource, pattern of prefixes) that a policy allows."""
    found = []
    for statement in policy["Statement"]:
        assert statement["Effect"] == "Allow"
        for action in _listed(statement["Action"]):
            for resource in _listed(statement["Resource"]):
                prefix = statement.get("Condition", {}).get("StringLike", {}).get("s3:prefix", "")
                found.append((action, resource, prefix))
    return found


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else value


def allows(grant: tuple[str, str, str], request: tuple[str, str]) -> bool:
    """As IAM decides it: ``*`` is any characters."""
    action, resource, prefix = grant
    arn = f"arn:aws:s3:::{BUCKET}"
    if request[0] == "s3:ListBucket":
        return (action, resource) == (request[0], arn) and fnmatchcase(request[1], prefix)
    return action == request[0] and fnmatchcase(f"{arn}/{request[1]}", resource)


@virtual
async def test_each_policy_allows_what_its_role_asks_and_no_more() -> None:
    """Every request of a whole life is allowed, and every grant is needed by one of them."""
    asked = await lives(MemoryBucket())

    for name, policy in policies().items():
        given = grants(policy)
        refused = {request for request in asked[name] if not any(allows(grant, request) for grant in given)}
        idle = [grant for grant in given if not any(allows(grant, request) for request in asked[name])]
        assert (name, refused, idle) == (name, set(), [])


def test_the_policies_are_well_formed() -> None:
    """IAM's grammar takes them."""
    # In a process of its own: where moto is imported, every S3 client that is made carries its handlers, and is not
    # taken the lean way.
    code = (
        "import json, sys\n"
        "from moto.iam.policy_validation import IAMPolicyDocumentValidator\n"
        "for policy in json.load(sys.stdin):\n"
        "    IAMPolicyDocumentValidator(json.dumps(policy)).validate()\n"
    )
    subprocess.run([sys.executable, "-c", code], input=json.dumps(list(policies().values())), text=True, check=True)


# Buckets.


def on_bucket(server: S3Server, bucket: str, **versioning: str) -> None:
    async def make() -> None:
        async with client_of(server) as client:
            await client.create_bucket(Bucket=bucket)
            if versioning:
                await client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration=versioning)

    anyio.run(make)


def test_the_lifecycle_rules_are_taken(moto: S3Server) -> None:
    """And touch nothing that the queue remembers by, but old versions."""

    async def main() -> None:
        async with client_of(moto) as client:
            for rules in lifecycles():
                await client.put_bucket_lifecycle_configuration(Bucket=moto.bucket, LifecycleConfiguration=rules)
                taken = await client.get_bucket_lifecycle_configuration(Bucket=moto.bucket)
                assert [rule["ID"] for rule in taken["Rules"]] == [rule["ID"] for rule in rules["Rules"]]
            await client.delete_bucket_lifecycle(Bucket=moto.bucket)

    anyio.run(main)
    expiring = [rule for rules in lifecycles() for rule in rules["Rules"] if "Days" in rule.get("Expiration", {})]
    assert {rule["Filter"]["Prefix"] for rule in expiring} == {ROOT + keys.SCRATCH}


@pytest.mark.slow
def test_a_versioned_bucket_works(seaweed: S3Server, prepared: Path) -> None:
    """Claims, failures, retries and completions, where writes keep versions and deletes leave markers."""
    on_bucket(seaweed, "versioned", Status="Enabled")
    environment = seaweed.environment()
    (prepared / "mypackage" / "jobs.py").write_text(
        "import pathlib\n"
        "def convert(path):\n"
        "    if path == '3.pdf' and not pathlib.Path('mended').exists():\n"
        "        raise ValueError(path)\n"
        "    return len(path)\n"
    )
    work = "s3queue work s3://versioned/ws --handler mypackage.jobs:convert --max-attempts 1"

    def run(command: str) -> subprocess.CompletedProcess[str]:
        return pasted(command, prepared, environment=environment)

    assert run("s3queue populate s3://versioned/ws --from-file list --items-per-group 2").returncode == 0
    assert run(work).returncode == 1
    (prepared / "mended").touch()
    assert run("s3queue retry s3://versioned/ws --all").returncode == 0
    assert run(work).returncode == 0
    results = run("s3queue results s3://versioned/ws").stdout.splitlines()
    assert sorted(json.loads(line)["path"] for line in results) == [f"{n}.pdf" for n in range(10)]


def test_writes_are_encrypted_as_told(moto: S3Server, tmp_path: Path) -> None:
    """The example runs; and what it wrote says that it is encrypted. (SeaweedFS wants a key of its own for that.)"""
    bucket = "encrypted"
    on_bucket(moto, bucket)
    code = block("buckets.md", "python", "Encryption").text.replace("s3://bucket/", f"s3://{bucket}/")

    done = pasted(code, tmp_path, python=True, environment=moto.environment())

    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    assert encryption_of(moto, bucket) == {"AES256"}


def test_the_command_line_encrypts_as_told(moto: S3Server, prepared: Path) -> None:
    """By the file of settings that the guide shows."""
    on_bucket(moto, "encrypted-by-file")
    (prepared / "s3queue.toml").write_text(block("buckets.md", "toml", "Encryption").text)

    done = pasted(
        "s3queue populate s3://encrypted-by-file/ws --from-file list", prepared, environment=moto.environment()
    )

    assert done.returncode == 0, done.stderr
    assert encryption_of(moto, "encrypted-by-file") == {"AES256"}


def encryption_of(server: S3Server, bucket: str) -> set[str]:
    found: set[str] = set()

    async def main() -> None:
        async with client_of(server) as client:
            for item in (await client.list_objects_v2(Bucket=bucket))["Contents"]:
                head = await client.head_object(Bucket=bucket, Key=item["Key"])
                found.add(str(head.get("ServerSideEncryption")))

    anyio.run(main)
    return found


# Stores, and the rest.


def rows_of(page: str) -> Iterable[list[str]]:
    for line in (GUIDE / page).read_text().splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_of_stores_is_whole() -> None:
    """Every row says whether, and how we know; what is said to be tested is what our tests start."""
    _, *rows = rows_of("stores.md")

    assert all(len(row) == 4 and row[0] and row[1] for row in rows)
    assert {row[1].strip("*") for row in rows} == {"yes", "no", "probably", "unknown", "for tests"}
    tested = {row[0].split()[0] for row in rows if row[2].startswith("tested")}
    assert tested == {"folder", "SeaweedFS", "moto"}


def test_the_costs_add_up() -> None:
    """Requests a job, times a million, at the prices that the page names."""
    text = (GUIDE / "limits.md").read_text()
    assert "$0.005 per 1,000 writes" in text
    assert "$0.40 per million requests" in " ".join(text.split())
    _, *rows = rows_of("limits.md")
    for what, requests, dollars in rows:
        price = 5.0 if what.startswith("s3queue") else 0.4
        assert float(requests.split()[0]) * price == pytest.approx(float(dollars)), what


def test_the_settings_that_are_named_exist() -> None:
    """Options of the queue and of the command line, by the names that the pages use."""
    text = "".join(page.read_text() for page in PAGES)
    help_text = subprocess.run(
        [sys.executable, "-m", "s3queue", "work", "--help"], capture_output=True, text=True, check=True,
        env={"COLUMNS": "300", "PATH": "/usr/bin"},
    ).stdout  # fmt: skip
    named = set(re.findall(r"`(--[a-z-]+)`", text)) - {"--array-properties", "--input"}

    assert named
    assert [option for option in sorted(named) if option not in help_text] == []
    for name, value in re.findall(r"`([a-z_]+)=(\d+)`", text):
        QueueOptions(**{name: int(value)})
    assert re.findall(r"`--lease-ttl`, (\d+) s", text) == [f"{QueueOptions().lease_ttl:g}"]
